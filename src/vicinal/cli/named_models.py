"""Models by name, from libraries that are installed: timm, transformers, sentence-transformers.

Nothing is downloaded unless ``--online`` is given: a name means a folder, or what the library's own
cache already holds. Size and normalization of images come from the model's own configuration.
"""

from __future__ import annotations

import importlib
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

from vicinal.checks import InputError, did_you_mean
from vicinal.cli.user_code import user_code
from vicinal.files import read_json

OWN_ENCODER = "efficientnet-lite0"  # vicinal.audits.encoder: our own code, from an extra
PREFIXES = ("timm", "hf", "sentence-transformers")
LONGEST = 256  # tokens of a text


@dataclass(frozen=True)
class NamedModel:
    """A model, how its images are read, and what makes inputs or rows of texts, if it does.

    ``embedding``: the layer to search in, where it is known.
    """

    model: nn.Module
    size: int | None = None
    gray: bool = False
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    tokenize: Callable[[Sequence[str]], Tensor] | None = None
    encode: Callable[[Sequence[str]], NDArray[Any]] | None = None
    embedding: str | None = None


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
    if kind == "timm" and not online:
        fix = "Give --weights, or add --online to download them."
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
    if ":" not in name and not timm.is_model(name):  # else hf-hub:… or local-dir:…
        raise InputError(f"timm has no model {name!r}.{did_you_mean(name, timm.list_models())}")
    model = timm.create_model(name, pretrained=pretrained, **arguments).eval()
    facts = timm.data.resolve_model_data_config(model)
    channels, _, side = facts["input_size"]
    return NamedModel(model, side, channels == 1, _numbers(facts, "mean"), _numbers(facts, "std"))


def _hugging_face(name: str, online: bool) -> NamedModel:
    library = _needed("transformers", "hf")
    library.utils.logging.disable_progress_bar()  # a log would be full of it
    local = {"local_files_only": not online}
    config = library.AutoConfig.from_pretrained(name, **local)
    if getattr(config, "vocab_size", None) is None or hasattr(config, "image_size"):
        model = _made(library, "AutoModelForImageClassification", config, name, local)
        facts, gray = _image_facts(library, name, local), getattr(config, "num_channels", 3) == 1
        normal = facts if facts.get("do_normalize", True) else {}
        mean, std = _numbers(normal, "image_mean"), _numbers(normal, "image_std")
        return NamedModel(model, _side(facts, config), gray, mean, std, embedding=model.embedding)
    tokenizer = library.AutoTokenizer.from_pretrained(name, **local)
    model = _made(library, "AutoModelForSequenceClassification", config, name, local)
    if tokenizer.pad_token is None:  # GPT-2 and its like: what is masked may be any token
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
        model.config.pad_token_id = tokenizer.pad_token_id

    def tokenize(texts: Sequence[str]) -> Tensor:
        """(n, 2, l): the tokens of each text, and which of them are padding."""
        most = min(getattr(config, "max_position_embeddings", LONGEST), LONGEST)
        with user_code(f"the tokenizer of {name}"):
            found = tokenizer(list(texts), padding=True, truncation=True, max_length=most,
                              return_tensors="pt")  # fmt: skip
        return torch.stack([found["input_ids"], found["attention_mask"]], 1)

    return NamedModel(model, tokenize=tokenize, embedding=model.embedding)


def _made(library: Any, auto: str, config: Any, name: str, local: dict[str, Any]) -> OneOutput:
    """With its classifier where it was trained with one, else the bare model.

    Weights that a checkpoint lacks would be drawn at random, differently in every call: a pooler of
    such is not asked, anything else is an error.
    """
    kind = auto.removeprefix("AutoModelFor")
    trained = any(kind in str(made) for made in config.architectures or ())
    found, facts = getattr(library, auto if trained else "AutoModel").from_pretrained(
        name, output_loading_info=True, **local
    )
    lacking = sorted(facts["missing_keys"])
    if rest := [key for key in lacking if not key.startswith("pooler.")]:
        raise InputError(
            f"hf:{name} lacks {len(rest)} weights of its {type(found).__name__} (first: "
            f"{rest[0]}), which would be random. Give a folder of the whole model."
        )
    return OneOutput(found.eval(), pooler=not lacking, embedding=None if trained else "output")


def _side(facts: Mapping[str, Any], config: Any) -> int | None:
    """Pixels of a side as the model gets them, behind its own cropping; nothing is cropped here."""
    crop = facts.get("crop_size") if facts.get("do_center_crop") else None
    side = crop or facts.get("size") or getattr(config, "image_size", None)
    if isinstance(side, Mapping):
        side = side.get("height") or side.get("shortest_edge")
    return side if isinstance(side, int) else None


def _image_facts(library: Any, name: str, local: dict[str, Any]) -> dict[str, Any]:
    """What ``preprocessor_config.json`` says; nothing where there is none."""
    path = Path(name) / "preprocessor_config.json"
    if not Path(name).is_dir():
        cached = library.utils.hub.cached_file
        found = cached(name, path.name, _raise_exceptions_for_missing_entries=False, **local)
        path = Path(found or "")
    return read_json(path, "Nothing was written.") if path.is_file() else {}


class OneOutput(nn.Module):
    """A model of transformers as a function from one tensor to one: logits, or pooled features.

    Parameters
    ----------
    inner : the model.
    pooler : whether its own pooled features are to be believed, else the mean over places is taken,
        of texts over those that are no padding.
    embedding : the layer to search in, where it is not the last but one.
    """

    def __init__(self, inner: Any, *, pooler: bool, embedding: str | None) -> None:
        super().__init__()
        self.inner, self.pooler, self.embedding = inner, pooler, embedding
        self.config: Any = inner.config  # the names of its classes

    def forward(self, x: Tensor) -> Tensor:
        mask = None
        if x.ndim == 3:  # texts: their tokens, and which of them count
            tokens, mask = x.long().unbind(1)
            out = self.inner(input_ids=tokens, attention_mask=mask)
        else:
            out = self.inner(pixel_values=x)
        logits, pooled = getattr(out, "logits", None), getattr(out, "pooler_output", None)
        if logits is not None:
            return logits
        if pooled is not None and self.pooler:
            return pooled.flatten(1)
        places = out.last_hidden_state
        if places.ndim == 4:  # maps of a convolutional net
            return places.flatten(2).mean(2)
        if mask is None:
            return places.mean(1)
        return (places * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def _sentences(name: str, online: bool) -> NamedModel:
    library = _needed("sentence_transformers", "sentence-transformers")
    model = library.SentenceTransformer(name, local_files_only=not online)

    def encode(texts: Sequence[str]) -> NDArray[Any]:
        return np.asarray(model.encode(list(texts), show_progress_bar=False), dtype=np.float32)

    return NamedModel(model, encode=encode)


def _numbers(facts: Mapping[str, Any], name: str) -> tuple[float, ...]:
    return tuple(float(value) for value in facts.get(name) or ())
