"""Each example runs as it stands, offline, and learns the digits."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_example_runs_and_learns(path, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # whatever it may write stays out of the repository
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        pytest.skip(f"{path.name} needs {error.name}, which is not installed")
    accuracy = module.main()
    assert accuracy > 0.85  # chance is 0.10
    said = capsys.readouterr().out
    assert "accuracy" in said
    assert "entanglement/" in said
    assert not list(tmp_path.iterdir())
