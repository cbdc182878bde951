import types

import numpy as np
import pytest
import torch
from crepes import ConformalClassifier
from crepes.extras import hinge
from mapie.classification import SplitConformalClassifier
from scipy import stats
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

import reference
from vicinal.checks import InputError
from vicinal.confidence import ConformalSets
from vicinal.confidence.conformal import Calibration, aps_scores, conformal_p_values, raps_scores


class Oracle:
    """A classifier whose "features" are already its probabilities."""

    def __init__(self, classes):
        self.classes_ = np.arange(classes)

    def predict_proba(self, X):
        return np.asarray(X)

    def predict(self, X):
        return np.asarray(X).argmax(1)


def draw(rng, n, classes=4, sharpness=0.4):
    p = rng.dirichlet(np.full(classes, sharpness), n)
    y = np.array([rng.choice(classes, p=row) for row in p**0.7 / (p**0.7).sum(1, keepdims=True)])
    return p, y  # overconfident: labels come from a flatter law than p


@pytest.mark.parametrize("u", [None, 0.3])
def test_p_values_are_shares_of_calibration_rows_at_least_as_strange(u):
    rng = np.random.default_rng(0)
    cal, scores = rng.integers(0, 6, 25), rng.integers(0, 8, (7, 3))
    uniform = None if u is None else torch.full((7,), u)
    got = conformal_p_values(
        torch.tensor(scores), Calibration(torch.tensor(cal), torch.zeros(25).long(), False), uniform
    )
    want = [[reference.conformal_p_value(s, cal, u) for s in row] for row in scores]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_mondrian_ranks_among_rows_of_the_candidate_class_only():
    rng = np.random.default_rng(0)
    p, y = draw(rng, 60)
    new, _ = draw(rng, 10)
    sets = ConformalSets(Oracle(4), mondrian=True).calibrate(p, y)
    for c in range(4):
        cal = [1 - p[i, c] for i in range(60) if y[i] == c]
        want = [reference.conformal_p_value(1 - q, cal) for q in new[:, c]]
        np.testing.assert_allclose(sets.p_values(new)[:, c], want)
    assert sets.smallest_p_.tolist() == [1 / ((y == c).sum() + 1) for c in range(4)]


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
@pytest.mark.parametrize("random_state", [None, 0])
@pytest.mark.parametrize("mondrian", [False, True])
def test_sets_hold_the_true_label_as_often_as_promised_even_from_forty_rows(
    score, random_state, mondrian
):
    rng = np.random.default_rng(1)
    hits = []
    for draw_ in range(150):
        state = None if random_state is None else draw_
        p, y = draw(rng, 40)
        sets = ConformalSets(Oracle(4), score, 0.1, mondrian=mondrian, random_state=state)
        new, truth = draw(rng, 40)
        inside = sets.calibrate(p, y).prediction_sets(new)
        hits.append(inside[np.arange(40), truth].mean())
    error = np.std(hits) / np.sqrt(len(hits))
    assert np.mean(hits) > 0.9 - 3.1 * error
    if random_state is not None:  # smoothed: exact, not merely at least
        assert np.mean(hits) < 0.9 + 3.1 * error


def test_mondrian_keeps_the_promise_in_a_rare_class_where_pooling_breaks_it():
    rng = np.random.default_rng(2)
    missed = {True: [], False: []}
    for _ in range(80):
        y, truth = (rng.random(120) < 0.15).astype(int), np.ones(60, int)
        make = lambda labels: np.clip(0.25 * labels + rng.beta(2, 6, len(labels)), 0, 1)
        one, new = make(y), make(truth)
        for mondrian in missed:
            sets = ConformalSets(Oracle(2), mondrian=mondrian)
            sets.calibrate(np.stack([1 - one, one], 1), y)
            held = sets.prediction_sets(np.stack([1 - new, new], 1))[:, 1]
            missed[mondrian].append(1 - held.mean())
    assert np.mean(missed[True]) < 0.1
    assert np.mean(missed[False]) > 0.2


def test_lac_is_the_corrected_order_statistic():
    rng = np.random.default_rng(0)
    p, y = draw(rng, 47)
    new, _ = draw(rng, 30)
    cut = np.sort(1 - p[np.arange(47), y])[int(np.ceil(48 * 0.9)) - 1]
    got = ConformalSets(Oracle(4)).calibrate(p, y).prediction_sets(new)
    np.testing.assert_array_equal(got, 1 - new <= cut)


