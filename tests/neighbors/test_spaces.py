"""The map before the distances: what each named space does to rows, and what it does not."""

import pytest
import torch
from torch.testing import assert_close

import reference
from vicinal.checks import InputError
from vicinal.neighbors import spaces
from vicinal.neighbors.learned import Form, best_steps, learned_space, set_aside, start_of, walk
from vicinal.neighbors.spaces import (
    SPACES,
    Space,
    Whitening,
    plain_space,
    span_coordinates,
    whitened_space,
    within_covariance,
)


@pytest.fixture
def stretched(rng):
    """Three classes that differ in the first column; the second is loud noise."""
    y = torch.randint(0, 3, (90,), generator=rng)
    x = torch.randn(90, 5, generator=rng).double()
    x[:, 0] += 3 * y
    x[:, 1] *= 20
    return x, y


@pytest.mark.parametrize("scale", [1e-30, 1e20, 1e30])
def test_a_whitened_space_is_that_of_float64_where_squares_leave_float32(stretched, scale):
    x, y = stretched
    exact = whitened_space(x * scale, y)
    assert_close(whitened_space((x * scale).float(), y).matrix.double(), exact.matrix, rtol=1e-4,
                 atol=1e-5 * float(exact.matrix.abs().max()))  # fmt: skip


def test_raw_rows_are_the_rows_themselves(stretched):
    x, _ = stretched
    assert Space()(x) is x


def test_within_covariance_is_the_loop_over_rows_less_their_class_mean(stretched):
    x, y = stretched
    mean, within = within_covariance(x, y)
    assert_close(mean, x.mean(0))
    told = torch.zeros(5, 5, dtype=torch.float64)
    for c in range(3):
        own = x[y == c]
        for row in own:
            told += torch.outer(row - own.mean(0), row - own.mean(0)) / len(x)
    assert_close(within, told)


def test_soft_labels_that_are_one_hot_whiten_as_hard_ones_do(stretched):
    x, y = stretched
    hard, soft = whitened_space(x, y), whitened_space(x, torch.eye(3).double()[y])
    assert_close(hard.matrix, soft.matrix)


def test_soft_labels_count_each_row_in_every_class_by_its_share(stretched, rng):
    x, _ = stretched
    shares = torch.rand(90, 3, generator=rng).double()
    shares /= shares.sum(1, keepdim=True)
    told = torch.zeros(5, 5, dtype=torch.float64)
    for c in range(3):
        center = (shares[:, c, None] * x).sum(0) / shares[:, c].sum()
        for row, share in zip(x, shares[:, c], strict=True):
            told += share * torch.outer(row - center, row - center) / len(x)
    assert_close(within_covariance(x, shares)[1], told)


def test_collapsed_classes_far_apart_are_whitened_all_the_same(rng):
    y = torch.arange(60) % 3
    x = 100 * torch.eye(3)[y] + 1e-2 * torch.randn(60, 3, generator=rng)
    assert torch.isfinite(whitened_space(x, y, Whitening(0.1)).matrix).all()


@pytest.mark.parametrize("toward", ["sphere", "columns"])
def test_the_whitened_covariance_is_a_sphere_up_to_its_shrinkage(stretched, toward):
    x, y = stretched
    space = whitened_space(x, y, Whitening(1e-9, toward))
    _, within = within_covariance(x, y)
    assert_close(space.matrix.T @ within @ space.matrix, torch.eye(5).double(), atol=1e-6, rtol=0)
    assert space.unit == (toward == "sphere")


def test_whitening_toward_the_columns_does_not_depend_on_their_units(stretched):
    x, y = stretched
    units = torch.tensor([1.0, 1e3, 1e-3, 5.0, 0.2]).double()
    a = whitened_space(x, y, Whitening(0.3, "columns"))(x)
    b = whitened_space(x * units, y, Whitening(0.3, "columns"))(x * units)
    assert_close((a[:, None] - a).norm(dim=2), (b[:, None] - b).norm(dim=2))


def test_more_columns_than_rows_can_be_whitened(rng):
    x, y = torch.randn(12, 40, generator=rng), torch.arange(12) % 3
    for toward in ("sphere", "columns"):
        assert torch.isfinite(whitened_space(x, y, Whitening(0.3, toward))(x)).all()


def test_classes_of_one_row_each_leave_nothing_to_whiten(rng):
    x = torch.randn(6, 3, generator=rng)
    assert_close(whitened_space(x, torch.arange(6)).matrix, torch.eye(3))


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_a_constant_column_is_not_blown_up(rng, offset):
    x = torch.cat([torch.randn(50, 2, generator=rng), torch.full((50, 1), offset)], 1)
    y = torch.arange(50) % 2
    assert plain_space("standardized", x).matrix[2] == 0
    near = x[:1] + torch.tensor([[0.0, 0.0, max(offset * 1e-7, 1e-7)]])
    for space in (plain_space("standardized", x), whitened_space(x, y, Whitening(0.3, "columns"))):
        assert_close(space(near), space(x[:1]), atol=0.5, rtol=0)


