"""What counts as numbers: every kind that has an exact reading, and a sentence for the rest."""

import numpy as np
import pytest
import torch

from vicinal.checks import (
    InputError,
    as_matrix,
    as_tensor,
    check_positive,
    check_share,
    check_whole,
)
from vicinal.confidence import ConformalSets, KNNClassifier, NEDClassifier, TrustHead, TrustScore

ROWS = [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        tuple(map(tuple, ROWS)),
        np.array(ROWS, dtype=">f8"),
        np.array(ROWS, dtype=np.longdouble),
        np.array(ROWS, dtype=np.uint64),
        np.array(ROWS)[::-1][::-1],
        np.ma.masked_array(ROWS),
        torch.tensor(ROWS, dtype=torch.bfloat16),
        torch.tensor(ROWS, dtype=torch.float8_e5m2),
        torch.tensor(ROWS, requires_grad=True),
    ],
    ids=lambda rows: str(getattr(rows, "dtype", type(rows).__name__)),
)
def test_numbers_of_any_kind_are_read_exactly(rows):
    assert as_matrix(rows, "x").tolist() == ROWS


def test_unsigned_numbers_beyond_int64_stay_positive():
    assert as_tensor(np.array([2**64 - 1], dtype=np.uint64), "x").tolist() == [2.0**64]


@pytest.mark.parametrize(
    ("rows", "fix"),
    [
        ([[1.0], [1.0, 2.0]], "array or tensor of shape"),
        (np.array(ROWS) + 1j, "dtype=float"),
        (torch.tensor(ROWS).to(torch.complex64), "real part"),
        (torch.tensor(ROWS).to_sparse(), r"to_dense\(\)"),
        (torch.tensor(ROWS, device="meta"), "no values"),
        (np.ma.masked_array(ROWS, mask=[[0, 1], [0, 0]]), "masked entries"),
        (np.array([["a"]]), "dtype=float"),
        ((row for row in ROWS), "dtype=float"),
    ],
)
def test_what_holds_no_real_numbers_is_told_how_to(rows, fix):
    with pytest.raises(InputError, match=fix):
        as_matrix(rows, "x")


@pytest.mark.parametrize("value", [True, 2.0, -1, "3", None, float("nan")])
def test_only_whole_numbers_count(value):
    with pytest.raises(InputError, match="whole number of at least 0"):
        check_whole(value, "k")
    check_whole(np.int64(2), "k")


@pytest.mark.parametrize("value", [0, 1, -0.5, float("nan"), "high", None, True])
def test_a_share_lies_between_0_and_1(value):
    with pytest.raises(InputError, match="between 0 and 1"):
        check_share(value, "target")


@pytest.mark.parametrize("value", ["0.5", None, [0.5], float("nan")])
def test_a_parameter_that_is_no_number_is_refused_where_it_is_used(value):
    x, y = np.eye(4), [0, 1, 0, 1]
    for call in (
        lambda: check_positive(value, "temperature"),
        lambda: TrustScore(alpha=value).fit(x, y),
        lambda: TrustHead.fit((x, y), ned=NEDClassifier(k=2), unfamiliar=value),
        lambda: KNNClassifier(k=1, smoothing=value).fit(x, y),
        lambda: ConformalSets(KNNClassifier(k=1).fit(x, y), alpha=value).calibrate(x, y),
        lambda: ConformalSets(KNNClassifier(k=1).fit(x, y), lam=value).calibrate(x, y),
        lambda: ConformalSets(KNNClassifier(k=1).fit(x, y), k_reg=value).calibrate(x, y),
    ):
        with pytest.raises(InputError):
            call()
