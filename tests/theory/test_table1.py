"""Table 1 in orders and in numbers, in the code and in the docs."""

import json

import pytest

import sagda
from sagda.check import BadValue
from sagda.commands.main import main
from sagda.theory.table1 import TABLE
from support import ROOT


def test_table_1_in_numbers(capsys):
    assert main(["theory", "table", "--cohort", "8", "--epsilon", "0.1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    rows = {row["method"]: row for row in answer["rows"]}
    assert rows["SAGDA"]["rounds"] == pytest.approx(100)
    assert rows["SAGDA"]["samples"] == pytest.approx(1e4 / 8)
    assert rows["CD-MAGE"]["rounds"] == pytest.approx(1e4 / 8)
    assert rows["Local SGDA"]["samples"] == pytest.approx(1e6 / 4)
    assert rows["Local SGDA"]["rounds"] == pytest.approx(1e6 / 8)
    assert rows["(Momentum) Local SGDA"]["rounds"] == pytest.approx(1e3)
    assert rows["SGDA"]["rounds"] is None
    assert all(row["source"] for row in answer["rows"])
    assert all(row["rounds_order"] for row in answer["rows"] if row["rounds"])
    assert main(["theory", "table"]) == 0
    assert "not needed" in capsys.readouterr().out
    assert main(["theory", "table", "--epsilon", "0"]) == 2
    assert "`epsilon` must be above zero" in capsys.readouterr().err


def test_table_1_with_local_steps():
    from sagda.theory.table1 import counted

    rows = {one.row.method: one for one in counted(10, 0.1, 4)}
    assert rows["SAGDA"].best_local_steps == pytest.approx(10)
    assert rows["SAGDA"].rounds_at == pytest.approx(1e3 / 4)
    rows = {one.row.method: one for one in counted(10, 0.1, 100)}
    assert rows["SAGDA"].rounds_at == rows["SAGDA"].rounds
    assert rows["CD-MAGE"].best_local_steps == 1
    with pytest.raises(BadValue, match="`local_steps` must be at least 1"):
        counted(10, 0.1, 0)


def test_the_docs_have_the_rows_of_table_1():
    page = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    section = page.partition("## Complexity")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert rows == [
        f"| {row.method} | {', '.join(f'`{name}`' for name in row.names) or '-'} "
        f"| {row.rounds.formula if row.rounds else '-'} | {row.samples.formula} "
        f"| {row.bounded_dissimilarity} | {row.client_sampling} | {row.source} |"
        for row in TABLE
    ]
    assert {name for row in TABLE for name in row.names} <= set(sagda.ALGORITHMS)
