import numpy as np
import pytest
import torch

import reference
from vicinal.checks import InputError
from vicinal.confidence import ConformalSets, DeepKNN


def layers_of(rng, n, classes=3, spread=1.0):
    """Two layers, the second better sorted by class than the first."""
    y = rng.integers(0, classes, n)
    first = rng.normal(size=(n, 4)) + 0.6 * y[:, None] + 1
    second = np.eye(classes)[y] + spread * 0.5 * rng.normal(size=(n, classes))
    return {"first": first, "second": second}, y


@pytest.fixture
def head():
    rng = np.random.default_rng(0)
    support, y = layers_of(rng, 60)
    calibration, y_cal = layers_of(rng, 40)
    query, _ = layers_of(rng, 12)
    return support, y, calibration, y_cal, query


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("mondrian", [False, True])
def test_p_values_are_the_papers_counts_ranked_with_the_plus_one(head, metric, mondrian):
    support, y, calibration, y_cal, query = head

    def strange(layers, i, c):
        rows = {name: x[i] for name, x in layers.items()}
        return reference.dknn_nonconformity(rows, support, y, c, 5, metric)

    cal = [strange(calibration, i, y_cal[i]) for i in range(40)]
    want = np.empty((12, 3))
    for i in range(12):
        for c in range(3):
            ranked = [a for a, label in zip(cal, y_cal, strict=True) if label == c or not mondrian]
            want[i, c] = reference.conformal_p_value(strange(query, i, c), ranked)
    dknn = (
        DeepKNN(k=5, metric=metric, mondrian=mondrian).fit(support, y).calibrate(calibration, y_cal)
    )
    np.testing.assert_allclose(dknn.p_values(query), want)
    np.testing.assert_allclose(dknn.credibility(query), want.max(1))
    np.testing.assert_allclose(dknn.confidence(query), 1 - np.sort(want, 1)[:, -2])
    np.testing.assert_array_equal(dknn.prediction_sets(query, 0.2), want > 0.2)


def test_each_layer_alone_is_a_dknn_of_one_layer_and_agreement_is_its_share_of_neighbors(head):
    support, y, calibration, y_cal, query = head
    dknn = DeepKNN(k=5).fit(support, y).calibrate(calibration, y_cal)
    out, alone = dknn.evaluate(query), dknn.layer_p_values(query)
    for name in support:
        one = DeepKNN(k=5).fit({name: support[name]}, y).calibrate({name: calibration[name]}, y_cal)
        np.testing.assert_array_equal(alone[name], one.p_values({name: query[name]}))
        near = y[out.neighbors[name].indices] == out.labels[:, None]
        np.testing.assert_allclose(out.agreement[name], near.mean(1), rtol=1e-6)


def test_zero_scores_count_like_any_other():
    # with most calibration scores zero, a perfect row is as credible as most of them: p = 1
    x = np.array([[1.0, 0.0]] * 10 + [[0.0, 1.0]] * 10)
    y = np.array([0] * 10 + [1] * 10)
    dknn = DeepKNN(k=3).fit({"a": x}, y).calibrate({"a": x * 2}, y)
    assert dknn.credibility({"a": np.array([[3.0, 0.1]])})[0] == 1
    assert dknn.smallest_p_ == 1 / 21


def test_true_labels_are_rejected_at_most_alpha_of_the_time_and_exactly_so_if_smoothed():
    rng = np.random.default_rng(0)
    support, y = layers_of(rng, 80)
    plain, smooth = [], []
    for state in range(60):
        calibration, y_cal = layers_of(rng, 30)
        query, truth = layers_of(rng, 30)
        for random_state, kept in ((None, plain), (state, smooth)):
            dknn = DeepKNN(k=7, random_state=random_state).fit(support, y)
            p = dknn.calibrate(calibration, y_cal).p_values(query)[np.arange(30), truth]
            kept.append((p <= 0.1).mean())
    error = np.std(smooth) / np.sqrt(len(smooth))
    assert np.mean(plain) <= 0.1 + 3.1 * error
    assert abs(np.mean(smooth) - 0.1) < 3.1 * error