def test_mapie_builds_the_same_lac_sets():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = (x[:, 0] + rng.normal(size=300) > 0).astype(int) + (x[:, 1] > 1)
    base = LogisticRegression().fit(x[:100], y[:100])
    theirs = SplitConformalClassifier(
        base, confidence_level=0.9, conformity_score="lac", prefit=True
    )
    theirs.conformalize(x[100:200], y[100:200])
    want = theirs.predict_set(x[200:])[1][:, :, 0]
    got = ConformalSets(base).calibrate(x[100:200], y[100:200]).prediction_sets(x[200:])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("mondrian", [False, True])
def test_crepes_gives_the_same_p_values(mondrian):
    rng = np.random.default_rng(0)
    p, y = draw(rng, 80)
    new, _ = draw(rng, 20)
    theirs = ConformalClassifier()
    bins = {"bins": y} if mondrian else {}
    theirs.fit(hinge(p, np.arange(4), y), **bins)
    test_bins = np.tile(np.arange(4), (20, 1)) if mondrian else None
    want = (
        np.stack(
            [
                theirs.predict_p((1 - new)[:, [c]], bins=test_bins[:, c], smoothing=False)[:, 0]
                for c in range(4)
            ],
            1,
        )
        if mondrian
        else theirs.predict_p(1 - new, smoothing=False)
    )
    got = ConformalSets(Oracle(4), mondrian=mondrian).calibrate(p, y).p_values(new)
    np.testing.assert_allclose(got, want)


def test_aps_scores_add_up_the_labels_at_least_as_likely():
    p = np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [1.0, 0.0, 0.0]])
    want = [[sum(q for q in row if q >= mine) for mine in row] for row in p]
    np.testing.assert_allclose(aps_scores(torch.tensor(p)), want)
    u = torch.full((3,), 0.25, dtype=torch.float64)
    shrunk = [
        [sum(q for q in row if q > m) + 0.25 * sum(q for q in row if q == m) for m in row]
        for row in p
    ]
    np.testing.assert_allclose(aps_scores(torch.tensor(p), u), shrunk, atol=1e-15)


def raps_loop(row, label, u, k_reg, lam):
    above = sum(q for q in row if q > row[label])
    same = sum(q for q in row if q == row[label])
    rank = sum(q >= row[label] for q in row)
    return above + u * same + lam * max(rank - k_reg, 0)


@pytest.mark.parametrize("u", [None, 0.25])
def test_crepes_ranks_regularized_scores_of_a_plain_loop_as_we_rank_ours(u):
    rng = np.random.default_rng(0)
    p, y = draw(rng, 60, classes=6)
    new, _ = draw(rng, 15, classes=6)
    new[0] = 1 / 6
    uniform = lambda rows: None if u is None else torch.full((rows,), u, dtype=torch.float64)
    ours = raps_scores(torch.tensor(new), uniform(15), k_reg=2, lam=0.05)
    cal = raps_scores(torch.tensor(p), uniform(60), k_reg=2, lam=0.05)
    cal = cal[torch.arange(60), torch.tensor(y)]
    weight = 1.0 if u is None else u
    loop = np.array([[raps_loop(row, c, weight, 2, 0.05) for c in range(6)] for row in new])
    np.testing.assert_allclose(ours, loop, atol=1e-14)
    theirs = ConformalClassifier()
    theirs.fit(np.array([raps_loop(row, c, weight, 2, 0.05) for row, c in zip(p, y, strict=True)]))
    got = conformal_p_values(ours, Calibration(cal, torch.tensor(y), False))
    np.testing.assert_allclose(got, theirs.predict_p(loop, smoothing=False), atol=1e-12)


def test_without_a_penalty_raps_is_aps_and_with_one_the_sets_of_many_classes_shrink():
    rng = np.random.default_rng(4)
    y = rng.integers(0, 20, 800)
    logits = 1.5 * rng.normal(size=(800, 20)) + 4 * np.eye(20)[y]  # a long tail of noise
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    p, new, y = p[:400], p[400:], y[:400]
    size = {}
    for score, lam in (("aps", 0.0), ("raps", 0.0), ("raps", 0.1)):
        sets = ConformalSets(Oracle(20), score, random_state=0, k_reg=2, lam=lam).calibrate(p, y)
        size[score, lam] = sets.prediction_sets(new).sum()
    assert size["raps", 0.0] == size["aps", 0.0]
    assert size["raps", 0.1] < size["aps", 0.0]


