"""Writes the tables as text, and as Markdown into docs/performance.md.

`tables` makes the tables from the results.
"""

import re
from pathlib import Path

import machine
from tables import TABLES, Table

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def as_text(table: Table) -> str:
    """Return a table for a terminal, with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in table
    )
    return "\n".join(line.rstrip() for line in lines)


def as_markdown(table: Table) -> str:
    """Return a Markdown table, with numbers aligned to the right."""
    line = lambda cells: "| " + " | ".join(c.replace("*", r"\*") for c in cells) + " |"
    rule = "|---|" + "--:|" * (len(table[0]) - 1)
    return "\n".join([line(table[0]), rule, *map(line, table[1:])])


def notes(result: dict) -> str:
    """Return notes on a result: machine, versions, commit, and what is left out."""
    where = result["machine"]
    text = f"{where['cores']} cores of {where['cpu']}, {result['date']}"
    versions = result.get("versions", {})
    if versions:
        text += "; " + ", ".join(f"{k} {v}" for k, v in sorted(versions.items()))
    if result.get("source"):
        text += f"; source {result['source']}"
    lines = [f"{text}."]
    if result.get("quick"):
        lines.append("A quick run, with fewer repeats.")
    if result["others_cores"] > machine.DISTURBED:
        lines.append(f"Other programs used {result['others_cores']:.1f} cores.")
    if "stolen_cores" in result:
        cores = f"{result['stolen_cores']:.2f} cores"
        lines.append(f"Meanwhile the host gave others up to {cores}.")
    for name, why in result.get("left_out", {}).items():
        lines.append(f"Left out: {name}: {why}.")
    return "\n".join(lines)


def fill(results: dict) -> None:
    """Write every measured table between its markers in docs/performance.md."""
    page = PAGE.read_text(encoding="utf-8")
    for section in TABLES:
        if section not in results:
            continue
        table = as_markdown(TABLES[section](results[section]))
        text = f"{table}\n\n{notes(results[section])}"
        marks = f"<!-- begin {section} -->", f"<!-- end {section} -->"
        pattern = "(?s)" + ".*?".join(map(re.escape, marks))
        filled = f"{marks[0]}\n{text}\n{marks[1]}"
        page, count = re.subn(pattern, lambda _, filled=filled: filled, page)
        assert count == 1, f"docs/performance.md must have the markers {marks} once"
    PAGE.write_text(page, encoding="utf-8")