def test_ties_at_the_top_are_reported_and_broken_by_neighbors_then_order():
    dknn = DeepKNN(k=2, metric="euclidean").fit(
        {"a": np.array([[0.0], [0.0], [9.0], [9.0]])}, [0, 1, 1, 1]
    )
    dknn.calibrate({"a": np.array([[0.1], [9.1]])}, [1, 1])
    out = dknn.evaluate({"a": np.array([[0.0], [9.0]])})
    assert out.ambiguous.tolist() == [True, False]
    assert out.labels.tolist() == [0, 1]


def test_a_row_of_zeros_is_safe_and_inputs_are_left_as_they_were(head):
    support, y, calibration, y_cal, query = head
    before = {name: x.copy() for name, x in query.items()}
    dknn = DeepKNN(k=5).fit(support, y).calibrate(calibration, y_cal)
    dknn.predict(query)
    for name, x in query.items():
        np.testing.assert_array_equal(x, before[name])
        query[name][0] = 0
    assert np.isfinite(dknn.p_values(query)).all()


def test_torch_gives_torch_and_names_stay_names(head):
    support, y, calibration, y_cal, query = head
    names = np.array(["cat", "dog", "eel"])
    dknn = DeepKNN(k=5).fit(support, names[y])
    assert set(dknn.predict(query)) <= set(names)  # no calibration needed for a label
    as_torch = lambda layers: {name: torch.tensor(x) for name, x in layers.items()}
    dknn = DeepKNN(k=5).fit(as_torch(support), torch.tensor(y))
    dknn.calibrate(as_torch(calibration), torch.tensor(y_cal))
    out = dknn.evaluate(as_torch(query))
    assert all(isinstance(part, torch.Tensor) for part in out[:6])
    assert set(out.neighbors) == {"first", "second"}
    assert out.neighbors["first"].indices.shape == (12, 5)


def test_conformal_sets_with_dknn_scores_are_its_own_prediction_sets(head):
    support, y, calibration, y_cal, query = head
    dknn = DeepKNN(k=5).fit(support, y)
    sets = ConformalSets(dknn, "dknn", alpha=0.2).calibrate(calibration, y_cal)
    want = dknn.calibrate(calibration, y_cal).prediction_sets(query, 0.2)
    np.testing.assert_array_equal(sets.prediction_sets(query), want)


def test_calibrating_on_the_support_and_a_class_without_rows_are_warned_about(head):
    support, y, calibration, y_cal, query = head
    with pytest.warns(UserWarning, match="60 of 60 calibration rows are support rows"):
        DeepKNN(k=5).fit(support, y).calibrate(support, y)
    few = {name: x[y_cal != 2] for name, x in calibration.items()}
    with pytest.warns(UserWarning, match=r"no calibration row \(2\)"):
        dknn = DeepKNN(k=5, mondrian=True).fit(support, y).calibrate(few, y_cal[y_cal != 2])
    assert (dknn.p_values(query)[:, 2] == 1).all()


def test_refitting_forgets_the_former_calibration(head):
    support, y, calibration, y_cal, query = head
    dknn = DeepKNN(k=5).fit(support, y).calibrate(calibration, y_cal).fit(support, y)
    with pytest.raises(InputError, match="calibrate"):
        dknn.credibility(query)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda q: {"first": q["first"]}, "layer 'second' is missing"),
        (lambda q: q["first"], "must map layer names"),
        (lambda q: {**q, "second": q["second"][:3]}, "same rows"),
        (lambda q: {**q, "first": q["first"][:, :2]}, "dimensions"),
        (lambda q: {**q, "first": q["first"] * np.nan}, "NaN"),
    ],
)
def test_wrong_layers_are_named(head, change, says):
    support, y, calibration, y_cal, query = head
    dknn = DeepKNN(k=5).fit(support, y).calibrate(calibration, y_cal)
    with pytest.raises(InputError, match=says):
        dknn.p_values(change(query))


def test_a_k_beyond_the_support_and_an_unknown_label_are_refused(head):
    support, y, calibration, y_cal, _ = head
    with pytest.raises(InputError, match="only 60 rows"):
        DeepKNN(k=61).fit(support, y)
    with pytest.raises(InputError, match="row 0"):
        DeepKNN(k=5).fit(support, y).calibrate(calibration, y_cal + 7)
