"""Writes the map of the modules into docs/design.md, from their docstrings.

    .venv/bin/python scripts/module_map.py

A test compares the page with the source, so the map is always up to date.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "sagda"
PAGE = ROOT / "docs" / "design.md"
BEGIN, END = "<!-- modules: begin -->", "<!-- modules: end -->"

# A room imports only from rooms before it. "root" stands for the files of the package
# itself. A test checks the order.
ROOMS = (
    "root", "algorithms", "models", "data", "problems", "simulator", "trackers",
    "theory", "scoring", "estimators", "runs", "report", "federation", "paper",
    "commands",
)  # fmt: skip


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring, without its full stop."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.split("\n")[0].rstrip(".")


def modules_of(folder: Path) -> list[Path]:
    """List the modules of a folder and of its subfolders, packages first."""
    paths = folder.rglob("*.py") if folder != SOURCE else folder.glob("*.py")
    is_package = lambda path: path.name == "__init__.py"
    return sorted(paths, key=lambda p: (p.parent, not is_package(p), p.name))


def table_of(room: str) -> str:
    """Return a Markdown table of one room, with the first line of each docstring."""
    folder = SOURCE if room == "root" else SOURCE / room
    rows = ["| module | what it is for |", "|---|---|"]
    for path in modules_of(folder):
        name = path.relative_to(folder).as_posix()
        rows.append(f"| `{name}` | {first_line(path)} |")
    return "\n".join([f"### {room}", "", *rows])


def module_map() -> str:
    """Return the tables of all rooms in their order."""
    return "\n\n".join(table_of(room) for room in ROOMS)


def with_map(page: str) -> str:
    """Return the page with a new map between its two markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{module_map()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_map(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
