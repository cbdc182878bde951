"""An audit of rows that no space suits: each is handled, with finite answers, or said."""

import numpy as np
import pytest

from vicinal.studies import AuditSettings, audit


def cloud(n, seed, classes=3, dims=6):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    return rng.normal(size=(n, dims)) + 2 * np.eye(classes, dims)[y], y


def collapsed(n, seed):
    """Six classes on a line: fewer directions than their borders need."""
    z, y = cloud(n, seed, classes=6)
    return np.outer(y + 0.1 * z[:, 0], np.ones(5)), y


def wide(n, seed):
    z, y = cloud(n, seed)
    return np.column_stack([z, 0.3 * np.random.default_rng(seed + 9).normal(size=(n, 300))]), y


def constant(n, seed):
    z, y = cloud(n, seed)
    return np.column_stack([z, np.full((n, 4), 1e6)]), y


def rare(n, seed):
    """Classes of one and of three rows: there are folds of the support that do not know them."""
    z, y = cloud(n, seed)
    y[:4] = [3, 4, 4, 4]
    return z, y


@pytest.mark.parametrize("made", [collapsed, wide, constant, rare])
def test_rows_that_no_space_suits_are_audited_with_finite_answers(made):
    settings = AuditSettings(space="standardized" if made is collapsed else "fit")
    report = audit(support=made(90, 0), query=made(60, 1), settings=settings)
    assert np.isfinite(report.cases.confidence).all()
    kept = next(head for head in report.heads if head.name == report.recommendation.kept)
    assert kept.nll is not None
    assert kept.accuracy > 0.5
    said = any("too few to set 6 classes apart" in sentence for sentence in report.warnings)
    assert said == (made is collapsed)
