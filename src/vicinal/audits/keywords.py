"""The plain keyword arguments of :func:`vicinal.audit` as the records that it works on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from vicinal.audits.frames import Columns, FrameRows, frame_rows, is_frame
from vicinal.audits.pictures import media_of_images
from vicinal.audits.record import Media
from vicinal.audits.settings import CHOICES, About, AuditSettings
from vicinal.checks import InputError, check_choice


def asked_settings(
    settings: AuditSettings | None,
    asked: Mapping[str, Any],
    model: Any,
    embedding: str | Sequence[str] | None,
) -> AuditSettings:
    """The settings with every keyword that was given; arguments as of :func:`vicinal.audit`."""
    check_choice(asked["metric"], "metric", ("auto", *CHOICES["metric"]))
    auto = {"metric"} if asked["metric"] == "auto" else set()
    given = {name: v for name, v in asked.items() if v is not None and name not in auto}
    if isinstance(model, nn.Module) and isinstance(embedding, str):
        given["embedding"] = embedding
    return dataclasses.replace(settings or AuditSettings(), **given)


def given_images(images: Any) -> Media:
    """Thumbnails of ``(support images, query images)``; one list alone is of the support."""
    two = isinstance(images, (tuple, list)) and len(images) == 2
    if two and not isinstance(images[0], (str, Path)):
        return media_of_images(images[1], images[0])
    return media_of_images(images, images)


def from_frames(
    sets: tuple[Any, Any, Any, Any, Any, Any], columns: Columns, about: About
) -> tuple[Any, Any, Any, Any, Any, About]:
    """Model, support, query, calib and foreign with data frames read; others as they came.

    ``sets``: model, train, support, query, calib, foreign. A frame in the place of the model is the
    support, and one behind it the query.
    """
    model, train, *rest = sets
    if is_frame(model):
        rest[0], rest[1], model = model, train if rest[1] is None else rest[1], None
    roles = dict(zip(("support", "query", "calib", "foreign"), rest, strict=True))
    read = {r: frame_rows(v, columns, r) for r, v in roles.items() if is_frame(v)}
    if not read:
        if columns.label or columns.image:
            raise InputError("`label` and `image` name columns of a data frame; none was given.")
        return (model, *rest, about)
    roles |= {role: found.pair for role, found in read.items()}
    if "foreign" in read:
        roles["foreign"] = read["foreign"].rows
    support = read.get("support")
    if support is None or support.labels is None:
        names = ", ".join(map(str, rest[0].columns)) if is_frame(rest[0]) else ""
        raise InputError(f"`support` has no labels (columns: {names}). Name them: label='column'.")
    return (model, *roles.values(), _described(about, support, read))


def _described(about: About, support: FrameRows, read: dict[str, FrameRows]) -> About:
    """Ids and images of the frames, and the sentence that says what rows are compared by."""
    query = read.get("query", support)
    media = about.media
    if media is None and support.images is not None and query.images is not None:
        media = media_of_images(query.images, support.images)
    return dataclasses.replace(
        about,
        support_ids=about.support_ids or support.ids,
        query_ids=about.query_ids or query.ids,
        media=media,
        warnings=(*about.warnings, f"{support.how}; embedding= names others."),
    )


def check_model(model: Any) -> None:
    if model is None or isinstance(model, nn.Module):
        return
    kind = type(model).__name__
    if hasattr(model, "predict_proba"):
        raise InputError(
            f"`model` is a {kind}, which has no layers to listen to. Pass its inputs as rows and "
            "its answers as logits: vicinal.audit(support=(X, y), query=(Xq, yq), "
            "logits=model.predict_log_proba(Xq))."
        )
    raise InputError(
        f"`model` must be a torch.nn.Module, got {kind}. For embeddings pass support=(Z, y) and "
        "query=(Zq, yq)."
    )
