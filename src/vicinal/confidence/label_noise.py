r"""Which given labels are wrong, how many, and what is the right one: from probabilities alone.

Every row has a given label g and *honest* probabilities :math:`p_k(x)`: leave-one-out or out of
fold, its own label never looked at. Labels are given wrongly by a noise matrix
:math:`T_{jk} = P(\text{given}=j \mid \text{true}=k)`, so

.. math::
   P(\text{true}=k \mid x, g) \propto p_k(x)\, T_{gk} \qquad
   \text{score} = 1 - P(\text{true}=g \mid x, g).

Where T is even this ranks by :math:`-p_g`; where labels go astray in one direction, that direction
counts more. T must not take classes that overlap for labels that are wrong. Both put label j on
rows the probabilities call k, but overlap fades as :math:`p_j` falls, and noise does not. Let
:math:`l_{jk}` be the share of given j among the half of these rows with the lower :math:`p_j`,
:math:`u_{jk}` among the others. If what overlap adds is spread exponentially over the rows, the
lower half holds :math:`\lambda/(1 + 2\lambda)` of it with
:math:`\lambda = (1-\ln 2)/(2 \ln 2)`, and what stays at the floor is

.. math:: T_{jk} = l_{jk} - \lambda\,(u_{jk} - l_{jk})_+ .

How many labels are wrong cannot be known from p alone, as a confusion that fades may be overlap or
careless labeling of hard rows. Three readings take all that fades for overlap, as T does: of all
cells (row, class) together, whose least likely quarter is compared with the next; of the pairs of
classes, as far as these differ by more than chance; and of the pairs' sums, where a class has few
rows. Two take less: the pairs' lower halves as they are, and the confident joint of Northcutt et
al. (2021), to which every confident contradiction is a wrong label. With :math:`N_0` the larger of
the first two readings (or its geometric mean with the third, where that is larger) and :math:`N_1`
the geometric mean of the last two (never above the last),

.. math:: 1 + N = (1 + N_1)^{a}\, (1 + N_0)^{1 - a}

where a is the share of rows that have a class likelier than all others together once the noise is
taken out, :math:`\max_k p_k > (1 - N_0/n)/2`: a head that seldom knows cannot contradict. The
interval reaches from the first two readings to the confident joint, widened by standard errors;
from 0 where p names less than half of the given labels, since then all may be overlap.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from scipy.special import chdtri
from torch import Tensor

from vicinal.checks import InputError
from vicinal.labels import at_codes

OVERLAP = (1 - math.log(2)) / (2 * math.log(2))  # lambda
PSEUDO_ROWS = 20  # of the mean noise, added to each class's rows
PSEUDO_LABELS = 0.2  # wrong ones, added to those of each pair of classes: its direction's prior
AMBIGUOUS = 3.0  # two labels are plausible when their posteriors differ by less than this factor
ALIKE = 0.25  # told apart no better than if a quarter of the labels were exchanged
FEW_NAMED = 0.5  # below it a head that understands little cannot be told from wrong labels
Z = 1.96


class Halves(NamedTuple):
    """Of the rows called k (``named``): the shares of given j in the halves of lower, upper p_j."""

    named: Float[Tensor, " c"]
    lower: Float[Tensor, "c c"]
    upper: Float[Tensor, "c c"]

    @property
    def floor(self) -> Float[Tensor, "c c"]:
        """What is left of ``lower`` without overlap: T, off its diagonal."""
        return without_overlap(self.lower, self.upper)


class RowNoise(NamedTuple):
    """What is said of every label."""

    score: Float[Tensor, " n"]  # larger is more suspect
    suggested: Int[Tensor, " n"]  # the most plausible other class
    lead: Float[Tensor, " n"]  # of the suggested over the given one, in nats
    worse: Bool[Tensor, " n"]  # whether the probabilities, too, prefer what is suggested
    ambiguous: Bool[Tensor, " n"]


class WrongLabels(NamedTuple):
    """The estimated number, with the interval between the two extreme readings."""

    total: float
    low: float
    high: float
    pairs: Float[Tensor, "c c 3"]  # [given, true]: count, low, high


class LabelNoise(NamedTuple):
    """What :func:`label_noise` found; rows and classes are positions."""

    scores: Float[Tensor, " n"]  # larger is more suspect
    suggested: Int[Tensor, " n"]  # the most plausible other class
    flagged: Int[Tensor, " s"]  # as many rows as are estimated to be wrong, most suspect first
    ambiguous: Bool[Tensor, " n"]
    wrong: WrongLabels
    alike: list[tuple[int, int, float]]  # classes that may be one, and how far they are told apart
    matrix: Float[Tensor, "c c"]  # T[given, true]


def label_noise(log_probs: Float[Tensor, "n c"], codes: Int[Tensor, " n"]) -> LabelNoise:
    """Score every label, estimate how many are wrong, and flag that many.

    A label that is the only one of its class cannot be checked: left out, nothing of its class is
    there. It scores 0 and says nothing of how labels go wrong. A row is flagged only if the
    probabilities, too, prefer what is suggested to what is given.

    >>> p = torch.tensor([[0.9, 0.1]] * 40 + [[0.1, 0.9]] * 40).double()
    >>> codes = torch.tensor([1] * 4 + [0] * 36 + [1] * 40)
    >>> found = label_noise(p.log(), codes)
    >>> sorted(found.flagged.tolist()), found.suggested[:4].tolist()
    ([0, 1, 2, 3], [0, 0, 0, 0])
    """
    log_p = never_zero(_checked(log_probs, codes), len(codes))
    checkable = torch.bincount(codes, minlength=log_p.shape[1])[codes] > 1
    usable = checkable if checkable.any() else ~checkable
    halves = label_halves(log_p[usable], codes[usable])
    matrix = noise_matrix(halves)
    rows = row_noise(log_p, codes, matrix, checkable)
    wrong = wrong_labels(log_p[usable], codes[usable], halves)
    # Ties: the greater lead of the suggestion first, then the earlier row.
    order = torch.argsort(rows.lead, descending=True, stable=True)
    order = order[torch.argsort(rows.score[order], descending=True, stable=True)]
    flagged = order[rows.worse[order]][: round(wrong.total)]
    alike = classes_alike(log_p, codes)
    return LabelNoise(rows.score, rows.suggested, flagged, rows.ambiguous, wrong, alike, matrix)


def row_noise(
    log_probs: Float[Tensor, "n c"],
    codes: Int[Tensor, " n"],
    matrix: Float[Tensor, "c c"],
    checkable: Bool[Tensor, " n"],
) -> RowNoise:
    """Each row by itself, once the noise matrix is known."""
    posterior = true_label_log_posterior(log_probs, codes, matrix)
    others = posterior.scatter(1, codes[:, None], -math.inf)
    best, suggested = others.max(1)
    first, second = posterior.topk(2, dim=1).values.unbind(1)
    return RowNoise(
        torch.where(checkable, others.logsumexp(1).exp().clamp_max(1), 0.0),
        suggested,
        best - at_codes(posterior, codes),
        checkable & (at_codes(log_probs, suggested) > at_codes(log_probs, codes)),
        checkable & (first - second < math.log(AMBIGUOUS)),
    )


def confident_joint(
    log_probs: Float[Tensor, "n c"], codes: Int[Tensor, " n"]
) -> Float[Tensor, "c c"]:
    r"""Rows by given and confidently other class (Northcutt et al. 2021, eq. 1).

    A row counts at the likeliest class k with :math:`p_k(x) \ge t_k`, the mean of :math:`p_k` over
    the rows given k; a row without such a class not at all.
    """
    count, p = log_probs.shape[1], log_probs.exp()
    sizes = torch.bincount(codes, minlength=count)
    usual = p.new_zeros(count).index_add_(0, codes, at_codes(p, codes)) / sizes
    # Less than rounding below the mean will do; a class without rows has no mean, and no row.
    confident = p.masked_fill(~(p >= usual - 1e-6), -1.0)
    top, true = confident.max(1)
    sure = top >= 0
    pairs = codes[sure] * count + true[sure]
    return torch.bincount(pairs, minlength=count * count).view(count, count).to(p)


def label_halves(log_probs: Float[Tensor, "n c"], codes: Int[Tensor, " n"]) -> Halves:
    """Where given labels contradict what a row is called: in its unlikely half, or in the other.

    Rows tied at the median are shared between the halves.
    """
    count, called = log_probs.shape[1], log_probs.argmax(1)
    lower, upper = log_probs.new_zeros(2, count, count)
    named = torch.bincount(called, minlength=count)
    for k in named.nonzero().flatten().tolist():
        rows = (called == k).nonzero().flatten()
        p, given = log_probs[rows], codes[rows]
        middle, size = p.median(0).values, (len(rows) + 1) // 2  # the lower of two middles
        below, level = (p < middle).sum(0), (p == middle).sum(0)
        shared = (size - below) / level
        own, at = at_codes(p, given), middle[given]
        low = torch.where(own < at, 1.0, torch.where(own == at, shared[given], 0.0).to(p))
        lower[:, k].index_add_(0, given, low)
        upper[:, k].index_add_(0, given, 1 - low)
    half = ((named + 1) // 2).clamp_min(1)
    rest = (named - half).clamp_min(1)
    lower, upper = lower / half, upper / rest
    return Halves(named.to(lower), lower.fill_diagonal_(0), upper.fill_diagonal_(0))


def without_overlap(lower: Tensor, upper: Tensor) -> Tensor:
    """What stays of ``lower`` where overlap fades from ``upper`` to it."""
    return (lower - OVERLAP * (upper - lower).clamp_min(0)).clamp_min(0)


def noise_matrix(halves: Halves) -> Float[Tensor, "c c"]:
    """T[given, true]: every column a distribution, none of its entries 0.

    Each class's rate goes to the common one (in the logarithm) as far as chance may explain that
    they differ, and its direction to an even spread over the other classes (:func:`beyond_chance`).
    A direction has a Dirichlet prior: many classes of few rows tell next to nothing about it.
    """
    rows, count = ((halves.named + 1) / 2).floor(), len(halves.named)
    even = (1 - torch.eye(count).to(rows)) / (count - 1)
    events = halves.floor * rows
    mean = (events.sum() + 0.5) / (rows.sum() + 1)  # half a wrong label, where none was seen
    rate = (events.sum(0) + PSEUDO_ROWS * mean) / (rows + PSEUDO_ROWS)
    log_right = torch.log1p(-rate.clamp_max(0.9))
    common = (log_right * rows).sum() / rows.sum()
    usual = rows * events.sum() / rows.sum()
    own = beyond_chance(events.sum(0), usual, float((usual > 0).sum()) - 1)
    rate = -torch.expm1(common + own * (log_right - common))
    keep = beyond_even(events, even)
    seen = events + PSEUDO_LABELS * (count - 1) * even
    direction = keep * seen / seen.sum(0) + (1 - keep) * even
    return direction * rate + torch.diag(1 - rate)


def beyond_chance(counts: Tensor, usual: Tensor, freedom: float) -> float:
    r"""How much of the differences between counts is more than chance: :math:`(1 - q/\chi^2)_+`.

    James and Stein's factor, but q is what chance exceeds in one case of twenty and not its mean;
    cells that expect nothing are left out.

    >>> beyond_chance(torch.tensor([9.0, 11.0]), torch.tensor([10.0, 10.0]), 1)
    0.0
    """
    seen = usual > 0
    chi = float(((counts - usual)[seen] ** 2 / usual[seen]).sum())
    return max(0.0, 1 - float(chdtri(freedom, 0.05)) / chi) if chi > 0 and freedom > 0 else 0.0


def beyond_even(events: Float[Tensor, "c c"], even: Float[Tensor, "c c"]) -> float:
    """How much of the directions is more than chance, were labels to go astray evenly."""
    usual = events.sum(0) * even
    freedom = float((usual > 0).sum()) - float((events.sum(0) > 0).sum())
    return beyond_chance(events, usual, freedom)


def true_label_log_posterior(
    log_probs: Float[Tensor, "n c"], codes: Int[Tensor, " n"], matrix: Float[Tensor, "c c"]
) -> Float[Tensor, "n c"]:
    """log P(true = k | x, given), normalized over k."""
    return (log_probs + matrix.log()[codes]).log_softmax(1)


def wrong_labels(
    log_probs: Float[Tensor, "n c"], codes: Int[Tensor, " n"], halves: Halves
) -> WrongLabels:
    """How many, in all and by given and true class; see the readings above.

    The standard errors are analytic: counts in quarters and halves are Poisson, the confident rows
    of each given class multinomial.
    """
    joint = confident_joint(log_probs, codes)
    sizes = torch.bincount(codes, minlength=len(joint)).to(joint)
    sure = joint.sum(1, keepdim=True)
    share = joint / sure.clamp_min(1)
    scale = sizes[:, None] / sure.clamp_min(1)
    most = (share * sizes[:, None]).fill_diagonal_(0)
    most_variance = (scale**2 * joint * (1 - share)).fill_diagonal_(0)
    astray = 1 - share.diagonal()
    total_variance = (sizes**2 * astray * (1 - astray) / sure[:, 0].clamp_min(1)).sum()
    middle, least = halves.lower * halves.named, halves.floor * halves.named
    ratio = float(most.sum() / middle.sum()) if middle.sum() > 0 else 1.0
    upper = float(middle.sum()) * min(math.sqrt(ratio), ratio)
    floors = floors_of(log_probs, codes, halves)
    lower = min(max(floors.sure, between(floors.sure, floors.sums)), upper)
    knows = log_probs.max(1).values.exp() > (1 - lower / len(codes)) / 2
    count = between(lower, upper, float(knows.double().mean()))
    names = float((log_probs.argmax(1) == codes).double().mean()) >= FEW_NAMED
    low = max(min(floors.sure, count) - Z * floors.error, 0.0) * names
    high = float(most.sum() + Z * total_variance.sqrt())
    by_pair = middle * (count / float(middle.sum().clamp_min(1e-300)))
    pairs = torch.stack(
        [
            by_pair,
            # A half's count, doubled.
            (torch.minimum(least, by_pair) - Z * (2 * least).sqrt()).clamp_min(0) * names,
            torch.maximum(most, by_pair) + Z * most_variance.sqrt(),
        ],
        dim=2,
    )
    return WrongLabels(count, low, min(high, float(len(codes))), pairs)


def between(low: float, high: float, weight: float = 0.5) -> float:
    """The geometric mean of two counts, of which either may be 0.

    >>> round(between(0, 99), 9), round(between(0, 99, weight=1.0), 9)
    (9.0, 99.0)
    """
    return math.expm1((1 - weight) * math.log1p(low) + weight * math.log1p(high))


class Floors(NamedTuple):
    """How many labels are wrong if all that fades is overlap."""

    sure: float  # by all cells, or by pairs of classes beyond chance: the larger
    sums: float  # by the pairs' sums
    error: float  # standard error of ``sure``


def floors_of(log_probs: Float[Tensor, "n c"], codes: Int[Tensor, " n"], halves: Halves) -> Floors:
    """All cells see labels that go astray evenly, pairs those that do not."""
    count = log_probs.shape[1]
    even = (1 - torch.eye(count).to(log_probs)) / (count - 1)
    quarters = unlikely_quarters(log_probs, codes) * 4 * (count - 1) / count  # the true one is none
    cells = float(without_overlap(*quarters))
    events = halves.floor * halves.named / 2
    pairs = beyond_even(events, even) * 2 * float(events.sum())
    sums = [(half * halves.named).sum() for half in (halves.lower, halves.upper)]
    sure, variance = max((cells, 4 * cells), (pairs, 2 * pairs))  # a quarter's count, a half's
    return Floors(sure, float(without_overlap(*sums)), math.sqrt(variance))


def unlikely_quarters(
    log_probs: Float[Tensor, "n c"], codes: Int[Tensor, " n"]
) -> Float[Tensor, " 2"]:
    """Given labels in the least likely quarter of all cells (row, class), and in the next.

    Cells tied at a quarter's end are shared.
    """
    cells, own = log_probs.flatten(), at_codes(log_probs, codes)
    within = []
    for most in (len(cells) / 4, len(cells) / 2):
        end = cells.kthvalue(math.ceil(most)).values
        below, level = (cells < end).sum(), (cells == end).sum()
        within.append((own < end).sum() + (own == end).sum() * (most - below) / level)
    return torch.stack([within[0], within[1] - within[0]]).to(log_probs)


def classes_alike(
    log_probs: Float[Tensor, "n c"], codes: Int[Tensor, " n"], fewest: int = 5
) -> list[tuple[int, int, float]]:
    r"""Pairs of classes that may be one, least told apart first.

    With :math:`M_{ab}` the mean of :math:`p_b` over the rows given a, two classes are told apart by
    :math:`\delta = M_{aa}/(M_{aa}+M_{ab}) - M_{ba}/(M_{ba}+M_{bb})`: 1 is always, 0 not at all, and
    with a share η of their labels exchanged it is (1 - 2η)². Listed are pairs below ``ALIKE`` that
    hold most of each other's probability, of classes of at least ``fewest`` rows.
    """
    count = log_probs.shape[1]
    sizes = torch.bincount(codes, minlength=count)
    mean = log_probs.new_zeros(count, count).index_add_(0, codes, log_probs.exp())
    mean = mean / sizes.clamp_min(1)[:, None]
    own = mean.diagonal()
    both = own[:, None] + mean  # [a, b]: what rows given a have on the pair
    apart = own[:, None] / both - mean.T / both.T
    enough = sizes >= fewest
    found = (apart < ALIKE) & (both > 0.5) & (both.T > 0.5) & enough & enough[:, None]
    pairs = found.triu(1).nonzero().tolist()
    return sorted(((a, b, float(apart[a, b])) for a, b in pairs), key=lambda pair: pair[2])


def never_zero(log_probs: Float[Tensor, "n c"], seen: int) -> Float[Tensor, "n c"]:
    """No ``seen`` rows show a probability to be below one in them: so much goes to all classes."""
    share = 1 / (seen + 1)
    even = torch.full_like(log_probs, math.log(share / log_probs.shape[1]))
    return torch.logaddexp(log_probs + math.log1p(-share), even)


def _checked(log_probs: Tensor, codes: Tensor) -> Tensor:
    if log_probs.ndim != 2 or log_probs.shape[1] < 2 or codes.shape != log_probs.shape[:1]:
        raise InputError(
            "`log_probs` must be (rows, classes) with two classes or more and `codes` one code per "
            f"row: got {tuple(log_probs.shape)} and {tuple(codes.shape)}."
        )
    if bool(log_probs.isnan().any()):
        raise InputError("`log_probs` holds NaN. Pass log-probabilities; an exact zero is -inf.")
    return log_probs.double()
