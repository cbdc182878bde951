"""Names and codes: every kind of label is coded once, mixed and missing ones earn a sentence."""

import datetime
import enum

import numpy as np
import pytest
import torch

from vicinal.checks import InputError
from vicinal.labels import (
    UNKNOWN,
    UNLABELED,
    Labels,
    codes_of,
    folds_of,
    joined,
    labels_of,
    named,
)


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


KINDS = {
    "ints": [3, 1, 3],
    "tensor": torch.tensor([3, 1, 3]),
    "tensor scalars": [torch.tensor(3), torch.tensor(1), torch.tensor(3)],
    "numpy scalars": [np.int32(3), np.int64(1), np.int32(3)],
    "whole floats": np.array([3.0, 1.0, 3.0]),
    "bools": [True, False, True],
    "text": ["b", "a", "b"],
    "object text": np.array(["b", "a", "b"], dtype=object),
    "object numbers": np.array([3, 1, 3], dtype=object),
    "bytes": [b"b", b"a", b"b"],
    "dates": [datetime.date(2020, 2, 1), datetime.date(2020, 1, 1), datetime.date(2020, 2, 1)],
    "numpy dates": np.array(["2020-02", "2020-01", "2020-02"], dtype="datetime64[M]"),
    "a column": np.array([[3], [1], [3]]),
}


@pytest.mark.filterwarnings("ignore:A column-vector")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_label_is_coded_in_sorted_order_and_named_again(kind):
    y = KINDS[kind]
    found = labels_of(y, 3)
    assert found.codes.tolist() == [1, 0, 1]
    again = np.asarray(named(found.classes, found.codes, None))
    assert again.tolist() == np.asarray(y).reshape(-1).tolist()
    assert codes_of(y, 3, found).tolist() == [1, 0, 1]
    assert joined(found, found).codes.tolist() == [1, 0, 1, 1, 0, 1]


def test_labels_without_an_order_are_sorted_by_how_they_are_written():
    found = labels_of([Size.SMALL, Size.LARGE], 2)
    assert found.classes.tolist() == [Size.LARGE, Size.SMALL]
    assert codes_of([Size.SMALL], 1, found).tolist() == [1]


def test_rows_without_label_and_of_unknown_classes_have_codes_below_zero():
    words = labels_of(["cat", "dog"], 2)
    assert codes_of(["dog", None, "cow"], 3, words, unlabeled=True).tolist() == [
        1, UNLABELED, UNKNOWN,
    ]  # fmt: skip
    assert codes_of([None, None], 2, words, unlabeled=True).tolist() == [UNLABELED] * 2
    numbers = labels_of([0, 4], 2)
    assert codes_of([4, -1, 2], 3, numbers, unlabeled=True).tolist() == [1, UNLABELED, UNKNOWN]
    assert codes_of([4, -1, 2], 3, numbers).tolist() == [1, UNKNOWN, UNKNOWN]
    signed = labels_of([-1, 1], 2)
    assert codes_of([-1, 1], 2, signed, unlabeled=True).tolist() == [0, 1]


def test_classes_in_any_order_number_other_labels():
    assert codes_of(["a", "c"], 2, Labels(np.array(["c", "a", "b"]))).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("y", "says"),
    [
        ([1, "1"], "mixes numbers like 1 and text like '1'"),
        ([True, 2], "mixes numbers like 2 and truth values like True"),
        (["a", b"a"], "mixes bytes like b'a' and text like 'a'"),
        (["a", None], r"row 1 has no label \(None\)"),
        (["a", float("nan")], "contains NaN or infinity: row 1"),
        ([1.0, float("nan")], "contains NaN or infinity: row 1"),
        (np.array(["2020", "NaT"], dtype="datetime64[Y]"), "contains NaN or infinity: row 1"),
        ([0.5, 1.0], "Unknown label type: continuous"),
        (torch.tensor([0.0, 1.0]), "Unknown label type: continuous"),
        (np.zeros((2, 2, 2)), "should be a 1d array"),
        (np.ones((2, 3), dtype=int), "must be float soft labels"),
        ([1, 2, 3], "one label for each of the 2 rows"),
        (None, "requires y to be passed"),
    ],
)
def test_what_is_no_label_earns_a_sentence(y, says):
    with pytest.raises(InputError, match=says):
        labels_of(y, 2)


@pytest.mark.parametrize(
    ("y", "known", "says"),
    [
        (["0"], [0, 1], "kinds of labels differ: `y` holds text like .*numbers like"),
        ([0], ["0", "1"], "kinds of labels differ: `y` holds numbers like .*text like"),
        ([b"a"], ["a", "b"], "kinds of labels differ: `y` holds bytes like .*text like"),
        ([[0.5, 0.5]], [0, 1], "soft labels"),
    ],
)
def test_labels_of_another_kind_than_the_supports_are_refused(y, known, says):
    with pytest.raises(InputError, match=says):
        codes_of(y, 1, labels_of(known, 2))


def test_whole_floats_and_truth_values_are_the_numbers_they_equal():
    assert codes_of(np.array([1.0, 0.0]), 2, labels_of([0, 1], 2)).tolist() == [1, 0]
    assert codes_of([True, False], 2, labels_of([0, 1], 2)).tolist() == [1, 0]


def test_labels_of_any_hashable_kind_are_classes():
    pairs = [(1, "a"), (0, "b"), (1, "a")]
    found = labels_of(pairs, 3)
    assert found.codes.tolist() == [1, 0, 1]
    assert found.classes.tolist() == [(0, "b"), (1, "a")]
    assert labels_of([frozenset({1}), frozenset({2})], 2).codes.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("y", "said"),
    [
        ([{"y": 1}, {"y": 2}], "not hashable"),
        ([[1], [1, 2]], "ragged list"),
        (np.ma.masked_array([1, 2], mask=[0, 1]), "masked entries"),
        (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), "continuous"),
        (torch.tensor([1, 2], device="meta"), "no values"),
        (torch.tensor([1j, 2j]), "complex"),
    ],
)
def test_what_is_no_list_of_labels_is_a_sentence(y, said):
    with pytest.raises(InputError, match=said):
        labels_of(y, 2)


def test_soft_labels_in_half_precision_with_a_gradient_are_read():
    soft = torch.eye(2, dtype=torch.bfloat16).requires_grad_()
    assert labels_of(soft, 2).codes.tolist() == [[1, 0], [0, 1]]


def test_every_fold_gets_its_share_of_every_class():
    codes = torch.tensor([0] * 7 + [1] * 5 + [2] * 8)[torch.randperm(20)]
    fold = folds_of(codes, 4)
    for c in range(3):
        counts = torch.bincount(fold[codes == c], minlength=4)
        assert int(counts.max() - counts.min()) <= 1
    assert torch.equal(folds_of(torch.eye(3)[codes], 4), fold)  # soft labels: of the top class
