"""Rates from the theorems: the best ones, the corollaries', and invalid questions."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest

from sagda.check import BadValue
from sagda.commands.main import main
from sagda.report.theory_charts import curves
from sagda.theory import (
    Constants,
    Setting,
    Steps,
    binding,
    bound,
    check_conditions,
    rates,
)

LATER = pytest.mark.slow

METHODS = ("sagda-i", "sagda-ii", "fsgda")

SETS = [
    (Constants(2.0, 0.5, 1.0, 0.7, 0.4, 0.3, 10.0), Setting(20, 20, 10, 1000)),
    (Constants(1.0, 1.0, 0.1, 0.2, 0.3, 0.4, 1.0), Setting(100, 10, 1, 10**5)),
    (Constants(5.0, 0.1, 0.0, 2.0, 2.0, 0.0, 3.0), Setting(20, 5, 5, 10)),
]

FEW = Constants(2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0)


@pytest.mark.parametrize("method", METHODS)
def test_the_best_rates_are_feasible_and_nothing_near_is_better(method):
    for c, s in SETS:
        e = rates.best(method, c, s)
        here = bound(method, c, s, e).total
        checks = check_conditions(method, c, s, e)
        assert all(check.slack.holds for check in checks)
        assert 0 <= binding(checks).slack.margin < 1
        cap = rates.largest_server_rate(s)
        for other in rates.neighbours(e, 1.01):
            if rates.feasible(method, c, s, other, cap):
                assert bound(method, c, s, other).total >= here * (1 - 1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_no_rates_on_a_grid_are_better(method):
    c, s = SETS[1]
    cap = rates.largest_server_rate(s)
    e = rates.best(method, c, s)
    here = bound(method, c, s, e).total
    for x in e.x * np.logspace(-2, 2, 41):
        for y in e.y * np.logspace(-2, 2, 41):
            other = Steps(x / cap, y / cap, cap, cap)
            if rates.feasible(method, c, s, other, cap):
                assert bound(method, c, s, other).total >= here * (1 - 1e-6)


def test_for_long_runs_the_best_rates_follow_the_corollary():
    """eta_x ~ sqrt(m/(KT)): the bound falls as T^(-1/2)."""
    c = Constants(1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0)
    totals = []
    for T in (10**9, 10**11):
        s = Setting(10, 10, 2, T)
        totals.append(bound("sagda-ii", c, s, rates.best("sagda-ii", c, s)).total)
    slope = math.log(totals[1] / totals[0]) / math.log(100)
    assert slope == pytest.approx(-0.5, abs=0.02)


def test_schedules_are_the_corollaries():
    s = Setting(100, 100, 10, 10**6)
    e = rates.schedule("sagda-i", s)
    assert e.x == pytest.approx(math.sqrt(100 / (10 * 10**6)))
    # Beyond T = mK the printed local rate is too large.
    assert e.x_local == pytest.approx((100 * 10**6) ** -0.25 * 10**-1.25)
    assert 10**2 * e.x_local**2 <= 1 / math.sqrt(100 * 10 * 10**6) * (1 + 1e-9)
    s = Setting(100, 10, 10, 10**6)
    e = rates.schedule("fsgda", s)
    assert e.x == pytest.approx(math.sqrt(10 / 10**6) / 10)


def test_most_local_steps_is_the_last_that_holds():
    c, s = SETS[0]
    e = Steps(1e-6, 1e-3)
    K = rates.most_local_steps("fsgda", c, s, e)
    holds = lambda K: all(
        v.slack.holds
        for v in check_conditions("fsgda", c, s._replace(local_steps=K), e)
    )
    assert K >= 1
    assert holds(K)
    assert not holds(K + 1)
    assert rates.most_local_steps("fsgda", c, s, Steps(1.0, 1.0)) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constants(1.0, 2.0), "`mu` must be at most `smoothness`"),
        (lambda: Constants(0.0, 0.0), "`smoothness` must be above zero"),
        (lambda: Constants(1.0, 1.0, sigma_x=-1.0), "`sigma_x` must be at least 0"),
        (lambda: Constants(1.0, math.nan), "`mu` must be finite"),
        (lambda: Setting(5, 6, 1, 1).check(), "`cohort` must be between 1 and 5"),
        (lambda: Setting(5, 5, 0, 1).check(), "`local_steps` must be at least 1"),
        (lambda: Steps(0.0, 1.0).check(), "`x_local` must be above zero"),
        (
            lambda: rates.best("sagda", Constants(1.0, 1.0), Setting(1, 1, 1, 1)),
            "`method` must be one of",
        ),
        (
            lambda: rates.best("fsgda", Constants(1e29, 1e-29), Setting(1, 1, 1, 1)),
            "fsgda would need rates below",
        ),
    ],
)
def test_invalid_values_get_a_sentence(make, message):
    with pytest.raises(BadValue, match=message):
        make()


@pytest.mark.parametrize(
    "method", ["fsgda", *(pytest.param(f"sagda-{i}", marks=LATER) for i in ("i", "ii"))]
)
def test_a_target_is_reached_in_the_fewest_rounds(method):
    s = Setting(10, 10, 2, 7)
    start = bound(method, FEW, s._replace(rounds=1), rates.best(method, FEW, s)).total
    at, e = rates.reach(method, FEW, s, math.sqrt(start / 300))
    assert at.rounds < 1000
    assert bound(method, FEW, at, e).total <= start / 300
    before = at._replace(rounds=at.rounds - 1)
    less = bound(method, FEW, before, rates.best(method, FEW, before)).total
    assert less > start / 300
    assert at._replace(rounds=7) == s
    with pytest.raises(BadValue, match="must be reachable in 1e"):
        rates.reach(method, FEW, s, 1e-12)
    with pytest.raises(BadValue, match="`epsilon` must be above zero"):
        rates.reach(method, FEW, s, -1)


def test_the_minimal_bound_falls_with_rounds():
    found = curves("sagda-ii", FEW, Setting(10, 10, 3, 1000))
    totals = [point.bound.total for point in found.rounds]
    assert all(a > b for a, b in pairwise(totals))
    assert [point.setting.local_steps for point in found.local_steps] == [
        1, 2, 3, 5, 10, 20, 50, 100, 200, 500,
    ]  # fmt: skip
    with pytest.raises(BadValue, match="`over` must be one of"):
        rates.curve("fsgda", FEW, Setting(1, 1, 1, 1), "cohort", [1])  # type: ignore[arg-type]


def test_curves_on_a_terminal_as_json_and_drawn(tmp_path, capsys):
    base = ["theory", "curves", "--clients", "10"]
    flags = [*base, "--algorithm", "fsgda", "--cohort", "5"]
    assert main([*flags, "--picture", str(tmp_path / "c.png")]) == 0
    assert "statistical" in capsys.readouterr().out
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert main([*flags, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["rounds"][0]["bound"]["sampling"] > 0
    for bad, message in {
        "--picture c.txt": "`picture` must end in",
        "--cohort 11": "`cohort` must be between 1 and 10",
        "--mu 3": "`mu` must be at most",
        "--algorithm cd-ma": "`algorithm` must be one of",
    }.items():
        assert main([*base, *bad.split()]) == 2
        assert message in capsys.readouterr().err
