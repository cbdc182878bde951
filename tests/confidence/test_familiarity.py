"""Familiarity: the combination against plain loops, its promise, each part on hand-made rows."""

import math

import numpy as np
import pytest
import torch

import reference
from vicinal.checks import InputError
from vicinal.confidence import NEDClassifier, TrustHead
from vicinal.confidence.familiarity import (
    COMBINED,
    FOLDS,
    PARTS,
    Familiarity,
    Surroundings,
    combined_by_ranks,
    part_columns,
)
from vicinal.evaluation.gaussians import class_gaussians

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def rows(seed, n, d=6):
    rng = np.random.default_rng(seed)
    y = torch.from_numpy(rng.integers(0, 3, n))
    return torch.from_numpy(rng.normal(size=(n, d))) + 2 * torch.eye(3, d)[y], y


def fitted(n=300, d=6, k=10):
    x, y = rows(0, n, d)
    ned = NEDClassifier(k=k).fit(x, y)
    return x, y, ned, Surroundings.fit(x, y)


def test_the_combination_is_the_rank_of_the_harmonic_mean_of_ranks():
    rng = np.random.default_rng(0)
    held, new = rng.normal(size=(40, 3)).round(1), rng.normal(size=(25, 3)).round(1) * 2
    found = combined_by_ranks(held, new)
    want = reference.combined_by_ranks(held.tolist(), new.tolist())
    np.testing.assert_allclose(found, want)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1])
def test_p_values_keep_their_promise_however_the_parts_depend(alpha):
    rng = np.random.default_rng(1)
    share = []
    for _ in range(60):
        common = rng.normal(size=(1200, 1))
        scores = np.c_[common, common + 0.1 * rng.normal(size=(1200, 1)), -common]
        share.append((combined_by_ranks(scores[:400], scores[400:]) <= alpha).mean())
    assert np.mean(share) < alpha + 3 * np.std(share) / math.sqrt(60)
    assert np.mean(share) > 0.5 * alpha


def test_a_row_stranger_than_all_in_one_part_is_unfamiliar_whatever_the_others_say():
    held = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
    row = torch.full((1, 5), -9.0)
    row[0, 3] = 9.0
    assert float(combined_by_ranks(held, row)) <= 0.05
    assert float(combined_by_ranks(held, torch.full((1, 5), -9.0))) > 0.9


def test_each_part_is_what_its_name_says():
    x, y, ned, parts = fitted()
    new = rows(1, 8)[0]
    found = parts.scores(new, ned.neighborhood_of(new), ned.parameters_)
    column = dict(zip(PARTS, found.T, strict=True))
    unit = x / x.norm(dim=1, keepdim=True)
    for i, row in enumerate(new):
        near = sorted(reference.distance(row.tolist(), s) for s in x.tolist())
        turned = sorted(float(1 - u @ (row / row.norm())) for u in unit)
        assert float(column["near"][i]) == pytest.approx(near[4])
        assert float(column["last"][i]) == pytest.approx(near[9])
        assert float(column["direction_1"][i]) == pytest.approx(turned[0], abs=1e-9)
        assert float(column["direction_5"][i]) == pytest.approx(turned[4], abs=1e-9)
        mass = reference.log_sum_exp(-d / ned.temperature_ for d in near[:10])
        assert float(column["ned"][i]) == pytest.approx(-mass)
    plain, turned = class_gaussians(x, y, 3), class_gaussians(unit, y, 3)
    torch.testing.assert_close(column["mahalanobis"], plain.mahalanobis(new))
    torch.testing.assert_close(
        column["direction_mahalanobis"], turned.mahalanobis(new / new.norm(dim=1, keepdim=True))
    )
    relative = plain.mahalanobis(new) - plain.overall(new)
    torch.testing.assert_close(column["relative_mahalanobis"], relative)
    torch.testing.assert_close(column["residual"], plain.residual(new))


