"""The kept head under stress: what corruptions and attacks on the inputs do to its answers.

Some rows of the query are read again, clean, corrupted at three severities (one corruption of each
family, or all fifteen) and after FGSM through the model. Neither the support nor anything fitted
changes. The question is less how far accuracy falls than whether the verdicts fall with it: a row
that is now wrong and still *supported* is what a user would not notice.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from vicinal.audits.attacks import attack_audit
from vicinal.audits.class_order import columns_for
from vicinal.audits.entangled_layers import HISTORY_ROWS, compact
from vicinal.audits.network import FLOPS, MOST
from vicinal.audits.pictures import as_pixels
from vicinal.audits.scoring import MIN_ECE_ROWS
from vicinal.audits.settings import AuditSettings
from vicinal.audits.stress_records import Stress, StressExample, StressRow, WorstCase
from vicinal.audits.stressed_inputs import (
    EPSILONS,
    SEVERITIES,
    Perturbed,
    Sample,
    perturbations,
    sample_of,
)
from vicinal.capture import capture
from vicinal.checks import InputError, plural
from vicinal.confidence.head import Judgement, TrustHead
from vicinal.confidence.verdicts import VERDICTS
from vicinal.evaluation import expected_calibration_error, noise_floor
from vicinal.neighbors.distances import unit_rows
from vicinal.perturbations import CORRUPTIONS

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts

FEW = ("gaussian_noise", "defocus_blur", "fog", "jpeg_compression")  # one of each family
SHOWN = 8  # examples
LARGEST = 96  # pixels of an example's side
ATTACKED_AT = EPSILONS[1]
STEPS, QUERIES = 20, 200  # of the worst case
ROUTES = 4  # through the head, two surrogates, by transfer; each climbs two losses


class Extent(NamedTuple):
    """How much is tried: by default at most about one more pass over the data."""

    corruptions: tuple[str, ...]
    most_rows: int
    attacked: int  # rows whose worst case over many attacks is sought

    @property
    def passes(self) -> int:
        return 1 + len(SEVERITIES) * len(self.corruptions) + len(EPSILONS)

    def rows(self, available: int, total: int) -> int:
        """Of the query: what keeps the passes within ``total`` rows, but enough for an ECE."""
        most = self.most_rows if self.attacked else max(MIN_ECE_ROWS, total // self.passes)
        return min(self.most_rows, most, available)

    def cost(self, rows: int, total: int) -> str:
        """What it takes, in words that can be said before."""
        forward, backward = self.passes * rows, len(EPSILONS) * rows
        words = (
            f"{rows:,} query rows under {len(self.corruptions)} corruptions at severities "
            f"{', '.join(map(str, SEVERITIES))} and FGSM at {len(EPSILONS)} strengths: "
            f"{forward:,} forward and {backward:,} backward passes of a row"
        )
        if total:
            times = forward / total
            much = f"{100 * times:.0f} %" if times < 2 else f"{times:.0f} times the cost"
            words += f", {much} of embedding the sets"
        if self.attacked:
            some = min(self.attacked, rows)
            climbs = 2 * ROUTES * STEPS * some
            words += (
                f"; the worst case of {plural(some, 'row')}: at most {climbs:,} passes both ways "
                f"and {QUERIES * some:,} forward"
            )
        return words


EXTENTS = {"small": Extent(FEW, 256, 0), "full": Extent(CORRUPTIONS, 1000, 64)}


def costs(
    settings: AuditSettings, support: int | None, query: int | None, checkpoints: int = 0
) -> list[str]:
    """What is about to be spent beyond embedding the sets, in sentences: on the network's own view,
    the stress and the checkpoints. Rows are None where they are not known before they are read.

    >>> costs(AuditSettings(stress="none", network_rows=0), 900, 300, 2)
    ['checkpoints: 2 of 500 rows each']
    """
    lines = []
    if (most := MOST if settings.network_rows is None else settings.network_rows) >= 2:
        n, m = (min(most, s or most) for s in (support, query))
        fewer = f", fewer if that is more than {FLOPS:.0e} operations"
        lines.append(
            f"network view: {plural(n + m, 'row')} forward and, for each output, backward"
            f"{fewer if settings.network_rows is None else ''} (--network-rows 0: none)"
        )
    if settings.stress != "none":
        extent, total = EXTENTS[settings.stress], (support or 0) + (query or 0)
        rows = extent.most_rows if query is None else extent.rows(query, total)
        lines.append(
            f"stress, where the inputs are images: {extent.cost(rows, total)} (--no-stress: none)"
        )
    if checkpoints:
        each = HISTORY_ROWS if support is None else min(HISTORY_ROWS, support)
        lines.append(f"checkpoints: {checkpoints} of {plural(each, 'row')} each")
    return lines


@dataclass(frozen=True, eq=False)
class Stressed:
    """The record, or why there is none; and every judgement of the strongest perturbations."""

    record: Stress | None
    why: str | None = None
    strongest: dict[str, list[Judgement]] = field(default_factory=dict)


class _Case(NamedTuple):
    """The rows under one perturbation, and what was said of them."""

    perturbed: Perturbed
    judged: Judgement
    right: Tensor
    row: StressRow


def stressed(facts: Facts) -> Stressed:
    """The kept head on perturbed rows of the query."""
    asked, model, codes = facts.settings.stress, facts.model, facts.sets.query.codes
    if model is None:
        return Stressed(None, "corruptions and attacks need the model and inputs: --model")
    if asked == "none":
        return Stressed(None, "not asked for")
    if facts.sets.leave_one_out:
        return Stressed(None, "the query is the support: each row would meet its own original")
    if codes is None or not bool((codes >= 0).any()):
        return Stressed(None, "the query has no labels")
    extent, total = EXTENTS[asked], len(codes) + len(facts.sets.codes)
    ordinary = (codes >= 0).nonzero().flatten().numpy()
    drawn = np.random.default_rng(facts.settings.seed).permutation(ordinary)
    try:
        rows = np.sort(drawn[: extent.rows(len(ordinary), total)])
        return _record(facts, extent, sample_of(model.source, rows, codes), total)
    except (InputError, RuntimeError) as error:
        return Stressed(None, f"inputs could not be perturbed: {str(error).splitlines()[0]}")


def _record(facts: Facts, extent: Extent, sample: Sample, total: int) -> Stressed:
    assert facts.model is not None
    head, seed = TrustHead(facts.kept, facts.standards), facts.settings.seed
    columns = _columns(facts)
    cases, worst, strongest = list[_Case](), 1, dict[str, list[Judgement]]()
    layer = facts.model.source.embedding
    for at, case in enumerate(
        perturbations(sample, extent.corruptions, columns, head.ned, layer, seed)
    ):
        cases.append(_judged(facts, head, sample, case, columns))
        if at and cases[at].row.accuracy < cases[worst].row.accuracy:
            worst = at
        if case.strongest:
            name = f"FGSM, ε = {case.level:.3g}" if case.kind == "attack" else "corrupted"
            strongest.setdefault(name, []).append(cases[at].judged)
        if at not in (0, worst):  # keep the pictures that may be shown, no others
            cases[at] = cases[at]._replace(perturbed=case._replace(x=case.x[:0]))
        facts.job.tell("stress", at + 1, extent.passes)
    record = Stress(
        rows=len(sample.rows),
        how=_how(extent, sample, columns is not None),
        cost=extent.cost(len(sample.rows), total),
        results=tuple(case.row for case in cases),
        worst=worst,
        examples=_examples(facts, sample, cases[0], cases[worst]),
        attack=_worst_case(facts, extent, sample, head) if extent.attacked else None,
    )
    return Stressed(record, None, strongest)


def _columns(facts: Facts) -> Int[Tensor, " c"] | None:
    """Of the model's output, in the order of the classes; None where it has none for them."""
    logits = facts.model.logits if facts.model is not None else None
    if logits is None or facts.logits is None:
        return None
    try:
        found = columns_for(logits.shape[1], facts.sets.classes, facts.about.class_names)
    except InputError:
        return None
    return torch.tensor(found)


