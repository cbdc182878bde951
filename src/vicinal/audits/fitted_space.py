"""In which space an audit compares rows: chosen once on the support, and said in a sentence.

The choice is that of :mod:`vicinal.confidence.ned.space`. Where the map has looked at labels, the
support's own rows are searched fold by fold, each in a map fitted without them.
"""

from __future__ import annotations

from vicinal.audits.inputs import Sets
from vicinal.audits.sections import SpaceFacts
from vicinal.audits.settings import AuditSettings
from vicinal.confidence.ned.space import SpaceFit, fit_space
from vicinal.labels import Labels

MEANING = {
    "raw": "as they came",
    "unit": "scaled to length 1",
    "centered-unit": "centered and scaled to length 1",
    "standardized": "with every column centered and divided by its standard deviation",
    "whitened": "whitened by the spread within classes",
    "learned": "in a linear map learned on the leave-one-out loss",
}


def space_of(settings: AuditSettings, sets: Sets, k: int) -> SpaceFit:
    """The space that the settings name, or the best; cosine distances are a space of their own."""
    if settings.space == "raw" or (settings.space == "fit" and settings.metric == "cosine"):
        return SpaceFit()
    labels = Labels(sets.classes, sets.codes)
    rows = sets.support.as_given
    return fit_space(settings.space, rows, labels, k=k, metric=settings.metric, temperature=None)


def space_facts(settings: AuditSettings, fit: SpaceFit) -> SpaceFacts:
    """The sentence: which space, and the held-out loss from raw rows to it."""
    name = fit.space.name
    how = f"rows are compared {MEANING[name]}"
    if settings.space != "fit":
        how += f" ({name}), as asked"
    elif settings.metric == "cosine":
        how = "rows are compared by direction alone, as --metric cosine asks"
    elif not fit.losses:
        how += ": too few labeled rows to choose another space"
    elif name == "raw":
        best = min(fit.losses, key=lambda other: fit.losses[other])
        how += f" (raw, held-out NLL {fit.losses['raw']:.3f}): "
        how += (
            "no other space did better"
            if best == "raw"
            else f"no other space did better beyond noise (best: {best}, {fit.losses[best]:.3f})"
        )
    elif "raw" not in fit.losses:
        how += f" ({name}, held-out NLL {fit.losses[name]:.3f}): raw rows are too large or small"
    else:
        how += (
            f" ({name}): on held-out support rows the neighbors' NLL falls from "
            f"{fit.losses['raw']:.3f} (raw) to {fit.losses[name]:.3f}"
        )
    return SpaceFacts(name, how, dict(fit.losses), cross_fitted=fit.crossed is not None)
