"""NEDClassifier in a fitted space: chosen on held-out rows, kept everywhere, and honest."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_wine
from torch.testing import assert_close

import vicinal
from vicinal.checks import InputError
from vicinal.confidence import bundle
from vicinal.confidence.ned import space as choosing
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.ned.space import in_reach
from vicinal.neighbors.spaces import SPACES

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
FITTED = {"sharpness": "fit", "background": "fit"}


@pytest.fixture
def loud(rng):
    """Four classes told apart by six columns; fourteen louder ones are noise that says nothing."""

    def draw(n):
        y = torch.randint(0, 4, (n,), generator=rng)
        x = torch.randn(n, 20, generator=rng)
        x[:, :6] += 2.0 * torch.eye(4)[y] @ torch.ones(4, 6).triu()
        x[:, 6:] *= 6
        return x.double(), y

    return draw(300), draw(200)


def nll(ned, x, y):
    return float(-ned.predict_log_proba(x).gather(1, y[:, None]).mean())


def test_the_default_is_equation_3_on_the_rows_as_they_are(loud):
    (x, y), _ = loud
    ned = NEDClassifier(k=20).fit(x, y)
    assert ned.space_.name == "raw"
    assert_close(ned.support_.rows, x, rtol=0, atol=0)
    assert ned.space_losses_ == {}


@pytest.mark.parametrize("space", SPACES)
def test_a_named_space_is_raw_ned_on_the_mapped_rows(loud, space):
    (x, y), (q, _) = loud
    ned = NEDClassifier(k=20, temperature=0.5, space=space).fit(x, y)
    plain = NEDClassifier(k=20, temperature=0.5).fit(ned.space_(x), y)
    assert_close(ned.predict_proba(q), plain.predict_proba(ned.space_(q)))


def test_the_losses_that_are_told_are_of_the_same_rows_in_every_space(rng, monkeypatch):
    """Raw rows are out of the race after 300 rows; what is said of them is of all 600 as well."""
    scored = {}

    def spied(form, task, count):
        found = held_out(form, task, count)
        scored.setdefault((form.name, len(found)), []).append(float(found.mean()))
        return found

    held_out = choosing.held_out_losses
    monkeypatch.setattr(choosing, "held_out_losses", spied)
    y = torch.arange(1000) % 4
    x = torch.randn(1000, 20, generator=rng).double()
    x[:, :6] += 2.0 * torch.eye(4).double()[y] @ torch.ones(4, 6).double().triu()
    x[:, 6:] *= 6
    losses = NEDClassifier(k=50, space="fit", **FITTED).fit(x, y).space_losses_
    assert {"raw", "unit", "whitened"} <= losses.keys()
    most = max(rows for _, rows in scored)
    assert most > choosing.FIRST
    assert all(loss in scored[name, most] for name, loss in losses.items())


def test_the_chosen_space_is_better_than_raw_where_noise_is_loud(loud):
    (x, y), (q, t) = loud
    raw = NEDClassifier(k=50, **FITTED).fit(x, y)
    fit = NEDClassifier(k=50, space="fit", **FITTED).fit(x, y)
    assert fit.space_.name != "raw"
    assert nll(fit, q, t) < 0.7 * nll(raw, q, t)


def test_columns_in_units_of_their_own_are_put_on_one_scale():
    x, y = load_wine(return_X_y=True)
    assert NEDClassifier(k=50, space="fit").fit(x, y).space_.name in ("standardized", "whitened")


def test_leave_one_out_of_a_space_that_saw_the_labels_is_honest(rng):
    x, y = torch.randn(300, 60, generator=rng), torch.randint(0, 3, (300,), generator=rng)
    ned = NEDClassifier(k=30, space="whitened", **FITTED).fit(x, y)
    told = -torch.as_tensor(ned.loo_proba_).gather(1, y[:, None]).log().mean()
    assert told > 0.97 * np.log(3)  # the labels are noise: nothing can be known
    ned.support_.crossed = None
    blind = -torch.as_tensor(ned.loo_proba_).gather(1, y[:, None]).log().mean()
    assert blind < told  # what the graph of the final map would have claimed


def test_cross_fitted_neighbors_are_never_of_the_same_fold(loud):
    (x, y), _ = loud
    ned = NEDClassifier(k=20, space="whitened").fit(x, y)
    fold, found = ned.support_.crossed.fold, ned.loo_neighborhood()
    assert bool((fold[found.indices] != fold[:, None]).all())


def test_a_simpler_space_within_a_standard_error_is_taken():
    noisy = torch.tensor([1.0, 0.0, 1.0, 0.0])
    losses = {"raw": noisy, "unit": noisy - torch.tensor([0.5, -0.45, 0.5, -0.45]), "x": noisy + 1}
    assert in_reach(losses)[0] == "raw"
    assert in_reach({"raw": noisy, "unit": noisy - 0.1})[0] == "unit"


@pytest.mark.parametrize("space", SPACES)
def test_the_space_is_in_the_file(loud, tmp_path, space):
    (x, y), (q, _) = loud
    ned = NEDClassifier(k=20, space=space).fit(x, y)
    back = vicinal.load(ned.save(tmp_path / "ned.vic"))
    assert (back.space_.name, back.n_features_in_) == (space, 20)
    assert_close(back.predict_proba(q), ned.predict_proba(q), rtol=0, atol=0)
    assert_close(torch.as_tensor(back.loo_proba_), torch.as_tensor(ned.loo_proba_))


def test_a_file_of_before_there_were_spaces_holds_raw_rows():
    old = vicinal.load(Path(__file__).parents[1] / "golden" / "kept.vic").ned
    assert old.space_.name == "raw"
    assert old.n_features_in_ == old.support_.rows.shape[1]
    assert_close(old.space_(old.support_.rows), old.support_.rows, rtol=0, atol=0)


def test_the_file_holds_one_map_and_none_of_the_folds(loud, tmp_path):
    (x, y), _ = loud
    path = NEDClassifier(k=20, space="whitened").fit(x, y).save(tmp_path / "ned.vic")
    maps = [v for v in bundle.read(path)[1].values() if v.shape == (20, 20)]
    assert len(maps) == 1


def test_rows_added_to_a_loaded_file_are_fitted_as_to_the_one_that_was_saved(loud, tmp_path):
    (x, y), (q, labels) = loud
    ned = NEDClassifier(k=20, space="whitened").fit(x, y)
    back = vicinal.load(ned.save(tmp_path / "ned.vic"))
    assert ned.add(q, labels).temperature_ == back.add(q, labels).temperature_
    assert_close(ned.predict_proba(q), back.predict_proba(q))


def test_when_one_fold_alone_is_left_its_rows_are_dealt_anew(loud):
    (x, y), _ = loud
    ned = NEDClassifier(space="whitened").fit(x, y)
    ned.remove((ned.support_.crossed.fold != 0).nonzero()[:, 0])
    assert torch.isfinite(torch.as_tensor(ned.loo_proba_)).all()


@pytest.mark.parametrize("space", SPACES)
def test_the_module_holds_the_map_and_gradients_pass_through_it(loud, space):
    (x, y), (q, _) = loud
    ned = NEDClassifier(k=20, space=space).fit(x, y)
    assert_close(ned.module()(q).exp(), ned.predict_proba(q))
    whole = ned.module(temperature=1.0, full_support=True)
    assert torch.autograd.gradcheck(whole, (q[:2].clone().requires_grad_(),))
    with pytest.raises(InputError, match="same model and layer"):
        ned.module()(q[:, :3])


@pytest.mark.parametrize("space", ["centered-unit", "whitened"])
def test_effects_and_edits_are_those_of_the_map_that_stays(loud, space):
    (x, y), (q, _) = loud
    ned = NEDClassifier(k=20, space=space, temperature=0.3).fit(x, y)
    told = ned.joint_effect(q, [0, 1, 2], [3, 3, 3])
    ned.relabel([0, 1, 2], [3, 3, 3], refit=False)
    assert_close(torch.as_tensor(told.probabilities_after), ned.predict_proba(q))
    matrix = ned.space_
    ned.add(q[:30], [0] * 30).remove([5, 6])
    assert ned.space_ is matrix
    assert "space_" in ned.stale_
    assert len(ned.loo_proba_) == 328
    assert ned.fit(x, y).stale_ == ()


def test_a_fitted_background_leaves_a_chance_that_n_rows_cannot_rule_out():
    x = np.concatenate([np.zeros((20, 1)), np.ones((20, 1))]) + np.linspace(0, 0.1, 40)[:, None]
    ned = NEDClassifier(k=10, background="fit").fit(x, [0] * 20 + [1] * 20)
    assert ned.background_ >= 1 / 41


@pytest.mark.parametrize("space", ["whitened", "learned", "fit"])
@pytest.mark.parametrize(
    ("rows", "columns", "classes"), [(4, 2, 2), (12, 30, 12), (30, 60, 3), (30, 1, 3), (25, 4, 1)]
)
def test_small_wide_and_narrow_supports_have_a_space(rng, space, rows, columns, classes):
    x, y = torch.randn(rows, columns, generator=rng), torch.arange(rows) % classes
    p = NEDClassifier(k=2, temperature=1.0, space=space).fit(x, y).predict_proba(x)
    assert_close(p.sum(1), torch.ones(rows))


def test_soft_labels_are_whitened_too(loud):
    (x, y), (q, _) = loud
    soft = 0.9 * torch.eye(4).double()[y] + 0.025
    ned = NEDClassifier(k=20, space="fit").fit(x, soft)
    assert_close(ned.predict_proba(q).sum(1), torch.ones(200).double())


def test_an_unknown_space_is_named():
    with pytest.raises(InputError, match="whitened"):
        NEDClassifier(space="whitend").fit([[0.0], [1.0]], [0, 1])


def test_digits_are_no_worse_in_the_fitted_space():
    x, y = load_digits(return_X_y=True)
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    raw = NEDClassifier(k=50, **FITTED).fit(x[:500], y[:500])
    fit = NEDClassifier(k=50, space="fit", **FITTED).fit(x[:500], y[:500])
    assert nll(fit, x[500:], y[500:]) < 1.1 * nll(raw, x[500:], y[500:])


def test_rows_that_span_fewer_directions_than_there_are_classes_earn_a_sentence(rng):
    y = torch.arange(200) % 8
    flat = torch.randn(200, 2, generator=rng) @ torch.randn(2, 30, generator=rng)
    for space in ("standardized", "whitened"):
        ned = NEDClassifier(k=20, space=space).fit(flat, y)
        assert any("directions" in sentence for sentence in ned.warnings_), space
    ned = NEDClassifier(k=20, space="whitened").fit(torch.randn(200, 30, generator=rng), y)
    assert not any("directions" in sentence for sentence in ned.warnings_)


def test_candidates_far_behind_are_dropped_and_still_reported(loud):
    (x, y), (q, w) = loud
    more = NEDClassifier(k=20, space="fit").fit(torch.cat([x, q, x + 0.1]), torch.cat([y, w, y]))
    assert set(more.space_losses_) >= set(SPACES[:5])
    assert more.space_losses_["raw"] > more.space_losses_["whitened"]


def test_a_learned_space_without_a_step_is_no_candidate(loud, monkeypatch):
    (x, y), _ = loud
    asked = []
    monkeypatch.setattr(choosing, "best_steps", lambda *_: asked.append(1) or 0)
    losses = NEDClassifier(k=50, space="fit").fit(x, y).space_losses_
    assert asked, "whitening must have been the best, so that learning was tried"
    assert "learned" not in losses
