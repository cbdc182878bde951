"""What a study of perturbed inputs found: plain numbers, JSON in and out, one table, curves."""

from __future__ import annotations

from dataclasses import dataclass

from vicinal.checks import InputError, check_choice
from vicinal.records import Record


@dataclass(frozen=True)
class HeadUnder(Record):
    """One head under one perturbation; ``level`` is the severity, the ε, or 0 for clean."""

    head: str
    perturbation: str
    kind: str  # "clean" | "corruption" | "attack"
    level: float
    source: str | None  # the model an attack was made against
    accuracy: float
    accuracy_se: float
    ece: float
    noise_floor: float  # what the ECE of a perfectly calibrated head reads at these confidences
    confidence: float
    credibility: float | None


@dataclass(frozen=True)
class CorruptionFacts(Record):
    """One head and one corruption over all severities; ratios are None where words say why."""

    head: str
    corruption: str
    error: float
    ece: float
    noise_floor: float
    ce: float | None
    relative_ce: float | None


@dataclass(frozen=True)
class Curve(Record):
    """One head along the severities or ε of one perturbation, from 0, the clean images."""

    head: str
    perturbation: str
    source: str | None
    levels: tuple[float, ...]
    accuracy: tuple[float, ...]
    ece: tuple[float, ...]
    noise_floor: tuple[float, ...]
    credibility: tuple[float | None, ...]


@dataclass(frozen=True)
class PerturbationReport(Record):
    """Heads × perturbations. ``print(report)`` is the table, ``report.curve(...)`` a line of it."""

    heads: tuple[str, ...]
    baseline: str
    samples: int
    constants: str
    norm: str
    bins: int
    rows: tuple[HeadUnder, ...]
    corruptions: tuple[CorruptionFacts, ...]
    notes: tuple[str, ...]
    not_tested: tuple[str, ...]

    def row(
        self, head: str, perturbation: str, level: float = 0.0, source: str | None = None
    ) -> HeadUnder:
        """One cell of the table.

        Parameters
        ----------
        head, perturbation, level : which head under what, and how strong; level 0 is the clean
            images.
        source : the model an attack was made against; may be left out when there is only one.
        """
        for row in self.rows:
            here = (row.head, row.perturbation, row.level) == (head, perturbation, float(level))
            if here and source in (None, row.source):
                return row
        raise InputError(
            f"no row of head {head!r} under {perturbation!r} at {level!r}. Heads: "
            f"{', '.join(self.heads)}; perturbations: {', '.join(self.perturbations)}."
        )

    @property
    def perturbations(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.perturbation for row in self.rows))

    def curve(self, head: str, perturbation: str, source: str | None = None) -> Curve:
        """Accuracy, ECE and credibility over the severities or ε, the clean images first."""
        check_choice(head, "head", self.heads)
        check_choice(perturbation, "perturbation", self.perturbations)
        mine = [
            row
            for row in self.rows
            if row.head == head
            and (row.kind == "clean" or row.perturbation == perturbation)
            and (row.kind != "attack" or source in (None, row.source))
        ]
        found = sorted({row.source for row in mine if row.source is not None})
        if len(found) > 1:
            raise InputError(f"`source` must name one of {', '.join(found)} for {perturbation!r}.")
        mine.sort(key=lambda row: row.level)
        return Curve(
            head, perturbation, found[0] if found else None,
            tuple(row.level for row in mine), tuple(row.accuracy for row in mine),
            tuple(row.ece for row in mine), tuple(row.noise_floor for row in mine),
            tuple(row.credibility for row in mine),
        )  # fmt: skip

    def mean_corruption_error(self, head: str, relative: bool = False) -> float | None:
        """The mean over corruptions of CE; None where a ratio has nothing to divide by (notes)."""
        mine = [facts for facts in self.corruptions if facts.head == head]
        ratios = [facts.relative_ce if relative else facts.ce for facts in mine]
        present = [ratio for ratio in ratios if ratio is not None]
        return sum(present) / len(present) if present and len(present) == len(ratios) else None

    def __str__(self) -> str:
        """One line per perturbation and level: accuracy, ECE and its floor of each head, in %."""
        head = f"{'perturbation':<28}" + "".join(f"{name:>22}" for name in self.heads)
        keys = dict.fromkeys((r.perturbation, r.level, r.source) for r in self.rows)
        lines = [f"{self.samples} samples; accuracy, ECE (noise floor) in %", head]
        for name, level, source in keys:
            cells = [self._cell(h, name, level, source) for h in self.heads]
            label = name if level == 0 else f"{name} {level:g}"
            trust = self.row(self.heads[0], name, level, source).credibility
            lines.append(
                f"{label if source is None else f'{label} on {source}':<28}"
                + "".join(f"{cell:>22}" for cell in cells)
                + ("" if trust is None else f"   credibility {trust:.2f}")
            )
        if self.corruptions:
            lines.append(f"{'mCE':<28}" + "".join(f"{self._mce(h, False):>22}" for h in self.heads))
            relative = "".join(f"{self._mce(h, True):>22}" for h in self.heads)
            lines.append(f"{'relative mCE':<28}{relative}")
        return "\n".join(
            [*lines, *self.notes, *(f"not tested: {words}" for words in self.not_tested)]
        )

    def _cell(self, head: str, name: str, level: float, source: str | None) -> str:
        row = self.row(head, name, level, source)
        return f"{row.accuracy:.1%}  {row.ece:.1%} ({row.noise_floor:.1%})".replace("%", "")

    def _mce(self, head: str, relative: bool) -> str:
        value = self.mean_corruption_error(head, relative)
        return "see below" if value is None else f"{value:.3f}"
