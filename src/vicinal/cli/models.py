"""Models named on the command line: a factory and its weights, TorchScript, ``torch.export``.

A model is code, and code comes from the command line of this invocation alone; see
``cli/config.py`` for what a file may say about models.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vicinal.capture import load_weights, read_weights
from vicinal.checks import InputError, closest
from vicinal.cli.console import Console
from vicinal.cli.named_models import OWN_ENCODER, PREFIXES, NamedModel, is_named, named_model
from vicinal.cli.user_code import remember, user_code
from vicinal.cli.verbs import ModelOptions
from vicinal.files import reason, regular_file

EXECUTES = "{} is a program: to load it is to run what it holds. Load only files you trust."


@dataclass(frozen=True)
class LoadedModel:
    """The model, and what is known of it."""

    model: nn.Module
    hooks: bool = True  # TorchScript and exported programs have no layers to listen to
    named: NamedModel | None = None  # a model of a library, with how it reads images and texts

    @property
    def tokenize(self) -> Callable[[Sequence[str]], Tensor] | None:
        """What makes inputs of texts, if the model reads texts."""
        return None if self.named is None else self.named.tokenize


def model_of(spec: str, options: ModelOptions, console: Console) -> LoadedModel:
    """``pkg.module:factory``, ``file.py:factory``, ``model.ts``, ``model.pt2``, or by a name.

    Weights are read with ``weights_only=True``; a training checkpoint is unwrapped and prefixes of
    parallel or compiled models removed, which is printed. A factory is called with the
    ``name=value`` pairs: numbers, true, false and none are read as such.
    """
    _check_needed(spec, options)
    arguments, weights = model_arguments(options.model_arg), options.weights
    if spec == OWN_ENCODER:
        from vicinal.audits.encoder import image_encoder  # late: with it come audits

        loaded = LoadedModel(image_encoder())
    elif is_named(spec):
        found = named_model(spec, options.online, arguments, weighted=weights is not None)
        loaded = LoadedModel(found.model, named=found)
    elif ":" not in spec:
        if spec.endswith(".pt2"):
            console.warn(EXECUTES.format(spec))
        loaded = _load_program(spec)
    else:
        loaded = LoadedModel(_called(_factory(spec), spec, arguments))
    if weights:
        fix = "If it holds a whole pickled model that you trust, add --trust-pickle."
        state = read_weights(weights, trust_pickle=options.trust_pickle, fix=fix)
        for note in load_weights(loaded.model, state, Path(weights).name):
            console.print(note)
    if options.output is None:
        return loaded
    return replace(loaded, model=ChosenOutput(loaded.model, options.output))


def _check_needed(spec: str, options: ModelOptions) -> None:
    """What a model has no use for is not left aside in silence."""
    if options.online and not is_named(spec):
        raise InputError(f"--online is for models by name ({', '.join(PREFIXES)}), not {spec}.")
    if is_named(spec) or ":" in spec:
        return
    for flag, given in (("weights", options.weights), ("model-arg", options.model_arg)):
        if given:
            what = "is one model with its weights" if spec == OWN_ENCODER else "holds its weights"
            raise InputError(f"{spec} {what}, so --{flag} would change nothing. Leave it out.")


def model_arguments(pairs: Sequence[str] | None) -> dict[str, Any]:
    """``name=value`` pairs of ``--model-arg`` by name."""
    found = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--model-arg must be name=value, got {pair!r}.")
        found[name] = _value(value)
    return found


class ChosenOutput(nn.Module):
    """A model that returns several things, reduced to the one that was asked for."""

    def __init__(self, inner: nn.Module, key: str):
        super().__init__()
        self.inner = inner
        self.key = key

    def forward(self, *inputs: Any) -> Tensor:
        result = self.inner(*inputs)
        if isinstance(result, Mapping) and self.key in result:
            return result[self.key]
        if hasattr(result, self.key):
            return getattr(result, self.key)
        if isinstance(result, (tuple, list)) and self.key.isdigit() and int(self.key) < len(result):
            return result[int(self.key)]
        raise InputError(f"forward() returned {described(result)}, which has no {self.key!r}.")


def described(result: Any) -> str:
    """What came out of a model, in a few words: ``dict(logits, hidden)``."""
    if isinstance(result, Mapping):
        return f"dict({', '.join(map(str, result))})"
    if isinstance(result, (tuple, list)):
        return f"{type(result).__name__} of {len(result)}"
    return type(result).__name__


def check_output(result: Any) -> None:
    """One tensor of rows, or a sentence that names the choices."""
    if isinstance(result, Tensor):
        return
    fix = "Choose a part of it: --output 0, or a name."
    if isinstance(result, Mapping):
        fix = f"Choose: --output {'logits' if 'logits' in result else next(iter(result), 'logits')}"
    raise InputError(f"forward() returned {described(result)}. {fix}")


def imported(spec: str, what: str) -> Any:
    """The object that ``pkg.module:name`` or ``file.py:name`` names."""
    where, _, name = spec.rpartition(":")
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # what fails leaves nothing
    try:
        module = _module_from_file(Path(where)) if where.endswith(".py") else _module(where, what)
    finally:
        sys.dont_write_bytecode = before
    remember(getattr(module, "__file__", None))
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        near = ", ".join(closest(name, public)) or ", ".join(public[:5])
        raise InputError(f"{where} has no {name!r}. Close names: {near}.")
    return getattr(module, name)


def _factory(spec: str) -> Callable[..., Any]:
    found = imported(spec, "--model")
    if isinstance(found, nn.Module):
        return lambda: found
    if not callable(found):
        raise InputError(f"{spec} is a {type(found).__name__}, not a function that makes a model.")
    return found


def _module(name: str, what: str) -> Any:
    sys.path.insert(0, "")
    fix = "Give pkg.module:name or file.py:name."
    try:
        with user_code(f"{what}: importing {name!r}", fix):
            try:
                return importlib.import_module(name)
            except ModuleNotFoundError as error:
                if f"{name}.".startswith(f"{error.name}."):  # itself, not what it imports
                    raise InputError(f"{what}: cannot import {name!r} ({error}). {fix}") from None
                raise
    finally:
        if "" in sys.path:
            sys.path.remove("")


def _module_from_file(path: Path) -> Any:
    regular_file(path)
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        with user_code(f"importing {path}"):
            spec.loader.exec_module(module)
    except InputError:
        del sys.modules[path.stem]
        if before is not None:  # a file named like a module of somebody else's
            sys.modules[path.stem] = before
        raise
    return module


def _called(factory: Callable[..., Any], spec: str, given: dict[str, Any]) -> nn.Module:
    try:
        inspect.signature(factory).bind(**given)
    except ValueError:  # some classes of C tell no signature
        pass
    except TypeError as error:
        raise InputError(
            f"{spec} cannot be called so: {error}. Use --model-arg name=value."
        ) from None
    with user_code(f"calling {spec}", "Its arguments are given with --model-arg name=value."):
        model = factory(**given)
    if not isinstance(model, nn.Module):
        raise InputError(f"{spec} returned a {type(model).__name__}, not a torch.nn.Module.")
    return model


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


class Program(nn.Module):
    """A program as a model of one layer, its output: it takes neither hooks nor ``eval()``."""

    def __init__(self, program: Callable[..., Any]) -> None:
        super().__init__()
        self.program = (program,)  # in a tuple: no module of ours

    def forward(self, *inputs: Tensor) -> Any:
        return self.program[0](*inputs)


def _load_program(spec: str) -> LoadedModel:
    path = Path(spec)
    if not path.exists():
        raise InputError(
            f"no model {spec!r}: give file.py:factory, pkg.module:factory, timm:NAME, hf:NAME, a "
            "TorchScript file or a .pt2 file."
        )
    if path.is_dir():
        raise InputError(f"{spec} is a folder, no model. Name one as file.py:factory or hf:{spec}.")
    regular_file(path)
    if path.suffix == ".py":
        made = re.findall(r"^(?:def|class) ([a-zA-Z]\w*)", path.read_text("utf-8", "replace"), re.M)
        some = ", ".join(f"{spec}:{name}" for name in made[:5]) or f"{spec}:make"
        raise InputError(f"{spec} may hold many things: name what makes the model, as in {some}.")
    logging.disable(logging.WARNING)  # torch tells of a broken file in a log of its own
    try:
        if path.suffix == ".pt2":
            program = torch.export.load(path).module()
        else:
            program = torch.jit.load(str(path), map_location="cpu").eval()
        return LoadedModel(Program(program), hooks=False)
    except Exception as error:
        raise InputError(
            f"{path.name} is neither TorchScript nor an exported program ({reason(error)}). For a "
            "checkpoint give the factory as --model and the file as --weights."
        ) from None
    finally:
        logging.disable(logging.NOTSET)