def test_a_support_row_left_out_is_scored_as_if_it_were_new():
    x, y, ned, parts = fitted(90)
    found = parts.left_out(torch.arange(90), ned.loo_neighborhood(), ned.parameters_)
    for row in (0, 17, 89):
        others = torch.arange(90) != row
        alone = Surroundings.fit(x[others], y[others])
        near = NEDClassifier(k=10).fit(x[others], y[others]).neighborhood_of(x[row : row + 1])
        new = alone.scores(x[row : row + 1], near, ned.parameters_)[0]
        exact = part_columns(("near", "last", "ned", "direction_1", "direction_5"))
        torch.testing.assert_close(found[row, exact], new[exact])
        close = part_columns(("mahalanobis", "direction_mahalanobis"))  # but for the shrinkage
        torch.testing.assert_close(found[row, close], new[close], rtol=0.03, atol=0.0)
    fold = parts.folds == parts.folds[17]
    (at,) = part_columns(("residual",))
    rest = class_gaussians(x[~fold], y[~fold], 3)
    torch.testing.assert_close(found[17, at], rest.residual(x[17:18])[0])
    assert sorted(parts.folds.unique().tolist()) == list(range(FOLDS))


@pytest.mark.parametrize("n", [2, 5, 60])
@pytest.mark.parametrize("d", [1, 3, 200])
def test_small_wide_and_constant_supports_are_scored(n, d):
    x, y = rows(3, n, max(d, 3))
    x = x[:, :d].contiguous()
    x[:, 0] = 1.0
    ned = NEDClassifier(k=1, temperature=1.0).fit(x, y)
    parts = Surroundings.fit(x, ned.support_.labels.codes)
    own = parts.left_out(torch.arange(n), ned.loo_neighborhood(), ned.parameters_)
    new = parts.scores(x + 1, ned.neighborhood_of(x + 1), ned.parameters_)
    assert bool(torch.isfinite(own).all())
    assert bool(torch.isfinite(new).all())
    assert bool((Familiarity.of(own, 0.05).p_values(new) > 0).all())


def test_directions_see_what_raw_distances_are_blind_to():
    """Foreign rows that are short and point elsewhere: nearer to every row than the rows are."""
    rng = np.random.default_rng(4)
    x = torch.from_numpy(rng.normal(size=(400, 30))) + 3 * torch.eye(30)[0]
    y = (x[:, 1] > 0).long()
    short = 0.05 * torch.from_numpy(rng.normal(size=(50, 30)))
    ned = NEDClassifier(k=10).fit(x, y)
    parts = Surroundings.fit(x, y)
    held = parts.left_out(torch.arange(400), ned.loo_neighborhood(), ned.parameters_)
    far = parts.scores(short, ned.neighborhood_of(short), ned.parameters_)
    caught = {
        used: float((Familiarity.of(held, 0.05, used).p_values(far) <= 0.05).double().mean())
        for used in (("near",), COMBINED)
    }
    assert caught["near",] < 0.05
    assert caught[COMBINED] > 0.7


def test_wrong_rates_parts_and_widths_earn_a_sentence():
    held = torch.zeros(5, len(PARTS))
    with pytest.raises(InputError, match="unfamiliar"):
        Familiarity.of(held, 0.0)
    with pytest.raises(InputError, match="no part 'nose'"):
        Familiarity.of(held, 0.05, ("nose",))
    with pytest.raises(InputError, match="dimensions"):
        combined_by_ranks(np.zeros((4, 2)), np.zeros((4, 3)))
    with pytest.raises(InputError, match="NaN"):
        combined_by_ranks(np.zeros((4, 1)), [[math.nan]])


def test_in_a_space_that_saw_labels_the_promise_holds_for_fresh_rows():
    flagged = []
    for seed in range(3):  # fewer rows than columns: every row the map was fitted to looks special
        rng = torch.Generator().manual_seed(seed)
        y = torch.arange(1150) % 3
        x = torch.randn(1150, 200, generator=rng) * torch.linspace(0.3, 3, 200)
        x += 4 * torch.eye(3, 200)[y]
        head = TrustHead.fit((x[:150], y[:150]), ned=NEDClassifier(k=30, space="whitened"))
        flagged.append(float((head.predict(x[150:]).verdict == "unfamiliar").mean()))
    assert 0.005 < sum(flagged) / 3 < 0.07  # it was 1.0 among rows the map had seen
