"""The theorems beside what is measured: bounds, slopes, and rates that work."""

import json
import math
import signal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sagda.algorithms import ALGORITHMS
from sagda.check import BadValue
from sagda.commands import main as cli
from sagda.paper import slopes, speedup
from sagda.paper.theorem import distant_case, run_trial, sampling_case
from sagda.problems.quadratic import Quadratic
from sagda.report.blocks import Grid, Heading, Text
from sagda.report.theory_charts import curves
from sagda.theory import Constants, Setting, Steps, bound, rates, samples
from sagda.theory.practice import practice
from support import ROOT

LATER = pytest.mark.slow


# The theorems.


@pytest.mark.parametrize(
    ("method", "K", "T"),
    [
        ("sagda-ii", 5, 10**4),
        pytest.param("fsgda", 1, 10**4, marks=LATER),
        pytest.param("fsgda", 5, 10**5, marks=LATER),
        pytest.param("sagda-ii", 1, 10**5, marks=LATER),
        pytest.param("sagda-i", 1, 10**5, marks=LATER),
        pytest.param("sagda-i", 5, 10**5, marks=LATER),
    ],
)
def test_with_everyone_the_mean_gradient_stays_below_the_bound(method, K, T):
    trial = run_trial(method, distant_case(), Setting(5, 5, K, T), seeds=10)
    for total in (trial.printed, trial.proof):
        assert trial.measured.max() < total < trial.begin  # else it would say nothing
        assert trial.mean > total / 10


@pytest.mark.parametrize("T", [10**4, pytest.param(10**5, marks=LATER)])
def test_with_sampled_clients_option_ii_exceeds_its_printed_bound(T):
    """K = 1, one client of 20, no noise: conditions met, bound broken."""
    case, setting = sampling_case(), Setting(20, 1, 1, T)
    trial = run_trial(
        "sagda-ii", case, setting, Steps(2.2e-6, 1.2e-4, 1e3, 1e3), seeds=10
    )
    assert trial.printed == pytest.approx(2 * 0.5625 / (0.0022 * T))
    assert trial.measured.min() > 2 * trial.printed
    assert trial.measured.max() < trial.proof  # the term that is missing at least


def test_rates_that_break_a_condition_are_not_run_trial():
    with pytest.raises(AssertionError, match="local rates"):
        run_trial(
            "fsgda", distant_case(), Setting(5, 5, 5, 10), Steps(1.0, 1.0), seeds=1
        )


def test_the_constants_of_a_case_are_exact():
    case = distant_case()
    c = case.constants
    assert (c.smoothness, c.mu) == (1.05, 1.0)
    assert (c.spread_x, c.spread_y) == pytest.approx((1.0, 1.0))
    # The noisiest client's, where the root mean square over all is one.
    assert 1.0 <= c.sigma_x < 1.5
    x, y = (np.asarray(v) for v in (case.start.x, case.start.y))
    A, B, C, a, b = (np.asarray(v).mean(0) for v in case.federation.data)
    f = lambda x, y: x @ A @ x / 2 + x @ B @ y - y @ C @ y / 2 + a @ x + b @ y
    assert y == pytest.approx(np.linalg.solve(C, B.T @ x + b))
    own = case.problem.solution
    assert c.gap == pytest.approx(0.9 * (f(x, y) - f(own.x, own.y)))


# Slopes.


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


def test_clients_share_one_problem_however_many_they_are():
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
        few = lambda quick: [speedup.Theorem("fsgda", Setting(5, 5, 1, 50), False)]
        monkeypatch.setattr(module, "theorems", few)