@pytest.mark.parametrize("score", ["aps", "raps"])
@pytest.mark.parametrize("mondrian", [False, True])
def test_the_surest_sets_hold_their_top_label_where_nothing_is_smoothed(score, mondrian):
    rng = np.random.default_rng(5)
    y = rng.integers(0, 3, 500)
    sure = rng.uniform(0.6, 1, 500)[:, None]
    p = sure * np.eye(3)[y] + (1 - sure) / 2 * (1 - np.eye(3)[y])  # every top label is right
    sets = ConformalSets(Oracle(3), score, 0.1, mondrian=mondrian).calibrate(p[:250], y[:250])
    inside = sets.prediction_sets(p[250:])
    assert inside[np.arange(250), y[250:]].all()
    # what the rule alone would have left out, and nobody else did
    out = (sets.p_values(p[250:])[np.arange(250), y[250:]] <= 0.1).sum()
    assert sets.forced_ == out > 0


def test_smoothed_p_values_of_true_labels_are_uniform():
    rng = np.random.default_rng(3)
    values = []
    for state in range(60):
        p, y = draw(rng, 30)
        new, truth = draw(rng, 1)
        sets = ConformalSets(Oracle(4), random_state=state).calibrate(
            p.round(1) / p.round(1).sum(1, keepdims=True), y
        )
        values.append(sets.p_values(new.round(1) / new.round(1).sum(1, keepdims=True))[0, truth[0]])
    assert stats.kstest(values, "uniform").pvalue > 1e-3


def test_a_lac_set_may_be_empty_and_the_top_label_can_be_asked_for():
    rng = np.random.default_rng(0)
    sure = np.eye(3)[rng.integers(0, 3, 200)] * 0.97 + 0.01
    torn = np.full((1, 3), 1 / 3)
    sets = ConformalSets(Oracle(3)).calibrate(sure, sure.argmax(1))
    assert not sets.prediction_sets(torn).any()
    forced = ConformalSets(Oracle(3), empty="top").calibrate(sure, sure.argmax(1))
    assert forced.prediction_sets(torn).sum() == 1
    assert forced.forced_ == 1


def test_too_few_calibration_rows_for_alpha_give_every_label():
    p, y = draw(np.random.default_rng(0), 8)
    sets = ConformalSets(Oracle(4)).calibrate(p, y)
    assert sets.smallest_p_ == 1 / 9
    assert sets.prediction_sets(p).all()


def test_wrong_use_is_named():
    p, y = draw(np.random.default_rng(0), 20)
    with pytest.raises(InputError, match="calibrate"):
        ConformalSets(Oracle(4)).prediction_sets(p)
    with pytest.raises(InputError, match="DeepKNN"):
        ConformalSets(Oracle(4), score="dknn").calibrate(p, y)
    with pytest.raises(InputError, match="predict_proba"):
        ConformalSets(types.SimpleNamespace(classes_=np.arange(4))).calibrate(p, y)
    with pytest.warns(UserWarning, match=r"no calibration row \(3\)"):
        ConformalSets(Oracle(4), mondrian=True).calibrate(p[y != 3], y[y != 3])
    with pytest.raises(InputError, match="does not know"):
        ConformalSets(Oracle(4)).calibrate(p, y + 3)
    with pytest.raises(InputError, match="alpha"):
        ConformalSets(Oracle(4), alpha=1.0).calibrate(p, y)
    with pytest.raises(InputError, match="lam"):
        ConformalSets(Oracle(4), "raps", lam=-1.0).calibrate(p, y)
    with pytest.raises(InputError, match="sum to 1"):
        ConformalSets(Oracle(4)).calibrate(p * 2, y)


def test_sets_without_calibration_are_not_fitted_as_scikit_learn_says_it():
    with pytest.raises(NotFittedError, match=r"Call calibrate\(X, y\)"):
        ConformalSets(object()).prediction_sets(np.zeros((1, 2)))


def test_predict_set_is_another_name_of_prediction_sets():
    p, y = draw(np.random.default_rng(3), 60)
    sets = ConformalSets(Oracle(4)).calibrate(p, y)
    np.testing.assert_array_equal(sets.predict_set(p[:9]), sets.prediction_sets(p[:9]))
