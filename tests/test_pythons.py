"""Other Pythons at hand read every file, and know what we import of their standard library.

The suite itself runs on another one with ``make test PYTHON=python3.12 VENV=.venv-3.12``.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READ = """
import ast, importlib, pathlib, sys
wanted, files = set(), 0
for top in sys.argv[1:]:
    for path in pathlib.Path(top).rglob("*.py"):
        tree = ast.parse(path.read_bytes(), str(path))
        compile(tree, str(path), "exec")
        files += 1
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                wanted |= {(alias.name, None) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                wanted |= {(node.module, alias.name) for alias in node.names}
for module, name in sorted(wanted, key=str):
    if module.partition(".")[0] in sys.stdlib_module_names and module != "__future__":
        found = importlib.import_module(module)
        if name is not None and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
print(files)
"""


def interpreter(version):
    """The program of a Python, on the path or among those of pyenv; None: there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    for program in filter(None, found):
        asked = [str(program), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:
            return str(program)
    return None


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_another_python_reads_every_file_without_a_warning(version):
    program = interpreter(version)
    if program is None:
        pytest.skip(f"no Python {version} here")
    tops = [str(ROOT / name) for name in ("src", "tests", "benchmarks", "experiments", "examples")]
    done = subprocess.run(
        [program, "-I", "-W", "error", "-c", READ, *tops],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 400
