"""Models as people keep them: factories, checkpoints in wrappers, compiled programs."""

import re
import textwrap

import pytest
import torch
from torch import nn

from vicinal.capture import capture
from vicinal.checks import InputError
from vicinal.cli.console import Console
from vicinal.cli.models import check_output, imported, model_of
from vicinal.cli.verbs import ModelOptions

SOURCE = """
from torch import nn

def make(width=4):
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2))

class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)
    def forward(self, x):
        return {"logits": self.inner(x), "hidden": x}

def not_a_model():
    return 7

number = 3
"""


def load_model(spec, **typed):
    return model_of(spec, ModelOptions(**typed), Console())


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "my_model.py"
    path.write_text(textwrap.dedent(SOURCE))
    return path


@pytest.fixture
def state(source):
    torch.manual_seed(1)
    return load_model(f"{source}:make").model.state_dict()


@pytest.mark.parametrize(
    ("wrap", "note"),
    [
        (lambda s: s, "4/4 parameters match"),
        (lambda s: {"epoch": 3, "model": s}, r"w.pt\['model'\]"),
        (lambda s: {f"module.{k}": v for k, v in s.items()}, "after removing 'module.'"),
        (
            lambda s: {"state_dict": {f"_orig_mod.{k}": v for k, v in s.items()}, "optimizer": {}},
            r"\['state_dict'\] after removing '_orig_mod.'",
        ),
        (lambda s: {**s, "extra": torch.zeros(1)}, "1 entries of w.pt were not used"),
    ],
)
def test_checkpoints_are_unwrapped_and_the_notes_say_how(
    tmp_path, source, state, wrap, note, capsys
):
    torch.save(wrap(state), tmp_path / "w.pt")
    loaded = load_model(f"{source}:make", weights=str(tmp_path / "w.pt"))
    assert torch.equal(loaded.model[0].weight, state["0.weight"])
    assert re.search(note, capsys.readouterr().out)


def test_weights_of_another_model_are_refused_with_a_count(tmp_path, source, state):
    torch.save({"epoch": 1, "optimizer": {}}, tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"weights match 0 of 4 .*holds: epoch, optimizer"):
        load_model(f"{source}:make", weights=str(tmp_path / "w.pt"))
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"weights match 1 of 4 parameters.*0\.weight"):
        load_model(f"{source}:make", weights=str(tmp_path / "w.pt"), model_arg=["width=5"])


def test_a_pickled_model_is_loaded_only_on_request(tmp_path, source):
    model = load_model(f"{source}:make").model
    torch.save(model, tmp_path / "whole.pt")
    with pytest.raises(InputError, match="add --trust-pickle"):
        load_model(f"{source}:make", weights=str(tmp_path / "whole.pt"))
    loaded = load_model(f"{source}:make", weights=str(tmp_path / "whole.pt"), trust_pickle=True)
    assert torch.equal(loaded.model[0].weight, model[0].weight)


def test_compiled_programs_run_without_their_source(tmp_path, source):
    model, x = load_model(f"{source}:make").model.eval(), torch.randn(2, 3)
    torch.jit.trace(model, x).save(str(tmp_path / "m.ts"))
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "m.pt2")
    for name in ("m.ts", "m.pt2"):
        loaded = load_model(str(tmp_path / name))
        assert not loaded.hooks
        torch.testing.assert_close(loaded.model(x), model(x))
        found = capture(loaded.model, x, ["output"], batch_size=2)["output"]
        torch.testing.assert_close(found, model(x).detach())
        for given in ({"weights": "w.pt"}, {"model_arg": ["width=5"]}):
            with pytest.raises(InputError, match="holds its weights, so --.* Leave it out"):
                load_model(str(tmp_path / name), **given)
    with pytest.raises(InputError, match="--online is for models by name"):
        load_model(f"{source}:make", online=True)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{source}:mkae", "has no 'mkae'. Close names: make"),
        ("{source}:number", "is a int, not a function that makes a model"),
        ("{source}:not_a_model", "returned a int, not a torch.nn.Module"),
        ("missing.py:make", "no such file: missing.py"),
        ("no.such.package:make", "cannot import 'no.such.package'"),
        ("nowhere", "no model 'nowhere'"),
    ],
)
def test_a_model_that_cannot_be_made_earns_a_sentence(source, spec, message):
    with pytest.raises(InputError, match=message):
        load_model(spec.format(source=source))


def test_arguments_reach_the_factory(source):
    assert load_model(f"{source}:make", model_arg=["width=7"]).model[0].out_features == 7
    with pytest.raises(InputError, match="cannot be called so: .*Use --model-arg"):
        load_model(f"{source}:make", model_arg=["wdth=7"])


def test_one_of_several_outputs_is_chosen_by_name(source):
    several = load_model(f"{source}:Several").model
    with pytest.raises(InputError, match=r"dict\(logits, hidden\). Choose: --output logits"):
        check_output(several(torch.zeros(1, 3)))
    chosen = load_model(f"{source}:Several", output="logits").model
    assert chosen(torch.zeros(4, 3)).shape == (4, 2)
    with pytest.raises(InputError, match="has no 'nothing'"):
        load_model(f"{source}:Several", output="nothing").model(torch.zeros(1, 3))


def test_objects_are_imported_from_files_and_modules(source):
    assert imported("torch.nn:Linear", "--model") is nn.Linear
    assert imported(f"{source}:number", "--model") == 3


def test_a_checkpoint_is_not_a_program(tmp_path, state):
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(InputError, match="neither TorchScript nor an exported program"):
        load_model(str(tmp_path / "w.pt"))
