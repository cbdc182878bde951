"""The names under which people keep embeddings, labels, ids and what rows look like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vicinal.checks import InputError, closest

EMBEDDING_KEYS = ("embeddings", "embedding", "Z", "z", "X", "x", "features", "feat", "data")
LABEL_KEYS = ("y", "labels", "label", "targets", "target", "class")
ID_KEYS = ("ids", "id", "names", "name")
IMAGE_KEYS = ("images", "image", "thumbnails")
TEXT_KEYS = ("text", "texts", "sentence", "sentences")
PATH_KEYS = ("paths", "path", "filepath")
LOGIT_KEYS = ("logits", "scores")


def pick(
    table: Mapping[str, Any], asked: str | None, usual: Iterable[str], name: str, option: str
) -> str | None:
    """The key the user named, or the first usual one; a name that is not there is an error."""
    if asked is None:
        return next((key for key in usual if key in table), None)
    if asked in table:
        return asked
    near = closest(asked, table)
    hint = f" Did you mean {option} {near[0]}?" if near else ""
    raise InputError(f"{name} has no key {asked!r} (keys: {', '.join(table)}).{hint}")
