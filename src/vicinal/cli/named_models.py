"""Models by name, from libraries that are installed: timm, transformers, sentence-transformers.

Nothing is downloaded unless ``--online`` is given: a name means a folder, or what the library's own
cache already holds. Size and normalization of images come from the model's own configuration.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vicinal.checks import InputError
from vicinal.cli.user_code import user_code
from vicinal.files import reading

OWN_ENCODER = "efficientnet-lite0"  # vicinal.audits.encoder: our own code, from an extra
PREFIXES = ("timm", "hf", "sentence-transformers")
LONGEST = 256  # tokens of a text


@dataclass(frozen=True)
class NamedModel:
    """A model, how its images are read, and what makes inputs or rows of texts, if it does."""

    model: nn.Module
    size: int | None = None
    gray: bool = False
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    tokenize: Callable[[Sequence[str]], Tensor] | None = None
    encode: Callable[[Sequence[str]], NDArray[Any]] | None = None


def is_named(spec: str) -> bool:
    """Whether a spec is of the form ``timm:resnet18``."""
    return spec.partition(":")[0] in PREFIXES


def named_model(
    spec: str, online: bool, arguments: Mapping[str, Any], weighted: bool
) -> NamedModel:
    """The model behind ``timm:name``, ``hf:folder-or-name`` or ``sentence-transformers:name``.

    ``arguments`` are of timm; ``weighted``: from a file, so that no weights are looked for.
    """
    kind, _, name = spec.partition(":")
    if arguments and kind != "timm":
        raise InputError(f"--model-arg is for factories and timm; {kind}: models take none.")
    fix = "" if online else "Give a folder, or add --online to download it."
    with _cache_alone(online), user_code(f"making --model {spec}", fix):
        if kind == "timm":
            return _timm(name, arguments, pretrained=not weighted)
        return (_hugging_face if kind == "hf" else _sentences)(name, online)


@contextmanager
def _cache_alone(online: bool) -> Iterator[None]:
    """Libraries that look at it ask no server."""
    before = os.environ.get("HF_HUB_OFFLINE")
    if not online:
        os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("HF_HUB_OFFLINE", None)
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def _needed(module: str, kind: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.replace("_", "-")
        why = "" if getattr(error, "name", None) == module else f" ({error})"
        raise InputError(
            f"{kind}: models need {package}, which cannot be imported{why}: pip install {package}."
        ) from None


def _timm(name: str, arguments: Mapping[str, Any], pretrained: bool) -> NamedModel:
    """Size and normalization as timm resolves them, ImageNet's by default; nothing is cropped."""
    timm = _needed("timm", "timm")
    model = timm.create_model(name, pretrained=pretrained, **arguments).eval()
    facts = timm.data.resolve_model_data_config(model)
    channels, _, side = facts["input_size"]
    return NamedModel(model, side, channels == 1, _numbers(facts, "mean"), _numbers(facts, "std"))


def _hugging_face(name: str, online: bool) -> NamedModel:
    library = _needed("transformers", "hf")
    local = {"local_files_only": not online}
    config = library.AutoConfig.from_pretrained(name, **local)
    if getattr(config, "vocab_size", None) is None or hasattr(config, "image_size"):
        inner = _made(library, "AutoModelForImageClassification", config, name, local)
        facts = _image_facts(library, name, local)
        side = facts.get("size")
        if isinstance(side, Mapping):
            side = side.get("height") or side.get("shortest_edge")
        size = side if isinstance(side, int) else getattr(config, "image_size", None)
        gray = getattr(config, "num_channels", 3) == 1
        mean, std = _numbers(facts, "image_mean"), _numbers(facts, "image_std")
        return NamedModel(OneOutput(inner, "pixel_values"), size, gray, mean, std)
    inner = _made(library, "AutoModelForSequenceClassification", config, name, local)
    tokenizer = library.AutoTokenizer.from_pretrained(name, **local)

    def tokenize(texts: Sequence[str]) -> Tensor:
        """(n, 2, l): the tokens of each text, and which of them are padding."""
        most = min(getattr(config, "max_position_embeddings", LONGEST), LONGEST)
        found = tokenizer(list(texts), padding=True, truncation=True, max_length=most,
                          return_tensors="pt")  # fmt: skip
        return torch.stack([found["input_ids"], found["attention_mask"]], 1)

    return NamedModel(OneOutput(inner, "tokens"), tokenize=tokenize)


def _made(library: Any, auto: str, config: Any, name: str, local: dict[str, Any]) -> nn.Module:
    """With its classifier where it was trained with one, else the bare model."""
    kind = auto.removeprefix("AutoModelFor")
    trained = any(kind in str(made) for made in config.architectures or ())
    found = getattr(library, auto if trained else "AutoModel").from_pretrained(name, **local)
    return found.eval()


def _image_facts(library: Any, name: str, local: dict[str, Any]) -> dict[str, Any]:
    """What ``preprocessor_config.json`` says; nothing where there is none."""
    path = Path(name) / "preprocessor_config.json"
    if not Path(name).is_dir():
        from transformers.utils.hub import cached_file

        found = cached_file(name, path.name, _raise_exceptions_for_missing_entries=False, **local)
        path = Path(found or "")
    if not path.is_file():
        return {}
    with reading(path):
        return dict(json.loads(path.read_bytes()))


class OneOutput(nn.Module):
    """A model of transformers as a function from one tensor to one: logits, or pooled features."""

    def __init__(self, inner: nn.Module, takes: str) -> None:
        super().__init__()
        self.inner, self.takes = inner, takes
        self.config = inner.config  # the names of its classes

    def forward(self, x: Tensor) -> Tensor:
        if self.takes == "tokens":
            x = x.long()
            out = self.inner(input_ids=x[:, 0], attention_mask=x[:, 1])
        else:
            out = self.inner(pixel_values=x)
        logits = getattr(out, "logits", None)
        if logits is not None:
            return logits
        pooled = getattr(out, "pooler_output", None)
        return out.last_hidden_state.mean(1) if pooled is None else pooled.flatten(1)


def _sentences(name: str, online: bool) -> NamedModel:
    library = _needed("sentence_transformers", "sentence-transformers")
    model = library.SentenceTransformer(name, local_files_only=not online)

    def encode(texts: Sequence[str]) -> NDArray[Any]:
        return np.asarray(model.encode(list(texts), show_progress_bar=False), dtype=np.float32)

    return NamedModel(model, encode=encode)


def _numbers(facts: Mapping[str, Any], name: str) -> tuple[float, ...]:
    return tuple(float(value) for value in facts.get(name) or ())