def _judged(
    facts: Facts,
    head: TrustHead,
    sample: Sample,
    case: Perturbed,
    columns: Int[Tensor, " c"] | None,
) -> _Case:
    """What head and model say of the perturbed rows."""
    assert facts.model is not None
    source, codes = facts.model.source, sample.codes
    layers = list(dict.fromkeys((source.embedding, "output")))
    seen = capture(source.model, sample.net.inputs(case.x), layers, pool=compact)
    z = seen[source.embedding].cpu()
    judged = head.predict(unit_rows(z) if facts.settings.normalize else z)
    right = torch.from_numpy(np.asarray(judged.label) == facts.sets.classes[codes.numpy()])
    scores: dict[str, float | None] = {}
    if columns is not None:
        sure, best = seen["output"].cpu().double()[:, columns].softmax(1).max(1)
        scores["softmax_accuracy"] = float((best == codes).double().mean())
        scores["softmax_ece"] = _ece(facts, sure, best == codes)
    share, sure = float(right.double().mean()), torch.as_tensor(judged.confidence).double()
    ece = _ece(facts, sure, right)
    counts = judged.counts()
    row = StressRow(
        name=case.name, kind=case.kind, level=case.level,
        accuracy=share, accuracy_se=float(np.sqrt(share * (1 - share) / len(codes))),
        ece=ece, noise_floor=None if ece is None else noise_floor(sure.clamp(0, 1)),
        confidence=float(sure.mean()),
        credibility=float(torch.as_tensor(judged.credibility).double().mean()),
        verdicts={name: counts[name] / len(codes) for name in VERDICTS},
        wrong_supported=float(((judged.verdict == "supported") & ~right.numpy()).mean()),
        **scores,
    )  # fmt: skip
    return _Case(case, judged, right, row)


