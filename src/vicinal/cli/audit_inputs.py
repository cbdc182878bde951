"""What ``vicinal audit`` was given: files read, checked and described; nothing computed yet."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vicinal.audits.inputs import About, AuditSettings
    from vicinal.cli.console import Voice
    from vicinal.cli.rows import Rows


def settings_of(given: dict[str, Any]) -> AuditSettings:
    from vicinal.audits.inputs import AuditSettings
    from vicinal.checks import InputError, check_choice

    check_choice(given["metric"], "--metric", ("l2", "cosine"))
    k = given["k"]
    if k != "auto" and not str(k).isdigit():
        raise InputError(f"--k must be a whole number or auto, got {k!r}.")
    return AuditSettings(
        k=None if k == "auto" else int(k),
        metric="cosine" if given["metric"] == "cosine" else "sqeuclidean",
        normalize=given["normalize"],
        target_accuracy=given["target_accuracy"],
        prior=given["prior"],
        unknown="unlabeled" if given["ignore_unknown"] else "wrong",
        force_ece=given["force_ece"],
        seed=given["seed"],
        embedding=given["embedding"],
        layers=tuple(given["layer"] or ()),
    )


class Prepared:
    """The sets as read, checked and described; nothing has been computed or written."""

    def __init__(self, arguments: dict[str, Any], about: About, dropped: list[tuple[str, str]]):
        self.arguments = arguments
        self.about = about
        self.dropped = dropped


def prepare(given: dict[str, Any], settings: AuditSettings, voice: Voice) -> Prepared:
    from vicinal.checks import InputError
    from vicinal.cli.data_files import Columns, read_rows
    from vicinal.cli.rows import checked_labels

    columns = Columns(
        given["embedding_key"], given["label_key"], given["id_col"], given["image_col"],
        given["text_col"], given["align"] == "ids", given["trust_pickle"],
    )  # fmt: skip
    if given["align"] not in (None, "ids"):
        raise InputError(f"--align must be 'ids', got {given['align']!r}.")
    if given["model"] is not None:
        return _prepare_model(given, columns, voice)
    sets: dict[str, Rows | None] = {}
    for role in ("support", "query", "calib"):
        spec = given[role]
        rows = None if spec is None else checked_labels(read_rows(spec, columns))
        sets[role] = None if rows is None else _ready(rows, given, settings)
    support, query, calib = sets["support"], sets["query"], sets["calib"]
    assert support is not None
    if support.labels is None:
        _no_labels(support, given)
    _check_dims(support, query, "query")
    _check_dims(support, calib, "calib")
    arguments: dict[str, Any] = {"support": (support.embeddings, support.labels)}
    if query is not None:
        arguments["query"] = _pair(query)
        arguments["logits"] = query.logits
    if calib is not None:
        arguments["calib"] = _pair(calib)
    about = _about(given, support, query or support, calib, voice)
    dropped = [pair for rows in sets.values() if rows is not None for pair in rows.dropped]
    if dropped:
        voice.warn(f"{len(dropped)} rows were dropped; they are listed in dropped.csv.")
    return Prepared(arguments, about, dropped)


def _ready(rows: Rows, given: dict[str, Any], settings: AuditSettings) -> Rows:
    from vicinal.cli.rows import usable, vectors

    rows = vectors(rows, pool=given["pool"], transpose=given["transpose"])
    zero = settings.metric == "cosine" or settings.normalize
    return usable(rows, drop_bad=given["drop_bad"], zero_rows=zero)


def _prepare_model(given: dict[str, Any], columns: Any, voice: Voice) -> Prepared:
    """Inputs for the model, instead of embeddings."""
    from vicinal.audits.model import embedding_of
    from vicinal.checks import InputError
    from vicinal.cli.embed import model_arguments, model_inputs
    from vicinal.cli.models import check_output, load_model

    loaded = load_model(
        given["model"],
        weights=given["weights"],
        arguments=model_arguments(given["model_arg"]),
        output=given["output"],
        trust_pickle=given["trust_pickle"],
    )
    for note in loaded.notes:
        voice.say(note)
    if not loaded.hooks:
        raise InputError(
            f"{given['model']} is a compiled program without layers: embed with `vicinal embed`, "
            "then audit the embeddings."
        )
    if given["query"] is None:
        raise InputError("with --model give both sets: vicinal audit TRAIN TEST --model …")
    sets, names = {}, None
    for role in ("support", "query", "calib"):
        if given[role] is not None:
            inputs, rows, classes = model_inputs(
                given[role], columns, size=given["size"], gray=given["gray"]
            )
            if names is not None and classes is not None and classes != names:
                inputs, classes = _recoded(inputs, classes, names)
            names = names or classes
            sets[role] = (inputs, rows)
    _probe(loaded.model, sets["support"][0], check_output)
    if given["embedding"] is None:  # written down, so that the run can be repeated and explored
        given["embedding"] = embedding_of(loaded.model, sets["support"][0])
    arguments = {
        "model": loaded.model,
        "train": sets["support"][0],
        "test": sets["query"][0],
        "calib": sets["calib"][0] if "calib" in sets else None,
    }
    calib = sets["calib"][1] if "calib" in sets else None
    about = _about(given, sets["support"][1], sets["query"][1], calib, voice, names)
    return Prepared(arguments, about, [])


def _recoded(inputs: Any, classes: list[str], names: list[str]) -> tuple[Any, list[str]]:
    """Labels of another set in the codes of the support; classes it lacks come behind."""
    import torch

    place = {name: code for code, name in enumerate(names)}
    codes = [place.get(name, len(names) + at) for at, name in enumerate(classes)]
    if isinstance(inputs, tuple):
        return (inputs[0], torch.tensor(codes)[inputs[1]]), names
    if inputs.labels is not None:
        import numpy as np

        inputs.labels = np.array(codes)[inputs.labels]
    return inputs, names


def _probe(model: Any, data: Any, check_output: Any) -> None:
    """One small batch, so that a model that does not fit its data says so before the work."""
    import torch

    from vicinal.capture import batches, evaluating
    from vicinal.checks import InputError

    batch = next(batches(data, 2))
    with evaluating(model, None), torch.no_grad():
        try:
            result = batch.call(model, None)
        except InputError:
            raise
        except Exception as error:
            shape = tuple(getattr(batch.inputs[0], "shape", ()))
            raise InputError(f"the model failed on inputs of shape {shape}: {error}") from None
    check_output(result)


def _pair(rows: Rows) -> Any:
    return rows.embeddings if rows.labels is None else (rows.embeddings, rows.labels)


def _no_labels(rows: Rows, given: dict[str, Any]) -> None:
    import zipfile

    from vicinal.checks import InputError, closest

    keys: list[str] = []
    if given["support"].endswith(".npz"):
        with zipfile.ZipFile(given["support"]) as file:
            keys = [name.removesuffix(".npy") for name in file.namelist()]
    near = closest("target", keys, 1) or closest("labels", keys, 1) or closest("y", keys, 1)
    hint = f" Did you mean --label-key {near[0]}?" if near else ""
    listed = f" (keys: {', '.join(keys)})" if keys else ""
    raise InputError(f"{rows.name} has no key 'y' or 'labels'{listed}.{hint}")


def _check_dims(support: Rows, other: Rows | None, role: str) -> None:
    from vicinal.checks import InputError

    if other is None:
        return
    assert support.embeddings is not None
    assert other.embeddings is not None
    if support.embeddings.shape[1] != other.embeddings.shape[1]:
        raise InputError(
            f"support embeddings have {support.embeddings.shape[1]} dims but {role} has "
            f"{other.embeddings.shape[1]} ({other.source}). They must come from the same model and "
            f"layer. Saw {support.source} {support.embeddings.shape}."
        )


def _about(
    given: dict[str, Any],
    support: Rows,
    query: Rows,
    calib: Rows | None,
    voice: Voice,
    names: list[str] | None = None,
) -> About:
    from vicinal.audits.inputs import About
    from vicinal.cli.media import media_of

    if given["labels"] is not None:
        names = _class_names(Path(given["labels"]))
    argv = ["vicinal", *sys.argv[1:]]
    ids = {"support": support.ids, "query": query.ids}
    if given["hash_ids"]:
        ids = {role: _hashed(rows) for role, rows in (("support", support), ("query", query))}
    return About(
        name=Path(given["query"] or given["support"]).stem,
        support_name=support.name,
        query_name=query.name,
        calib_name=calib.name if calib else "calib",
        support_ids=ids["support"],
        query_ids=ids["query"],
        class_names=names,
        model=given["model"],
        command=shlex.join(argv),
        reproduce="vicinal audit - --config config.json",
        media=None if given["no_images"] else media_of(support, query),
        show_images=not given["no_images"],
        config={key: plain(value) for key, value in given.items()},
    )


def _class_names(path: Path) -> list[str]:
    from vicinal.checks import InputError

    if not path.exists():
        raise InputError(f"no such file: {path}.")
    return [line for line in path.read_text("utf-8").splitlines() if line.strip()]


def _hashed(rows: Rows) -> tuple[str, ...]:
    import hashlib

    return tuple(
        hashlib.sha256(rows.row_id(row).encode()).hexdigest()[:12] for row in range(len(rows))
    )


def plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
