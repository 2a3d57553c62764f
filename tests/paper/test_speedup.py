"""The corollaries' slopes: fits, stored evidence, the command and its page."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from sagda.check import BadValue
from sagda.commands.main import main
from sagda.paper import slopes, speedup
from sagda.report.blocks import Grid, Heading, Text
from sagda.theory import (
    Setting,
)
from support import ROOT


def a_line(over="K", method="sagda-ii", clients="full"):
    every = speedup.lines(quick=False)
    found = {(x.bench, x.over, x.method, x.clients): x for x in every}
    return found["quadratic", over, method, clients]


@pytest.mark.parametrize("over", ["m", "K", "T"])
def test_a_power_of_mkt_has_its_slope(over):
    line = a_line(over)
    sizes = np.array([s.cohort * s.local_steps * s.rounds for s in line.settings])
    seeds = np.array([1.0, 1.1, 0.9])
    errors = 3 * sizes[:, None] ** -0.5 * seeds
    found = speedup.fitted(line, errors)
    assert found == pytest.approx((-0.5, -0.5, -0.5))
    # Seeds that disagree make an interval.
    errors[0, 0] *= 2
    found = speedup.fitted(line, errors)
    assert found.low < found.value < found.high


def test_rounds_have_their_power_of_one_over_epsilon_squared():
    line = a_line("rounds")
    rounds = np.array([s.rounds for s in line.settings])
    assert all(s.local_steps * 5 * s.cohort == s.rounds for s in line.settings)
    errors = np.stack([7 / rounds, 5 / rounds], axis=1)
    assert speedup.fitted(line, errors).value == pytest.approx(1.0)
    errors = np.stack([7 / rounds**0.5, 5 / rounds**0.5], axis=1)
    assert speedup.fitted(line, errors).value == pytest.approx(2.0)


def test_what_the_corollaries_predict():
    for line in speedup.lines(quick=False):
        limited = (line.method, line.clients) == ("fsgda", "partial")
        expected = {"m": -0.5, "K": 0 if limited else -0.5, "T": -0.5}
        expected["rounds"] = 2 if limited else 1
        assert line.predicted == expected[line.over]
        for s in line.settings:
            s.check()
            assert s.full == (line.clients == "full")
            assert s.rounds >= s.cohort * s.local_steps  # T = Omega(mK)


def test_any_number_of_clients_shares_the_same_problem():
    for bench in speedup.BENCHES:
        few, many = (speedup.problem_of(bench, clients)[1].data for clients in (5, 20))
        if bench == "a9a":
            assert len(few.label) == speedup.ROWS
            np.testing.assert_array_equal(few.features, many.features)
            np.testing.assert_array_equal(few.label, many.label)
            continue
        for a, b in zip(few, many, strict=True):
            np.testing.assert_allclose(a.mean(0), b.mean(0), atol=1e-12)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Two methods, a few rounds, one theorem."""
    monkeypatch.chdir(tmp_path)
    bench = speedup.BENCHES["quadratic"]._replace(rounds=200)
    for module in (speedup, slopes):
        monkeypatch.setattr(module, "BENCHES", {"quadratic": bench})
        monkeypatch.setattr(module, "METHODS", {"full": ("fsgda",)})
        few = lambda quick: [speedup.Task("theorem", "fsgda", Setting(5, 5, 1, 50))]
        monkeypatch.setattr(module, "theorems", few)


@pytest.mark.slow
def test_the_command_runs_stops_resumes_and_writes_its_pages(
    small, monkeypatch, capsys
):
    page = Path("theory.md")
    page.write_text(f"# Theory\n\n{slopes.BEGIN}\nold\n{slopes.END}\n\nThe end.\n")
    arguments = ["reproduce", "speedup", "--quick", "--out", "r"]
    ran, measure = [], speedup.measure

    def once(task, evidence, progress):
        if len(ran) == 3:
            signal.raise_signal(signal.SIGINT)
        else:
            ran.append(str(task))
        measure(task, evidence, progress)

    monkeypatch.setattr(speedup, "measure", once)
    assert main(arguments) == 130
    assert "repeat the command to resume" in capsys.readouterr().err
    stopped = json.loads(Path("r/evidence/speedup.json").read_text())["values"]
    assert list(stopped) == ran
    monkeypatch.setattr(speedup, "measure", measure)
    capsys.readouterr()
    assert main([*arguments, "--docs", str(page), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["over"] for row in answer["slopes"]] == list(speedup.OVER)
    assert answer["theorems"][0]["printed"] > 0
    values = json.loads(Path("r/evidence/speedup.json").read_text())["values"]
    assert {name: values[name] for name in ran} == stopped
    assert "quick run" in Path(answer["page"]).read_text()
    text = page.read_text()
    assert text.startswith("# Theory\n")
    assert text.endswith("The end.\n")
    assert "old" not in text
    assert Path("images/theory-speedup-quadratic-full.png").is_file()
    assert Path("evidence/speedup.json").is_file()
    # Every result is stored, so nothing runs again.
    monkeypatch.setattr(speedup, "measure", None)
    assert main(arguments) == 0
    assert "predicted" in capsys.readouterr().out


def test_other_plans_and_broken_files(small, capsys):
    path = Path("r/evidence/speedup.json")
    evidence = speedup.SpeedupEvidence(path, quick=True, errors={"here": [1.0]})
    evidence.trials["there"] = speedup.Trial([1.0, 2.0], 3.0, 4.0, 5.0, [6.0])
    evidence.save()
    assert speedup.read_evidence(path, quick=True) == evidence
    empty = speedup.SpeedupEvidence(path, quick=False)
    assert speedup.read_evidence(path, quick=False) == empty
    assert not speedup.read_evidence(path, quick=True, again=True).errors
    path.write_text("{")
    assert main(["reproduce", "speedup", "--quick", "--out", "r"]) == 2
    assert "must be evidence" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [("fig1a speedup", "the only figure"), ("speedup --retune", "the only figure")],
)
def test_speedup_is_run_alone(flags, message, capsys):
    assert main(["reproduce", *flags.split()]) == 2
    assert message in capsys.readouterr().err


def test_a_page_without_marks_is_not_changed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("mine")
    with pytest.raises(BadValue, match="must have both lines"):
        slopes.insert(page, [Heading("a")])
    assert page.read_text() == "mine"


def test_the_docs_say_what_the_evidence_says():
    docs = ROOT / "docs"
    evidence = speedup.read_evidence(docs / "evidence" / "speedup.json", quick=False)
    assert not evidence.missing()
    text = (docs / "theory.md").read_text()
    for block in (*slopes.slope_blocks(evidence), *slopes.theorem_blocks(evidence)):
        if isinstance(block, Grid):
            for row in block.rows:
                assert f"| {' | '.join(row)} |" in text
        if isinstance(block, Text):
            assert block.text in text
