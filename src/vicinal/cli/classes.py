"""The order of a model's classes: stated with --classes, or found in the model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from torch import nn

from vicinal.audits.class_order import order_of_model, positions_of, stated_positions
from vicinal.checks import InputError
from vicinal.cli.console import Console
from vicinal.cli.model_inputs import ModelInputs
from vicinal.cli.verbs import ClassOptions
from vicinal.files import reading

SHOWN = 8


def stated_order(options: ClassOptions) -> list[str] | None:
    """The names of ``--classes``: in a file, or a,b,c; None: not stated."""
    if options.classes is None:
        return None
    path, where = Path(options.classes), "--classes"
    if path.is_file():
        where = path.name
        with reading(path):
            names = path.read_text("utf-8-sig").splitlines()
        names = [name for name in names if name.strip()]
        if not names:
            raise InputError(f"{where} is empty. Write the name of a class on each line.")
    else:
        names = options.classes.split(",")
        if len(names) < 2 or not all(map(str.strip, names)):
            raise InputError(f"--classes {path} is no file and no list of names like cat,dog,owl.")
    names = list(map(str.strip, names))
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise InputError(f"{where} names {name!r} twice.")
    return names


def order_for(
    inputs: ModelInputs, model: nn.Module, stated: list[str] | None, console: Console
) -> list[str] | None:
    """The names of the codes that the model's outputs stand for; None: the labels are the codes.

    Labels that are text are numbered by the stated order, by the model's own, or alphabetically,
    which is then said. Whole numbers are the model's numbers already; a list only names them.
    """
    own = inputs.classes
    if own is None:
        return stated or _found(inputs, model, console)
    if stated is not None:
        at = stated_positions(own, stated, "--classes")
        return [own[at.index(i)] if i in at else name for i, name in enumerate(stated)]
    found = _found(inputs, model, console)
    if found is not None:
        return found
    listed = ", ".join(own[:SHOWN]) + (", …" if len(own) > SHOWN else "")
    console.print(f"classes  outputs of classes are in this order: {listed}; --classes: another")
    return own


def _found(inputs: ModelInputs, model: nn.Module, console: Console) -> list[str] | None:
    """The order that the model carries, where it names every class of the labels."""
    carried, own = order_of_model(model), inputs.classes
    if carried is None:
        return None
    names, where = carried
    if own is not None:
        at = positions_of(own, names)
        if None in at:
            return None
        names = [own[at.index(i)] if i in at else name for i, name in enumerate(names)]
    elif inputs.rows.labels is None or int(np.max(inputs.rows.labels)) >= len(names):
        return None
    console.print(f"classes  {len(names)}, in the order of the model's own {where}")
    return names
