"""Class Gaussians: each distance against scikit-learn's covariances and plain linear algebra."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS

from vicinal.evaluation import outlier_scores
from vicinal.evaluation.gaussians import EXACTLY, PRINCIPAL, class_gaussians, gaussians_of, moments


@pytest.fixture
def labeled():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 80)
    x = rng.normal(size=(80, 5)) @ rng.normal(size=(5, 5)) + 4 * np.eye(3, 5)[y] + 2
    return torch.tensor(x), torch.tensor(y), torch.tensor(rng.normal(size=(9, 5)) * 3)


def test_distances_are_those_under_scikit_learns_shrunk_covariances(labeled):
    x, y, query = labeled
    means = np.stack([x[y == c].mean(0) for c in range(3)])
    within = OAS(assume_centered=True).fit(x - means[y])
    total = OAS().fit(x)
    fitted = class_gaussians(x, y, 3)
    nearest = np.min([within.mahalanobis(query - mean) for mean in means], 0)
    np.testing.assert_allclose(fitted.mahalanobis(query), nearest, rtol=1e-8)
    np.testing.assert_allclose(fitted.overall(query), total.mahalanobis(query), rtol=1e-8)


def test_the_residual_is_what_the_fewest_principal_directions_leave(labeled):
    x, y, query = labeled
    centered = (x - x.mean(0)).numpy()
    _, sizes, directions = np.linalg.svd(centered, full_matrices=False)
    share = np.cumsum(sizes**2) / np.sum(sizes**2)
    kept = directions[: int(np.argmax(share >= PRINCIPAL)) + 1]
    for row, found in zip(query - x.mean(0), class_gaussians(x, y, 3).residual(query), strict=True):
        rest = row.numpy() - kept.T @ (kept @ row.numpy())
        assert float(found) == pytest.approx(np.linalg.norm(rest), rel=1e-6)


def test_taking_rows_out_of_the_moments_is_fitting_without_them(labeled):
    x, y, query = labeled
    center = x.mean(0)
    gone = torch.arange(0, 80, 4)
    kept = torch.tensor([i for i in range(80) if i % 4])
    whole, part = (moments(x[i], y[i], 3, center) for i in (torch.arange(80), gone))
    less = gaussians_of(whole.without(part), center)
    anew = class_gaussians(x[kept], y[kept], 3)
    for name in ("mahalanobis", "overall", "residual"):
        torch.testing.assert_close(getattr(less, name)(query), getattr(anew, name)(query))


def test_a_row_left_out_is_at_the_distance_that_a_fit_without_it_gives(labeled):
    x, y, _ = labeled
    whole = class_gaussians(x, y, 3)
    found, overall = whole.left_out(x, y), whole.left_out_overall(x)
    for row in range(0, 80, 11):
        others = torch.arange(80) != row
        alone = class_gaussians(x[others], y[others], 3)
        shrunk = dataclasses.replace(alone)
        # the same shrinkage, in absolute terms, and the same divisor
        for name in ("within", "total"):
            share, level = getattr(whole, f"_{name}")[1], getattr(whole, name).diagonal().mean()
            matrix = getattr(alone, name) * 79 / 80
            fixed = torch.linalg.cholesky((1 - share) * matrix + share * level * torch.eye(5))
            shrunk.__dict__[f"_{name}"] = (torch.linalg.inv(fixed).T, share)
        one = x[row : row + 1]
        torch.testing.assert_close(found[row], shrunk.mahalanobis(one)[0])
        torch.testing.assert_close(overall[row], shrunk.overall(one)[0])


def test_a_class_of_one_row_left_out_has_no_mean():
    x, y = torch.tensor([[0.0], [1.0], [2.0], [30.0]]).double(), torch.tensor([0, 0, 0, 2])
    found = class_gaussians(x, y, 3).left_out(x, y)
    assert bool(torch.isfinite(found).all())
    assert int(found.argmax()) == 3


def test_more_dimensions_than_rows_constant_columns_and_one_class_are_no_obstacle():
    rng = np.random.default_rng(1)
    x = torch.tensor(rng.normal(size=(12, 40)))
    x[:, 7] = 3.0
    fitted = class_gaussians(x, torch.zeros(12, dtype=torch.long), 1)
    odd = x[:1].clone()
    odd[:, 7] = 4.0  # a column that never varied does
    for score in (fitted.mahalanobis, fitted.overall, fitted.residual):
        assert bool(torch.isfinite(score(x)).all())
        assert float(score(odd)) > float(score(x[:1]))
    same = class_gaussians(torch.ones(4, 3), torch.tensor([0, 0, 1, 1]), 2)
    assert float(same.mahalanobis(torch.ones(1, 3))) == 0
    assert float(same.mahalanobis(torch.full((1, 3), 2.0))) == pytest.approx(3)


def test_the_scores_do_not_depend_on_the_order_of_rows(labeled):
    x, y, query = labeled
    first = outlier_scores(x, query, labels=y, k=5)
    order, other = torch.randperm(80), torch.randperm(9)
    again = outlier_scores(x[order], query[other], labels=y[order], k=5)
    for name in ("relative_mahalanobis", "vim", "trust_score"):
        assert torch.equal(first[name][other], again[name])


def test_directions_are_found_where_float32_does_not_converge(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    rows, codes = torch.randn(8, EXACTLY + 8, generator=draw), torch.arange(8) % 2
    expected = class_gaussians(rows, codes, 2).residual(rows)
    whole = torch.linalg.eigh

    def eigh(matrix):
        if matrix.dtype == torch.float32:  # as LAPACK's does of some covariances of few rows
            raise torch.linalg.LinAlgError("failed to converge")
        return whole(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", eigh)
    found = class_gaussians(rows, codes, 2).residual(rows)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
