import numpy as np
import pytest
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

import reference
from vicinal.checks import InputError
from vicinal.evaluation import (
    map_at_r,
    mean_reciprocal_rank,
    r_precision,
    recall_at_k,
    retrieval_report,
)


@pytest.fixture
def found():
    """Neighbors of 30 queries among 40 support rows, by brute force, with ties impossible."""
    rng = np.random.default_rng(0)
    y, ys = rng.integers(0, 4, 30), rng.integers(0, 4, 40)
    x, xs = (
        rng.normal(size=(30, 3)) + y[:, None] * 0.5,
        rng.normal(size=(40, 3)) + ys[:, None] * 0.5,
    )
    distances = ((x[:, None] - xs) ** 2).sum(-1)
    return distances.argsort(1), y, ys, x, xs


def test_every_metric_is_its_definition_averaged_over_queries(found):
    index, y, ys, _, _ = found
    rows = [
        reference.retrieval(row, label, ys, int((ys == label).sum()))
        for row, label in zip(index, y, strict=True)
    ]
    report = retrieval_report(index, y, ys, ks=(1, 3))
    for k in (1, 3):
        assert report.recall[k] == pytest.approx(np.mean([row[0][k - 1] for row in rows]))
    assert report.map_at_r == pytest.approx(np.mean([row[1] for row in rows]))
    assert report.r_precision == pytest.approx(np.mean([row[2] for row in rows]))
    assert report.mrr == pytest.approx(np.mean([row[3] for row in rows]))
    assert (report.queries, report.lone) == (30, 0)


def test_pytorch_metric_learning_agrees(found):
    index, y, ys, x, xs = found
    theirs = AccuracyCalculator(
        include=("mean_average_precision_at_r", "r_precision", "precision_at_1"), k="max_bin_count"
    ).get_accuracy(*map(torch.tensor, (x, y, xs, ys)))
    assert map_at_r(index, y, ys) == pytest.approx(theirs["mean_average_precision_at_r"])
    assert r_precision(index, y, ys) == pytest.approx(theirs["r_precision"])
    assert recall_at_k(index, y, ys) == pytest.approx(theirs["precision_at_1"])


def test_within_one_set_a_row_is_not_its_own_neighbor_nor_its_own_peer(found):
    _, _, ys, _, xs = found
    distances = ((xs[:, None] - xs) ** 2).sum(-1)
    np.fill_diagonal(distances, np.inf)
    index = distances.argsort(1)[:, :-1]
    rows = [
        reference.retrieval(index[i], ys[i], ys, int((ys == ys[i]).sum()) - 1) for i in range(40)
    ]
    assert map_at_r(index, ys) == pytest.approx(np.mean([row[1] for row in rows]))
    with pytest.raises(InputError, match="row 0 is its own neighbor"):
        map_at_r(distances.argsort(1), ys)


def test_queries_of_a_class_without_support_are_counted_apart(found):
    index, y, ys, _, _ = found
    y = y.copy()
    y[:5] = 9
    report = retrieval_report(index, y, ys)
    assert (report.queries, report.lone) == (25, 5)
    assert report.mrr == mean_reciprocal_rank(index[5:], y[5:], ys)


def test_what_a_search_returns_is_taken_as_it_is(found):
    index, y, ys, _, _ = found

    class Returned:
        indices = torch.tensor(index)

    assert recall_at_k(Returned, torch.tensor(y), torch.tensor(ys), k=2) == recall_at_k(
        index, y, ys, k=2
    )


@pytest.mark.parametrize(
    ("index", "y", "ys", "says"),
    [
        (np.array([[0, 5]]), [0], [0, 1], "index the 2 support rows"),
        (np.array([[0.0]]), [0], [0], "integer indices"),
        (np.array([0]), [0], [0], "integer indices"),
        (np.array([[0]]), [7], [0], "no query has a support row"),
        (np.array([[0]]), [0, 1], [0], "1 labels"),
        (np.array([[0]]), [0], [0, 0], "search with k=2"),
    ],
)
def test_wrong_input_is_named(index, y, ys, says):
    with pytest.raises(InputError, match=says):
        map_at_r(index, np.array(y), np.array(ys))


def test_recall_beyond_the_list_is_refused():
    with pytest.raises(InputError, match="only 1 rows"):
        recall_at_k([[0]], [0], [0], k=2)
