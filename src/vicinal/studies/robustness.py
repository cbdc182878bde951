"""Heads under perturbed inputs: accuracy, ECE with its noise floor, and credibility, in one table.

Every head sees the same perturbed inputs. Corruptions come at five severities; attacks are made
against one or more differentiable *sources* at several ε and shown to all heads: white box for the
head whose model is the source, transfer for the others. Neither the support nor any fitted value
changes (Karpusha 2020, section 5). How far an attack's figures may be believed is another question:
:func:`~vicinal.studies.attack_audit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vicinal.capture import evaluating
from vicinal.checks import InputError, as_tensor, check_choice, check_distributions, check_same_rows
from vicinal.evaluation import corruption_errors, expected_calibration_error, noise_floor
from vicinal.labels import Labels, codes_of
from vicinal.perturbations import ATTACKS, CORRUPTIONS, corrupt
from vicinal.studies.perturbation_record import CorruptionFacts, HeadUnder, PerturbationReport


class _Perturbed(NamedTuple):
    name: str
    kind: str
    level: float
    source: str | None
    images: Tensor


class _Reading(NamedTuple):
    """How a head is asked: rows in, probabilities (n, c) out, and which column each label has."""

    probabilities: Callable[[Tensor], Tensor]
    classes: NDArray[Any] | None


def robustness_report(
    heads: Mapping[str, Any],
    images: Any,
    labels: Any,
    *,
    embed: Any = None,
    credibility: Callable[[Tensor], Any] | None = None,
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    constants: str = "imagenet",
    sources: Mapping[str, Any] | None = None,
    attacks: Sequence[str] = ("fgsm", "bim", "pgd"),
    epsilons: Sequence[float] = (0.1, 0.3),
    norm: str = "linf",
    baseline: str | None = None,
    bins: int = 15,
    batch_size: int = 512,
    generator: torch.Generator | None = None,
) -> PerturbationReport:
    """Each head under each perturbation of the images, and clean.

    The same generator state gives the same report; a corruption draws the same numbers at every
    severity, so that curves show the severity and not the luck.

    Parameters
    ----------
    heads : name to a fitted classifier (``predict_proba``), an ``nn.Module`` (logits or
        log-probabilities), or a function to probabilities.
    images, labels : inputs in [0, 1] (or uint8) and the class of each.
    embed : what the heads stand on, computed once for all; without it they take the images
        themselves.
    credibility : images to one number each, such as DkNN's.
    corruptions, severities, constants : which corruptions, how strong, and whose constants.
    sources : name to a differentiable model from images to logits, to attack; without it no attack
        is made.
    attacks, epsilons, norm : which attacks, how far they go, and in which norm.
    baseline : the head that corruption errors are divided by (the first one).
    bins, batch_size : bins of the ECE; images embedded at once.
    generator : of all random draws.
    """
    x, y = _inputs(images, labels)
    if not heads:
        raise InputError("`heads` is empty. Pass {name: fitted head}.")
    baseline = next(iter(heads)) if baseline is None else baseline
    check_choice(baseline, "baseline", tuple(heads))
    device = "cpu" if generator is None else generator.device
    seed = int(torch.randint(2**62, (), generator=generator, device=device))
    readings = {name: _reading(head, name) for name, head in heads.items()}
    perturbed = _perturb(x, y, corruptions, severities, constants, sources or {}, attacks, epsilons,
                         norm, seed)  # fmt: skip
    rows: list[HeadUnder] = []
    for case in perturbed:
        seen = _run(embed, case.images, batch_size)
        trust = None if credibility is None else _mean(credibility(case.images), len(x))
        for name, reading in readings.items():
            rows.append(_score(name, reading, case, seen, y, trust, bins))
    table, words = _corruption_table(rows, tuple(heads), baseline)
    missing = [
        *([] if corruptions else ["corruptions: none were asked for"]),
        *([] if sources else ["attacks: no differentiable source was given"]),
        *([] if credibility else ["credibility: no credibility function was given"]),
    ]
    return PerturbationReport(
        heads=tuple(heads), baseline=baseline, samples=len(x), constants=constants, norm=norm,
        bins=bins, rows=tuple(rows), corruptions=table, notes=words, not_tested=tuple(missing),
    )  # fmt: skip


def _inputs(images: Any, labels: Any) -> tuple[Tensor, NDArray[Any]]:
    x = as_tensor(images, "images")
    x = x.float() / 255 if x.dtype == torch.uint8 else x
    y = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if y.ndim != 1:
        raise InputError(f"`labels` must be one label for each image, got shape {y.shape}.")
    check_same_rows(x, y, "images", "labels")
    return x, y


def _perturb(
    x: Tensor,
    y: NDArray[Any],
    corruptions: Sequence[str],
    severities: Sequence[int],
    constants: str,
    sources: Mapping[str, Any],
    attacks: Sequence[str],
    epsilons: Sequence[float],
    norm: str,
    seed: int,
) -> Iterator[_Perturbed]:
    yield _Perturbed("clean", "clean", 0.0, None, x)
    for at, name in enumerate(corruptions):
        for severity in severities:
            draws = torch.Generator().manual_seed((seed + at) % 2**63)
            moved = corrupt(x, name, severity, constants=constants, generator=draws)
            yield _Perturbed(name, "corruption", float(severity), None, moved)
    if not sources:
        return
    codes = _columns(y, None)
    for source, model in sources.items():
        for name in attacks:
            check_choice(name, "attacks", tuple(ATTACKS))
            for epsilon in epsilons:
                extra: dict[str, Any] = {}
                if name in ("pgd", "apgd"):
                    extra["generator"] = torch.Generator().manual_seed(seed % 2**63)
                moved = ATTACKS[name](model, x, codes, epsilon, norm=norm, **extra)
                yield _Perturbed(name, "attack", float(epsilon), source, moved)


def _reading(head: Any, name: str) -> _Reading:
    if hasattr(head, "predict_proba"):
        classes = np.asarray(head.classes_)
        return _Reading(lambda z: torch.as_tensor(head.predict_proba(z)), classes)
    if isinstance(head, nn.Module):
        return _Reading(lambda z: torch.softmax(_run(head, z, len(z)), 1), None)
    if callable(head):
        return _Reading(lambda z: torch.as_tensor(head(z)), None)
    raise InputError(
        f"head {name!r} must be a fitted classifier with predict_proba, an nn.Module or a function "
        f"to probabilities, got {type(head).__name__}."
    )


def _run(model: Any, x: Tensor, batch_size: int) -> Tensor:
    """The model's output without gradient, in evaluation mode; the input itself without a model."""
    if model is None:
        return x
    with evaluating(model), torch.no_grad():
        return torch.cat([torch.as_tensor(model(part)) for part in x.split(batch_size)])


