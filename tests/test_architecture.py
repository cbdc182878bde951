"""The rooms of the house, which doors are open, and the few rules a machine can see."""

import ast
import functools
import re
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "vicinal"
FILES = sorted(SOURCE.rglob("*.py"))

FLOOR = {"capture", "neighbors", "evaluation"}
ROOMS = {"losses", "similarity", "confidence", "perturbations"}
MAY_IMPORT = {
    "capture": set(),
    "neighbors": set(),
    "evaluation": {"neighbors"},
    **dict.fromkeys(ROOMS, FLOOR),
    "audits": FLOOR | ROOMS,
    "studies": FLOOR | ROOMS | {"audits"},
    "report": {"audits"},
    "cli": FLOOR | ROOMS | {"audits", "studies", "report"},
    "__main__.py": {"cli"},  # python -m vicinal
}
# An audit knows how to save itself as a page: inside that one method the arrow points up.
MAY_IMPORT_LATE = {"audits": {"report"}}


def each_file(rule):
    """A test that holds a rule against every file and names those that break it."""

    def test():
        broken = []
        for path in FILES:
            try:
                rule(path)
            except AssertionError as error:
                broken.append(f"{path.relative_to(SOURCE)}: {error}")
        assert not broken, "\n".join(broken)

    test.__doc__ = rule.__doc__
    return test


@functools.cache
def tree(path):
    return ast.parse(path.read_text())


def functions_of(parsed):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(parsed) if isinstance(node, kinds)]


def functions(path):
    return functions_of(tree(path))


def rooms_imported(path, *, late=False):
    """Every room that a file imports: when it is loaded, or ``late``, inside functions."""
    whole = tree(path)
    inside = {id(n) for f in functions_of(whole) for n in ast.walk(f)}
    for node in ast.walk(whole):
        if (id(node) in inside) != late:
            continue
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "vicinal":
                names = [f"vicinal.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "vicinal" and len(parts) > 1 and (SOURCE / parts[1]).is_dir():
                yield parts[1]


@each_file
def test_a_file_imports_only_rooms_below_its_own(path):
    room = path.relative_to(SOURCE).parts[0]
    if room in MAY_IMPORT:
        allowed = MAY_IMPORT[room] | {room}
        assert set(rooms_imported(path)) <= allowed
        assert set(rooms_imported(path, late=True)) <= allowed | MAY_IMPORT_LATE.get(room, set())
    else:  # __init__.py and checks.py stand outside the rooms and import none of them
        assert not set(rooms_imported(path))


@each_file
def test_a_file_is_short_enough_to_read(path):
    assert path.read_text().count("\n") <= 400


@each_file
def test_there_is_no_drawer_for_odds_and_ends(path):
    assert path.stem not in {"utils", "util", "helpers", "helper", "common", "misc", "tools"}


@each_file
def test_no_public_argument_hides_in_kwargs(path):
    hidden = [n for n in ast.walk(tree(path)) if isinstance(n, ast.ClassDef) and n.name[0] == "_"]
    inner = {id(n) for f in [*functions(path), *hidden] for n in ast.walk(f) if n is not f}
    outer = [f for f in functions(path) if id(f) not in inner]
    public = [f for f in outer if not f.name.startswith("_") or f.name == "__init__"]
    assert not [f.name for f in public if f.args.kwarg]


@functools.cache
def classes():
    nodes = [node for p in FILES for node in ast.walk(tree(p))]
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def test_no_class_has_the_name_of_another():
    named = [node.name for p in FILES for node in tree(p).body if isinstance(node, ast.ClassDef)]
    assert sorted(named) == sorted({*named})


@each_file
def test_no_class_stands_on_a_tower(path):
    """At most one base of our own: class depth 2."""

    def depth(name):
        bases = [b.id for b in classes()[name].bases if isinstance(b, ast.Name)]
        return 1 + max((depth(b) for b in bases if b in classes() and b != name), default=0)

    here = [node.name for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)]
    assert not [name for name in here if depth(name) > 2]


@each_file
def test_logarithms_are_taken_in_log_space(path):
    assert not re.search(r"log\([^)\n]*\+\s*(eps|1e-)|\+\s*(eps|1e-\d+)\)\.log\(", path.read_text())


@each_file
def test_the_library_neither_prints_nor_seeds_nor_picks_a_device(path):
    if "cli" in path.relative_to(SOURCE).parts:
        return
    calls = [node.func for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    names = {f.id for f in calls if isinstance(f, ast.Name)}
    attributes = {ast.unparse(f) for f in calls if isinstance(f, ast.Attribute)}
    assert "print" not in names
    assert not attributes & {"torch.manual_seed", "np.random.seed", "random.seed"}
    assert not [a for a in attributes if a.endswith(".cuda")]


@each_file
def test_no_pickle_is_loaded(path):
    text = path.read_text()
    assert not re.search(r"\bimport pickle\b|\bpickle\.loads?\(|joblib\.load", text)


def test_every_room_of_the_map_exists():
    rooms = {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert rooms == set(MAY_IMPORT) - {"__main__.py"}


def test_the_map_names_no_file_that_is_gone():
    """Every file of the library that ARCHITECTURE.md and CONTRIBUTING.md name is there."""
    root = SOURCE.parents[1]
    for page in ("ARCHITECTURE.md", "CONTRIBUTING.md"):
        named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", (root / page).read_text())
        gone = [p for p in named if not (SOURCE / p).exists() and not (root / p).exists()]
        assert [p for p in gone if not p.endswith("/name.py")] == []  # "name" stands for any name
