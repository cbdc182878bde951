"""One record per command: its fields are the flags, the keys of a config, and the values."""

import json
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from vicinal.checks import InputError
from vicinal.cli import verbs
from vicinal.cli.__main__ import main
from vicinal.cli.config import as_config, read_config
from vicinal.cli.flags import NOT_SETTINGS
from vicinal.cli.verbs import VERBS, AuditOptions


def test_the_table_of_verbs_names_every_module_that_has_one():
    folder = Path(verbs.__file__).parent
    modules = {path.stem for path in folder.glob("*.py") if "\ndef run(" in path.read_text()}
    assert modules == set(VERBS)
    for verb, options in VERBS.items():
        assert options.EXAMPLE.startswith(f"vicinal {verb}")


def test_help_cuts_no_sentence_and_gives_every_example_a_line(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert "..." not in said.partition("Commands:")[2]
    for verb, options in VERBS.items():
        assert main([verb, "--help"]) == 0
        lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        shown = [line for line in lines[lines.index("Examples:") :] if "vicinal " in line]
        first = [line.split()[:3] for line in options.EXAMPLE.split("\n\n")]
        assert [line.split()[:3] for line in shown] == first


def test_help_has_the_options_in_groups_each_of_them_once(capsys):
    for verb, options in VERBS.items():
        assert main([verb, "--help"]) == 0
        said = capsys.readouterr().out
        flags = re.findall(r"^  (?:-\w, )?(--[\w-]+)", said, re.M)
        assert len(flags) == len(set(flags))
        arguments = said.partition("Arguments:\n")[2].partition("\n\n")[0]
        named = re.findall(r"^  \S", arguments, re.M)
        assert len(flags) + len(named) == len(fields(options)) + 1
        for part in options.__mro__[1:-1]:
            assert f"\n{part.__doc__}:\n" in said
        groups = re.split(r"^\S.*:$", said, flags=re.M)
        assert max(len(re.findall("^  .*--", group, re.M)) for group in groups) <= 14


def test_help_of_the_program_ends_with_lines_to_type(capsys):
    assert main(["--help"]) == 0
    assert "\n  vicinal audit train.npz test.npz  " in capsys.readouterr().out


LOADED = """
import sys
from vicinal.cli.__main__ import main
code = main(sys.argv[1].split())
print(code, *sys.modules)
"""


@pytest.mark.parametrize(
    ("words", "code", "loaded", "waiting"),
    [
        ("--help", 0, "vicinal", "torch numpy rich vicinal.checks"),
        ("audit --help", 0, "vicinal", "torch numpy rich vicinal.checks vicinal.cli.audit"),
        ("fit train.npz --metrc l2", 2, "vicinal", "torch vicinal.cli.fit"),
        ("layers none.py:make", 2, "vicinal.cli.layers torch", "vicinal.audits vicinal.cli.audit"),
    ],
)
def test_a_verb_is_loaded_when_it_is_called_and_torch_with_it(words, code, loaded, waiting):
    done = subprocess.run(
        [sys.executable, "-c", LOADED, words], capture_output=True, text=True, check=True
    )
    answer, *modules = done.stdout.splitlines()[-1].split()
    assert answer == str(code)
    assert set(loaded.split()) <= set(modules)
    assert not set(waiting.split()) & set(modules)


def test_help_names_every_verb_with_its_line(vicinal):
    code, out, _ = vicinal("--help")
    assert code == 0
    for verb, options in VERBS.items():
        assert f"  {verb} " in out
        assert options.__doc__[:30] in " ".join(out.split())


def test_a_config_read_back_gives_the_same_settings(tmp_path):
    given = AuditOptions(
        support="a.npz",
        query="b.npz",
        k="20",
        normalize=True,
        apply=Path("decisions.csv"),
        layer=["fc", "out"],
        max_mb=2.5,
        out=Path("elsewhere"),
    )
    path = tmp_path / "config.json"
    path.write_text(json.dumps(as_config(given)))
    again = AuditOptions(**read_config(path, AuditOptions))
    assert as_config(again) == as_config(given)
    assert again.apply == Path("decisions.csv")
    assert again.out is None
    assert not set(NOT_SETTINGS) & set(as_config(given))
    with pytest.raises(FrozenInstanceError):
        given.k = "5"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"normalize": "no"}', "c.json: 'normalize' must be true or false, got \"no\"."),
        ('{"normalize": 1}', "c.json: 'normalize' must be true or false, got 1."),
        ('{"size": "8"}', "c.json: 'size' must be a whole number, got \"8\"."),
        ('{"size": 8.5}', "c.json: 'size' must be a whole number, got 8.5."),
        ('{"seed": true}', "c.json: 'seed' must be a whole number, got true."),
        ('{"seed": null}', "c.json: 'seed' must be a whole number, got null."),
        ('{"target_accuracy": "high"}', "'target_accuracy' must be a number, got \"high\"."),
        ('{"max_mb": NaN}', "c.json: 'max_mb' must be a number, got NaN."),
        ('{"layer": "fc"}', "c.json: 'layer' must be a list of texts, got \"fc\"."),
        ('{"layer": [3]}', "c.json: 'layer' must be a list of texts, got [3]."),
        ('{"apply": 3}', "c.json: 'apply' must be a path, got 3."),
        ('{"metric": false}', "c.json: 'metric' must be text, got false."),
        ('{"metrc": "l2"}', "vicinal audit has no setting 'metrc'. Did you mean 'metric'?"),
        ('{"quiet": true}', "c.json: vicinal audit has no setting 'quiet'."),
        ("[1, 2]", "c.json: it is no JSON object."),
        ("{", "cannot read c.json"),
    ],
)
def test_a_wrong_config_is_refused_with_a_sentence(vicinal, tmp_path, text, sentence):
    (tmp_path / "c.json").write_text(text)
    code, _, err = vicinal("audit", "-", "--config", "c.json")
    assert code == 2
    assert sentence in err
    assert [path.name for path in tmp_path.iterdir()] == ["c.json"]


def test_whole_numbers_stand_for_other_numbers_and_for_k(tmp_path):
    path = tmp_path / "c.json"
    path.write_text('{"k": 20, "max_mb": 3, "metric": "cosine"}')
    assert read_config(path, AuditOptions) == {"k": "20", "max_mb": 3.0, "metric": "cosine"}
    with pytest.raises(InputError, match="no such file"):
        read_config(tmp_path / "none.json", AuditOptions)


def test_what_is_typed_wins_over_the_config(vicinal, files, run_folder, tmp_path):
    config = run_folder / "config.json"
    words = ["audit", "-", "--config", config, "-o", "run", "--k", "7", "--json"]
    code, out, _ = vicinal(*words)
    assert code == 0
    assert json.loads(out)["data"]["k"] == 7
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written == {**json.loads(config.read_text()), "k": "7"}
