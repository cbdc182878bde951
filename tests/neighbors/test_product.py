"""Products by either of torch's libraries: the same numbers, the same neighbors."""

from __future__ import annotations

import pytest
import torch

from vicinal.neighbors import ExactSearch
from vicinal.neighbors import product as chosen
from vicinal.neighbors.product import LARGE, add_product, product, products

X = torch.randn(96, 160, generator=torch.Generator().manual_seed(0))
W = torch.randn(300, 160, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=[True, False], ids=["oneDNN", "MKL"])
def other(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether oneDNN is said to be the quicker."""
    if request.param and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(chosen, "_mkl_is_slow", lambda: request.param)
    assert chosen.takes_other(X, W) is request.param
    return request.param


@pytest.mark.parametrize("lies", ["in rows", "in columns", "every third row"])
@pytest.mark.parametrize("shape", [None, (300,), (96, 300)])
def test_a_product_is_that_of_float64_however_the_matrix_lies(other, lies, shape):
    w = {
        "in rows": W,
        "in columns": W.T.contiguous().T,
        "every third row": W.repeat_interleave(3, 0)[::3],
    }[lies]
    added = (
        None if shape is None else torch.randn(shape, generator=torch.Generator().manual_seed(2))
    )
    exact = X.double() @ W.double().T + (0 if added is None else added.double())
    torch.testing.assert_close(product(X, w, added).double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("times", [1, 20], ids=["small", "large"])
def test_a_product_is_added_in_place_to_a_part_of_a_larger_matrix(other, times):
    x, whole = X.repeat(times, 1), torch.ones(96 * times, 3, 300)
    assert (x.numel() * len(W) >= LARGE) is (times > 1)
    found = add_product(whole[:, 1], x, W)
    assert found.data_ptr() == whole[:, 1].data_ptr()
    exact = torch.ones(96 * times, 3, 300, dtype=torch.float64)
    exact[:, 1] += x.double() @ W.double().T
    torch.testing.assert_close(whole.double(), exact, rtol=1e-5, atol=1e-4)


def test_products_are_those_of_each_pair(other):
    x, w = torch.stack([X, 2 * X]), torch.stack([W, -W]).mT.contiguous().mT
    one_by_one = torch.stack([a.double() @ b.double().T for a, b in zip(x, w, strict=True)])
    torch.testing.assert_close(products(x, w).double(), one_by_one, rtol=1e-5, atol=1e-4)


def test_what_will_be_differentiated_goes_by_torchs_own_product(other):
    w = W.clone().requires_grad_()
    product(X, w).sum().backward()
    torch.testing.assert_close(w.grad, X.sum(0).expand_as(W), rtol=1e-4, atol=1e-4)


def test_a_search_answers_the_same_to_the_last_bit_by_either_library(monkeypatch):
    rows = torch.randn(20_000, 40, generator=torch.Generator().manual_seed(3))
    search = ExactSearch().build(rows)
    found = []
    for slow in (True, False):
        monkeypatch.setattr(chosen, "_mkl_is_slow", lambda slow=slow: slow)
        found.append(search.query(rows[:600], 20))
    assert torch.equal(found[0].indices, found[1].indices)
    assert torch.equal(found[0].distances, found[1].distances)
