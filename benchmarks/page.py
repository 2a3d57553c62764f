"""The tables as text, and as Markdown between markers in docs/performance.md."""

import re
from pathlib import Path

import machine
from tables import TABLES, Table

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def as_text(table: Table) -> str:
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
    line = lambda cells: "| " + " | ".join(c.replace("*", r"\*") for c in cells) + " |"
    rule = "|---|" + "--:|" * (len(table[0]) - 1)
    return "\n".join([line(table[0]), rule, *map(line, table[1:])])


def notes(found: dict) -> str:
    """Where it was measured, with what, and what is missing."""
    where = found["machine"]
    text = f"{where['cores']} cores of {where['cpu']}, {found['date']}"
    versions = found.get("versions", {})
    if versions:
        text += "; " + ", ".join(f"{k} {v}" for k, v in sorted(versions.items()))
    if found.get("source"):
        text += f"; source {found['source']}"
    lines = [f"{text}."]
    if found.get("quick"):
        lines.append("A quick run, with fewer repeats.")
    if found["others_cores"] > machine.DISTURBED:
        lines.append(f"Other programs used {found['others_cores']:.1f} cores.")
    if "stolen_cores" in found:
        cores = f"{found['stolen_cores']:.2f} cores"
        lines.append(f"Meanwhile the host gave others up to {cores}.")
    for name, why in found.get("left_out", {}).items():
        lines.append(f"Left out: {name}: {why}.")
    return "\n".join(lines)


def fill(results: dict) -> None:
    """Put every table that was measured between its markers."""
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
        assert count == 1, f"docs/performance.md lacks the markers of {section}"
    PAGE.write_text(page, encoding="utf-8")
