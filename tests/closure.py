"""How much of the house one function reaches: the files and lines one must read to be sure of it.

Function by function, not import by import: from a public name follow every name of the library that
its source mentions, through re-exports, to the definition it stands for. Of a class that is reached
count its head (what is no method, and the dunder methods) and each method whose name is mentioned
somewhere in what is reached. A definition counts with its docstring and decorators.
"""

import ast
import functools
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "vicinal"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Closure(NamedTuple):
    files: int
    lines: int


class Module(NamedTuple):
    definitions: dict  # name -> AST node of a function, class or assignment
    imports: dict  # name -> (module, name) or (module, None) for a whole module
    calls: list  # statements that are calls, ``op.register_autograd(…)``


def closure(module, name, methods=()):
    """Files and lines reached from one public name, of a class through these ``methods``."""
    found = reached(module, name, methods)
    files = {module for module, _ in found}
    return Closure(len(files), sum(length(part) for parts in found.values() for part in parts))


def reached(module, name, methods=()):
    """(module, name) -> the nodes of it that count: the whole, or a class's parts in use."""
    todo, found, called = [resolve(module, name)], {}, set(methods)
    while todo:
        for place in todo:
            if place is not None:
                found.setdefault(place, [])
        todo = []
        for place, counted in list(found.items()):
            for part in in_use(load(place[0]).definitions[place[1]], called):
                if not any(part is other for other in counted):
                    counted.append(part)
                    called |= {n.attr for n in ast.walk(part) if isinstance(n, ast.Attribute)}
                    todo += [*mentioned(place, part)]
            todo += registered(*place)
        todo = [place for place in todo if place is not None and place not in found] or (
            [None] if grew(found, called) else []
        )
    return found


def grew(found, called):
    """Whether a method was named after its class was looked through."""
    return any(
        not any(part is other for other in counted)
        for place, counted in found.items()
        for part in in_use(load(place[0]).definitions[place[1]], called)
    )


def in_use(node, called):
    """The parts of a definition that count: of a class, its head and the methods called."""
    if not isinstance(node, ast.ClassDef):
        return [node]
    return [
        part
        for part in node.body
        if not isinstance(part, FUNCTIONS) or part.name in called or part.name.startswith("__")
    ]


def length(node):
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    return node.end_lineno - first + 1


@functools.cache
def load(module):
    path = SOURCE.joinpath(*module.split(".")[1:])
    package = module if path.is_dir() else module.rpartition(".")[0]
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(path.read_text())
    definitions = {}
    for node in top_level(tree):
        for name in names_of(node):
            definitions.setdefault(name, node)
    calls = [
        n.value for n in tree.body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)
    ]
    return Module(definitions, imports_of(tree, package), calls)


def top_level(tree):
    for node in tree.body:
        yield from node.body if isinstance(node, (ast.If, ast.Try)) else [node]


def names_of(node):
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [n.id for t in targets if t is not None for n in ast.walk(t) if isinstance(n, ast.Name)]


def imports_of(tree, package):
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and absolute(node, package).startswith("vicinal"):
            source = absolute(node, package)
            for alias in node.names:
                whole = f"{source}.{alias.name}"
                at = (whole, None) if exists(whole) else (source, alias.name)
                found[alias.asname or alias.name] = at
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("vicinal."):
                    found[alias.asname or alias.name] = (alias.name, None)
    return found


def absolute(node, package):
    """The module an import names: ``from .x`` inside ``vicinal.losses`` is ``vicinal.losses.x``."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


def exists(module):
    path = SOURCE.joinpath(*module.split(".")[1:])
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def resolve(module, name):
    """The place where a name is defined, behind re-exports; None if it is not ours."""
    here = load(module)
    if name in here.definitions:
        return module, name
    target = here.imports.get(name)
    return None if target is None or target[1] is None else resolve(*target)


def mentioned(place, node):
    """Where the names that a part mentions are defined; annotations do not count as reading."""
    here = load(place[0])
    hints = {id(n) for hint in annotations(node) for n in ast.walk(hint)}
    for part in ast.walk(node):
        if id(part) in hints:
            continue
        if isinstance(part, ast.Name):
            if part.id in here.definitions and part.id != place[1]:
                yield place[0], part.id
            elif part.id in here.imports and here.imports[part.id][1] is not None:
                yield resolve(*here.imports[part.id])
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            target = here.imports.get(part.value.id)
            if target is not None and target[1] is None:
                yield resolve(target[0], part.attr)


def annotations(node):
    for part in ast.walk(node):
        if isinstance(part, ast.arg) and part.annotation is not None:
            yield part.annotation
        elif isinstance(part, FUNCTIONS) and part.returns is not None:
            yield part.returns
        elif isinstance(part, ast.AnnAssign):
            yield part.annotation


def registered(module, name):
    """``@op.register_fake``, ``op.register_autograd(f)``: what registers belongs to the name."""
    here = load(module)
    for other, node in here.definitions.items():
        for decorator in getattr(node, "decorator_list", []):
            if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(decorator)):
                yield module, other
    for call in here.calls:
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == name:
            yield from mentioned((module, name), call)