def _ece(facts: Facts, sure: Float[Tensor, " n"], right: Tensor) -> float | None:
    enough = len(sure) >= MIN_ECE_ROWS or facts.settings.force_ece
    return expected_calibration_error(sure.clamp(0, 1), right) if enough else None


def _how(extent: Extent, sample: Sample, own: bool) -> str:
    through = "the model's own output" if own else "the neighbors"
    constants = {"cifar": "CIFAR-10-C", "imagenet": "ImageNet-C"}[sample.constants]
    whole = bool((sample.net.low == 0).all()) and bool((sample.net.span == 1).all())
    scaled = "" if whole else "; inputs were taken as pixels by the range of each channel"
    return (
        f"{plural(len(sample.rows), 'row')} of the query drawn by the seed, judged by the saved "
        f"head; {len(extent.corruptions)} corruptions with the constants of {constants}; FGSM "
        f"climbs the loss of {through}, in pixels of [0, 1]{scaled}"
    )


def _examples(
    facts: Facts, sample: Sample, clean: _Case, worst: _Case
) -> tuple[StressExample, ...]:
    """Rows that were right and are wrong now; those still called supported first."""
    judged = worst.judged
    lost = (clean.right & ~worst.right).nonzero().flatten().tolist()
    lost.sort(key=lambda at: (judged.verdict[at] != "supported", -float(judged.confidence[at])))
    place = {label: code for code, label in enumerate(facts.sets.classes.tolist())}
    show = facts.about.show_images
    return tuple(
        StressExample(
            row=int(sample.rows[at]),
            label=int(sample.codes[at]),
            predicted=place[np.asarray(judged.label)[at].item()],
            confidence=float(judged.confidence[at]),
            verdict=str(judged.verdict[at]),
            before=_picture(sample.x[at]) if show else None,
            after=_picture(worst.perturbed.x[at]) if show else None,
        )
        for at in lost[:SHOWN]
    )


def _picture(x: Float[Tensor, "c h w"]) -> str:
    """A small PNG as a data URI."""
    image = Image.fromarray(as_pixels(x))
    image.thumbnail((LARGEST, LARGEST))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _worst_case(facts: Facts, extent: Extent, sample: Sample, head: TrustHead) -> WorstCase:
    """Every attack of :func:`attack_audit` on the neighbors of the kept head, for a few rows."""
    assert facts.model is not None
    few = slice(0, extent.attacked)
    own = facts.sets.classes[sample.codes[few].numpy()]
    columns, straight = _columns(facts), torch.arange(len(facts.sets.names))
    same = columns is not None and torch.equal(columns, straight)  # its columns are the classes
    found = attack_audit(
        head.ned, sample.x[few], own, ATTACKED_AT,
        net=sample.net.of(facts.model.source.embedding), proxy=sample.net if same else None,
        steps=STEPS, restarts=1, queries=QUERIES,
        generator=torch.Generator().manual_seed(facts.settings.seed),
    )  # fmt: skip
    return WorstCase(
        epsilon=found.epsilon, rows=found.samples, clean=found.clean_accuracy,
        fitted=found.fitted_accuracy, smoothed=found.smoothed_accuracy,
        transfer=found.transfer_accuracy, worst=found.worst_case_accuracy,
        masked_gradients=found.masked_gradients, note=found.note,
    )  # fmt: skip
