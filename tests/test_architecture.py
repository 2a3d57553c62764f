"""The plan of the source: rooms in order, no cycles, heavy packages in their rooms."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from support import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import module_map
from module_map import ROOMS, SOURCE

# Upward imports that are allowed: inside a function, and only for these purposes.
LAZY_UPWARD: dict[tuple[str, str], str] = {}

# Heavy packages, and the modules that may import them.
HEAVY = {
    "flwr": ("sagda.federation.flower",),
    "httpx": ("sagda.federation.flower",),
    "torch": ("sagda.models.torch", "sagda.simulator.torch", "sagda.problems.losses"),
    "altair": ("sagda.report",),
    "cryptography": ("sagda.federation.trust",),
    "cyclopts": ("sagda.commands",),
}


def name_of(path: Path) -> str:
    parts = ["sagda", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {
    name_of(path): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(SOURCE.rglob("*.py"))
}


def room_of(module: str) -> str:
    """The folder below `sagda` that a module lies in, or "root"."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "root"


def imported(tree: ast.AST) -> Iterator[str]:
    """What a module imports, at its top or inside a function; not for types only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in TREES else node.module
        yield from imported(node)


def own_imports(module: str) -> set[str]:
    """The modules of `sagda` that a module imports."""
    return {name for name in imported(TREES[module]) if name in TREES}


IMPORTS = {module: own_imports(module) for module in TREES}


def test_every_folder_is_a_room():
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders == set(ROOMS) - {"root"}


def test_a_room_imports_only_rooms_before_it():
    place = {room: i for i, room in enumerate(ROOMS)}
    upward = {
        (module, other)
        for module, others in IMPORTS.items()
        for other in others
        if other != "sagda" and place[room_of(other)] > place[room_of(module)]
    }
    assert upward == set(LAZY_UPWARD)


def test_modules_do_not_import_each_other_in_circles():
    try:
        list(TopologicalSorter(IMPORTS).static_order())
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_packages_stay_in_their_rooms(package):
    users = {
        module
        for module, tree in TREES.items()
        if package in {name.split(".")[0] for name in imported(tree)}
    }
    assert {m for m in users if not m.startswith(HEAVY[package])} == set()


def test_a_class_name_occurs_once():
    names = Counter(
        node.name
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def lines_of_code(function: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> int:
    """The lines of a function without its docstring, comments and empty lines."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    docstring = range(first.lineno, (first.end_lineno or 0) + 1) if documented else ()
    lines = text.splitlines()
    numbers = range(function.lineno, (function.end_lineno or 0) + 1)
    code = [n for n in numbers if n not in docstring and lines[n - 1].strip()]
    return sum(not lines[n - 1].strip().startswith("#") for n in code)


def test_no_function_is_longer_than_sixty_lines():
    long = [
        f"{path.relative_to(SOURCE)}:{node.name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for text in [path.read_text(encoding="utf-8")]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and lines_of_code(node, text) > 60
    ]
    assert long == []


def test_every_module_says_what_it_is_for():
    silent = [name for name, tree in TREES.items() if not ast.get_docstring(tree)]
    assert silent == []


def test_the_map_in_the_design_page_is_the_source():
    page = module_map.PAGE.read_text(encoding="utf-8")
    assert page == module_map.with_map(page), "run scripts/module_map.py"