@pytest.mark.slow
def test_the_command_runs_stops_goes_on_and_writes_its_pages(
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
    assert cli.main(arguments) == 130
    assert "repeat the command to resume" in capsys.readouterr().err
    kept = json.loads(Path("r/evidence/speedup.json").read_text())["values"]
    assert list(kept) == ran
    monkeypatch.setattr(speedup, "measure", measure)
    capsys.readouterr()
    assert cli.main([*arguments, "--docs", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["over"] for row in told["slopes"]] == list(speedup.OVER)
    assert told["theorems"][0]["printed"] > 0
    values = json.loads(Path("r/evidence/speedup.json").read_text())["values"]
    assert {name: values[name] for name in ran} == kept
    assert "quick run" in Path(told["page"]).read_text()
    text = page.read_text()
    assert text.startswith("# Theory\n")
    assert text.endswith("The end.\n")
    assert "old" not in text
    assert Path("images/theory-speedup-quadratic-full.png").is_file()
    assert Path("evidence/speedup.json").is_file()
    # All is there: nothing is run again.
    monkeypatch.setattr(speedup, "measure", None)
    assert cli.main(arguments) == 0
    assert "predicted" in capsys.readouterr().out


def test_other_plans_and_broken_files(small, capsys):
    path = Path("r/evidence/speedup.json")
    evidence = speedup.SpeedupEvidence(path, quick=True, errors={"here": [1.0]})
    evidence.trials["there"] = speedup.TrialRecord([1.0, 2.0], 3.0, 4.0, 5.0, [6.0])
    evidence.save()
    assert speedup.read_evidence(path, quick=True) == evidence
    empty = speedup.SpeedupEvidence(path, quick=False)
    assert speedup.read_evidence(path, quick=False) == empty
    assert not speedup.read_evidence(path, quick=True, again=True).errors
    path.write_text("{")
    assert cli.main(["reproduce", "speedup", "--quick", "--out", "r"]) == 2
    assert "must be evidence" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [("fig1a speedup", "run it alone"), ("speedup --retune", "run it alone")],
)
def test_speedup_is_run_by_itself(flags, said, capsys):
    assert cli.main(["reproduce", *flags.split()]) == 2
    assert said in capsys.readouterr().err


def test_a_page_without_marks_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("mine")
    with pytest.raises(BadValue, match="must have the lines"):
        slopes.insert(page, [Heading("a")])
    assert page.read_text() == "mine"


def test_the_docs_say_what_the_evidence_says():
    docs = ROOT / "docs"
    found = speedup.read_evidence(docs / "evidence" / "speedup.json", quick=False)
    assert not found.missing()
    text = (docs / "theory.md").read_text()
    for block in (*slopes.slope_blocks(found), *slopes.theorem_blocks(found)):
        if isinstance(block, Grid):
            for row in block.rows:
                assert f"| {' | '.join(row)} |" in text
        if isinstance(block, Text):
            assert block.text in text


# Curves and targets.

FEW = Constants(2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0)


@pytest.mark.parametrize(
    "method", ["fsgda", *(pytest.param(f"sagda-{i}", marks=LATER) for i in ("i", "ii"))]
)
def test_a_target_is_reached_in_as_few_rounds_as_can_be(method):
    s = Setting(10, 10, 2, 7)
    start = bound(method, FEW, s._replace(rounds=1), rates.best(method, FEW, s)).total
    at, e = rates.reach(method, FEW, s, math.sqrt(start / 300))
    assert at.rounds < 1000
    assert bound(method, FEW, at, e).total <= start / 300
    before = at._replace(rounds=at.rounds - 1)
    less = bound(method, FEW, before, rates.best(method, FEW, before)).total
    assert less > start / 300
    assert at._replace(rounds=7) == s
    with pytest.raises(BadValue, match="needs more than 1e"):
        rates.reach(method, FEW, s, 1e-12)
    with pytest.raises(BadValue, match="`epsilon` must be above zero"):
        rates.reach(method, FEW, s, -1)


def test_samples_are_k_a_round_and_one_for_the_variate():
    s = Setting(10, 5, 4, 100)
    assert samples("fsgda", s) == 400
    assert samples("sagda-i", s) == samples("sagda-ii", s) == 500


def test_the_least_bound_falls_with_rounds():
    found = curves("sagda-ii", FEW, Setting(10, 10, 3, 1000))
    totals = [place.bound.total for place in found.rounds]
    assert all(a > b for a, b in pairwise(totals))
    assert [place.setting.local_steps for place in found.local_steps] == [
        1, 2, 3, 5, 10, 20, 50, 100, 200, 500,
    ]  # fmt: skip
    with pytest.raises(BadValue, match="`over` must be one of"):
        rates.curve("fsgda", FEW, Setting(1, 1, 1, 1), "cohort", [1])  # type: ignore[arg-type]


def test_curves_on_a_terminal_as_json_and_drawn(tmp_path, capsys):
    base = ["theory", "curves", "--clients", "10"]
    flags = [*base, "--algorithm", "fsgda", "--cohort", "5"]
    assert cli.main([*flags, "--picture", str(tmp_path / "c.png")]) == 0
    assert "statistical" in capsys.readouterr().out
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert cli.main([*flags, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rounds"][0]["bound"]["sampling"] > 0
    for bad, said in {
        "--picture c.txt": "`picture` must end in",
        "--cohort 11": "`cohort` must be between 1 and 10",
        "--mu 3": "`mu` must not be above",
        "--algorithm cd-ma": "`algorithm` must be one of",
    }.items():
        assert cli.main([*base, *bad.split()]) == 2
        assert said in capsys.readouterr().err


def test_table_1_with_local_steps():
    from sagda.theory.table1 import counted

    rows = {own.row.method: own for own in counted(10, 0.1, 4)}
    assert rows["SAGDA"].best_local_steps == pytest.approx(10)
    assert rows["SAGDA"].rounds_at == pytest.approx(1e3 / 4)
    rows = {own.row.method: own for own in counted(10, 0.1, 100)}
    assert rows["SAGDA"].rounds_at == rows["SAGDA"].rounds
    assert rows["CD-MAGE"].best_local_steps == 1
    with pytest.raises(BadValue, match="`local_steps` must be at least 1"):
        counted(10, 0.1, 0)


# What works.


def tried_out(smoothness, **given):
    problem, federation = Quadratic.make(clients=4, samples=3, x_dim=3, y_dim=2)
    constants = Constants(smoothness, min(0.5, smoothness))
    method = ALGORITHMS["sagda-ii"](local_steps=3)
    steps = Steps(**{"x_local": 1e-4, "y_local": 1e-4} | given)
    return practice(
        method, problem, federation, constants, Setting(4, 4, 3, 60), steps,
        Steps(1e-9, 1e-6), batch_size=None, seeds=0,
    )  # fmt: skip


def test_a_short_sweep_finds_rates_that_work():
    found = tried_out(2.0)
    assert found.rounds == 60
    assert found.tried >= 27
    assert not found.edge
    assert found.best.error < 1e-3 * found.begin
    assert found.best.error < found.given.error < found.begin
    assert found.provable.error == pytest.approx(found.begin, rel=1e-3)
    # A scale that is a thousand times off only makes the sweep move.
    off = tried_out(2000.0)
    assert off.tried > found.tried
    assert off.best.error < 1e-3 * off.begin


def test_rates_that_diverge_are_named():
    found = tried_out(2.0, x_local=50.0, y_local=50.0)
    assert found.given.error == math.inf
    assert math.isfinite(found.best.error)
    from sagda.report.terminal_theory import practical
    from sagda.theory.advice import practice_facts

    assert "given rates diverged" in practical(found)
    assert practice_facts(found)["given"]["grad_phi_sq"] is None
