"""A search in blocks is the search in memory, bit for bit, with ties and duplicates."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vicinal.capture.sources import ArrayRows
from vicinal.checks import InputError
from vicinal.neighbors.search import ExactSearch
from vicinal.neighbors.search.sharded import Mapped, ShardedSearch
from vicinal.neighbors.spaces import plain_space


def rows_with_ties(n, d, seed, dtype=torch.float32):
    """Few distinct values, and every third row twice: many equal distances."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 3, (n, d), generator=generator).to(dtype)
    x[::3] = x[0]
    return x


def same(a, b):
    return torch.equal(a.distances, b.distances) and torch.equal(a.indices, b.indices)


def in_blocks(rows, metric, block):
    search = ShardedSearch(metric).build(ArrayRows(rows))
    search.memory = block * 4 * rows.shape[1] * rows.element_size()
    assert search.block == block
    return search


@settings(max_examples=40, deadline=None)
@given(
    st.integers(4, 60), st.integers(1, 4), st.integers(1, 70), st.integers(0, 10_000),
    st.sampled_from(["sqeuclidean", "euclidean", "cosine"]), st.booleans(),
)  # fmt: skip
def test_a_search_in_blocks_is_the_search_in_memory(n, d, block, seed, metric, double):
    x = rows_with_ties(n, d, seed, torch.float64 if double else torch.float32)
    whole, parts = ExactSearch(metric).build(x), in_blocks(x, metric, block)
    for k in (1, n // 2, n - 1):
        assert same(whole.query(x, k), parts.query(x, k))
        own = torch.arange(n)
        assert same(whole.query(x, k, exclude=own), parts.query(x, k, exclude=own))


def test_smooth_rows_agree_to_the_last_bit_too():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9_000, 16, generator=generator) + 100
    whole, parts = ExactSearch().build(x), in_blocks(x, "sqeuclidean", 2_500)
    own = torch.arange(400)
    assert same(whole.query(x[:400], 20, exclude=own), parts.query(x[:400], 20, exclude=own))


@pytest.mark.parametrize("name", ["unit", "centered-unit", "standardized"])
def test_rows_mapped_block_by_block_are_the_mapped_rows(name):
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    space = plain_space(name, x)
    source = Mapped(ArrayRows(x), space)
    assert torch.equal(torch.cat([part for _, part in source.blocks(7)]), space(x))
    search = ShardedSearch().build(source)
    assert same(search.query(space(x), 5), ExactSearch().build(space(x)).query(space(x), 5))


def test_rows_are_read_by_number_in_the_order_asked():
    x = torch.arange(20.0)[:, None]
    search = in_blocks(x, "sqeuclidean", 3)
    assert search.rows(torch.tensor([7, 2, 19])).flatten().tolist() == [7, 2, 19]
    assert torch.equal(search.rows(slice(4, 9)), x[4:9])
    assert search.rows(slice(0, 0)).shape == (0, 1)


def test_more_neighbors_than_rows_are_refused_before_anything_is_read():
    search = in_blocks(torch.zeros(3, 1), "sqeuclidean", 1)
    with pytest.raises(InputError, match="k"):
        search.query(torch.zeros(1, 1), 3, exclude=[0])


def test_a_support_in_shards_is_not_edited():
    search = in_blocks(torch.zeros(3, 1), "sqeuclidean", 1)
    for edit in (search.add, search.remove):
        with pytest.raises(InputError, match="read, not edited"):
            edit([0])