def _columns(y: NDArray[Any], classes: NDArray[Any] | None) -> Tensor:
    """The column of each label: its place among ``classes``, or the label itself."""
    if classes is None:
        if y.dtype.kind not in "iu":
            raise InputError(
                f"`labels` must be the column numbers of the outputs, got dtype {y.dtype}. "
                "Pass integers 0 … c-1."
            )
        return torch.from_numpy(y.astype(np.int64))
    return codes_of(y, len(y), Labels(classes))


def _score(
    name: str,
    reading: _Reading,
    case: _Perturbed,
    seen: Tensor,
    y: NDArray[Any],
    trust: float | None,
    bins: int,
) -> HeadUnder:
    p = reading.probabilities(seen).detach().double().cpu()
    if p.ndim != 2 or len(p) != len(y):
        raise InputError(
            f"head {name!r} must give probabilities (n, classes) for {len(y)} rows, got shape "
            f"{tuple(p.shape)}."
        )
    check_distributions(p, f"the output of head {name!r}")
    confidence, predicted = p.max(1)
    confidence = confidence.clamp(0, 1)
    correct = predicted == _columns(y, reading.classes)
    share = float(correct.double().mean())
    return HeadUnder(
        head=name, perturbation=case.name, kind=case.kind, level=case.level, source=case.source,
        accuracy=share, accuracy_se=float(np.sqrt(share * (1 - share) / len(y))),
        ece=expected_calibration_error(confidence, correct, bins=bins),
        noise_floor=noise_floor(confidence, bins=bins),
        confidence=float(confidence.mean()), credibility=trust,
    )  # fmt: skip


def _mean(values: Any, rows: int) -> float:
    x = as_tensor(values, "credibility").double()
    if x.shape != (rows,):
        raise InputError(
            f"`credibility` must return one number for each of the {rows} images, got shape "
            f"{tuple(x.shape)}."
        )
    return float(x.mean())


def _corruption_table(
    rows: Sequence[HeadUnder], heads: Sequence[str], baseline: str
) -> tuple[tuple[CorruptionFacts, ...], tuple[str, ...]]:
    """Per head and corruption: mean error and ECE, and the errors over the baseline's, or words."""
    clean = {row.head: 1 - row.accuracy for row in rows if row.kind == "clean"}
    names = list(dict.fromkeys(row.perturbation for row in rows if row.kind == "corruption"))
    table, words = [], []
    for head in heads:
        for name in names:
            mine = [r for r in rows if r.head == head and r.perturbation == name]
            theirs = [r for r in rows if r.head == baseline and r.perturbation == name]
            errors = {"clean": clean[head], name: [1 - r.accuracy for r in mine]}
            others = {"clean": clean[baseline], name: [1 - r.accuracy for r in theirs]}
            ratios: list[float | None] = []
            for relative in (False, True):
                try:
                    ratios.append(corruption_errors(errors, others, relative)[name])
                except InputError as error:
                    ratios.append(None)
                    words.append(str(error))
            mean_ece = sum(r.ece for r in mine) / len(mine)
            floor = sum(r.noise_floor for r in mine) / len(mine)
            error_rate = sum(1 - r.accuracy for r in mine) / len(mine)
            table.append(CorruptionFacts(head, name, error_rate, mean_ece, floor, *ratios))
    return tuple(table), tuple(dict.fromkeys(words))