def test_zero_rows_stay_zero_under_unit_rows():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    assert_close(plain_space("unit", x)(x), torch.tensor([[0.0, 0.0], [0.6, 0.8]]))


@pytest.mark.parametrize("name", ["unit", "centered-unit"])
def test_one_column_has_no_direction(name):
    with pytest.raises(InputError, match="one column"):
        plain_space(name, torch.ones(4, 1))


def test_rows_that_are_all_the_same_cannot_be_standardized():
    with pytest.raises(InputError, match="constant"):
        plain_space("standardized", torch.ones(4, 3))


def test_every_map_is_differentiable(stretched):
    x, y = stretched
    maps = [plain_space(name, x) for name in SPACES[:4]]
    maps += [whitened_space(x, y), learned_space(x, y, steps=2)]
    for space in maps:
        rows = x[:3].clone().requires_grad_()
        assert torch.autograd.gradcheck(space, (rows,)), space.name


def test_learning_starts_at_whitening_and_lowers_the_leave_one_out_loss(stretched):
    x, y = stretched
    begin = start_of(x, y, Whitening(0.6))
    (first, eye), *_, (last, b) = walk(begin, y, 30)
    assert (first, last) == (0, 30)
    assert_close(eye, torch.eye(len(eye), dtype=eye.dtype))

    def loss(rows):
        z = torch.nn.functional.normalize(rows)
        return min(reference.snnl(z, y, t) for t in (0.03, 0.1, 0.3, 1.0))

    assert loss(begin.rows @ b) < loss(begin.rows)


def test_a_learned_space_is_the_same_each_time(stretched):
    x, y = stretched
    assert_close(learned_space(x, y).matrix, learned_space(x, y).matrix, rtol=0, atol=0)


def test_rows_set_aside_are_of_every_class_in_whatever_order_they_come():
    aside = set_aside(200)
    assert len((torch.arange(200) % 5)[aside].unique()) == 5
    assert int(aside.sum()) == 40


def test_a_handful_of_rows_is_not_learned_from(rng):
    assert best_steps(torch.randn(10, 3, generator=rng), torch.arange(10) % 2, Whitening()) == 0


def test_where_no_step_is_taken_the_learned_space_is_the_whitened_one_at_full_rank(rng):
    x, y = torch.randn(90, 80, generator=rng), torch.arange(90) % 3  # 80 columns, 64 directions
    learned, whitened = learned_space(x, y, steps=0), whitened_space(x, y)
    assert learned.name == "learned"
    assert_close(learned(x), whitened(x), rtol=0, atol=0)


@pytest.fixture
def wide(rng):
    """Ninety rows of 200 columns, some in units of their own, one constant."""
    y = torch.arange(90) % 3
    x = torch.randn(90, 200, generator=rng).double() * torch.linspace(0.2, 4, 200)
    x[:, :3] += 4 * torch.eye(3).double()[y]
    x[:, 7] = 2.0
    return x, y


@pytest.mark.parametrize("toward", ["sphere", "columns"])
@pytest.mark.parametrize("shrinkage", [0.1, 0.6, 1.0])
def test_more_columns_than_rows_whiten_as_any_do(wide, monkeypatch, toward, shrinkage):
    x, y = wide
    found = whitened_space(x, y, Whitening(shrinkage, toward))
    monkeypatch.setattr(spaces, "WIDE", torch.inf)
    told = whitened_space(x, y, Whitening(shrinkage, toward))
    new = torch.randn(4, 200, generator=torch.Generator().manual_seed(1)).double()
    assert_close(torch.cdist(found(new), found(x)), torch.cdist(told(new), told(x)))


@pytest.mark.parametrize("form", [Form("raw"), Form("unit"), Form("centered-unit"),
                                  Form("whitened"),
                                  Form("whitened", Whitening(0.3, "columns"))])  # fmt: skip
def test_rows_in_coordinates_of_their_span_are_as_far_from_one_another(wide, form):
    x, y = wide
    narrow, rows = form.in_span(x, span_coordinates(x))
    assert (rows is x) == (form.whitening.toward == "columns")
    rest = torch.arange(90) >= 6
    own, all_ = form(x[rest], y[rest])(x), narrow(rows[rest], y[rest])(rows)
    assert_close(*(((z[:, None] - z) ** 2).sum(2) for z in (own, all_)))
