"""Conditions, bounds and rates against the paper's formulas, written out again here."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

import sagda
from sagda.check import BadValue
from sagda.commands import main as cli
from sagda.problems.quadratic import Quadratic
from sagda.theory import (
    Constants,
    Setting,
    Steps,
    binding,
    bound,
    caveats,
    check_conditions,
    estimate,
    rates,
    rounds_to,
)
from sagda.theory.constants import not_covered
from sagda.theory.table1 import TABLE
from support import ROOT

METHODS = ("sagda-i", "sagda-ii", "fsgda")
SETS = [
    (Constants(2.0, 0.5, 1.0, 0.7, 0.4, 0.3, 10.0), Setting(20, 20, 10, 1000)),
    (Constants(1.0, 1.0, 0.1, 0.2, 0.3, 0.4, 1.0), Setting(100, 10, 1, 10**5)),
    (Constants(5.0, 0.1, 0.0, 2.0, 2.0, 0.0, 3.0), Setting(20, 5, 5, 10)),
]
STEPS = [
    Steps(1e-3, 2e-3, 2.0, 3.0),
    Steps(1e-5, 4e-4, 1.0, 5.0),
    Steps(0.01, 0.01, 2, 2),
]


def letters(c, s, e):
    """The paper's letters."""
    L_f, mu, m, M = c.smoothness, c.mu, s.cohort, s.clients
    L = L_f + L_f**2 / mu
    ex, ey = e.x_local * e.x_server, e.y_local * e.y_server
    return L_f, mu, L, m, M, s.local_steps, s.rounds, ex, ey, e.x_local, e.y_local


def differences(method, reading, c, s, e):
    """left - right of every condition, as the theorems print them."""
    L_f, mu, L, m, M, K, _, ex, ey, exl, eyl = letters(c, s, e)
    out = [1 - 8 * K * (K - 1) * (2 * K - 1) * L_f**2 * max(exl**2, eyl**2)]
    if method == "sagda-i":
        a_1 = K * L_f**2 * (31 / 20 * ex + 1 / 20 * ey)
        a_2 = (L + L_f / 10) / 2 + 1 + M**2 / m**2 - M / m
        gamma = 4
        if reading == "proof":
            a_2 = (L + L_f / 10) / 2 + (M / m) * (2 * M / m - 2 + m / M)
            gamma = 8
        both = ex**2 + ey**2
        c_1 = a_1 + a_2 * 4 * L_f**2 * K**2 * both
        out.append(
            1 / 2
            - gamma * a_2 * L_f**2 * K**2 * both
            - c_1 * 160 * K**2 * (exl**2 + eyl**2) * L_f**2
        )
        out.append(ex * K / 10 - 4 * a_2 * K**2 * ex**2 - c_1 * 40 * K**2 * exl**2)
        y = ey * K * (1 / 20 - ex / ey * L_f**2 / mu**2)
        out.append(y - 4 * a_2 * K**2 * ey**2 - c_1 * 40 * K**2 * eyl**2)
    elif method == "sagda-ii":
        b_1 = L_f**2 * (
            31 / 20 * ex * K
            + ey * K / 20
            + 2 * (L + L_f / 10) * ex**2 * K**2
            + L_f * ey**2 * K**2 / 5
        )
        step = 2 * (L + L_f / 10) * ex**2 * K**2
        out.append(ex * K / 10 - (step + 40 * K**2 * exl**2 * b_1))
        y = ey * K * (1 / 20 - ex / ey * L_f**2 / mu**2)
        out.append(y - (L_f * ey**2 * K**2 / 5 + 40 * K**2 * eyl**2 * b_1))
    else:
        a_1 = 1 / 10 - 2 * (2 * L + L_f / 5) * ex * K
        a_2 = 1 / 20 - 2 / 5 * L_f * ey * K - ex / ey * L_f**2 / mu**2
        a_3 = 31 / 20 + (2 * L + L_f / 5) * ex * K
        a_4 = 1 / 20 + L_f * ey * K / 5
        forty = 40 * L_f**2 * K**2
        out.append(a_1 - a_3 * forty * exl**2 - ey / ex * a_4 * forty * exl**2)
        out.append(a_2 - a_3 * ex / ey * forty * eyl**2 - a_4 * forty * eyl**2)
    return out


@pytest.mark.parametrize("reading", ["printed", "proof"])
@pytest.mark.parametrize("method", METHODS)
def test_conditions_are_the_papers(method, reading):
    for c, s in SETS:
        for e in STEPS:
            found = check_conditions(method, c, s, e, reading)
            expected = differences(method, reading, c, s, e)
            for check, difference in zip(found, expected, strict=True):
                left, right = check.slack
                scale = abs(left) + abs(right)
                assert left - right == pytest.approx(difference, abs=1e-12 * scale)
                assert check.slack.holds == (difference >= 0)


def right_hand_side(method, reading, c, s, e):
    L_f, _mu, L, m, M, K, T, ex, ey, exl, eyl = letters(c, s, e)
    sx, sy, gx, gy = c.sigma_x**2, c.sigma_y**2, c.spread_x**2, c.spread_y**2
    first = 2 * c.gap / (ex * K * T)
    if method == "sagda-i":
        a_2 = (L + L_f / 10) / 2 + 2
        if reading == "proof":
            a_2 = (L + L_f / 10) / 2 + (M / m) * (2 * M / m - 2 + m / M)
        second = 2 * a_2 * 9 / (m * ex) * (ex**2 * sx + ey**2 * sy)
        inner = L_f**2 * (31 / 20 + ey / ex / 20)
        inner += a_2 * 4 * L_f**2 * K * (ex + ey**2 / ex)
        return first, second, inner * 20 * K**2 * (exl**2 * sx + eyl**2 * sy), 0.0
    if method == "sagda-ii":
        second = (L + L_f / 10) * 9 * ex / m * sx
        second += 9 / 10 * L_f * ey**2 / (m * ex) * sy
        inner = 31 / 20 * K + ey / ex * K / 20 + 2 * (L + L_f / 10) * ex * K**2
        inner = L_f**2 * (inner + L_f / 5 * ey**2 / ex * K**2)
        third = inner * 10 * (16 * K + 1) * (exl**2 * sx + eyl**2 * sy)
        fourth = 0.0
        if reading == "proof" and m < M:
            chance = (1 - m / M) * M / (M - 1)
            fourth = 4 * (L + L_f / 10) * ex * K * chance * gx / m
            fourth += 2 / 5 * L_f * K * ey**2 / ex * chance * gy / m
        return first, second, third, fourth
    small = 10 if reading == "proof" else 100
    second = 2 * ex / m * (L + L_f / small) * sx + L_f * ey**2 / (5 * m * ex) * sy
    a_3 = 31 / 20 + (2 * L + L_f / 5) * ex * K
    a_4 = 1 / 20 + L_f * ey * K / 5
    inner = 40 * K**2 * (exl**2 * gx + eyl**2 * gy)
    inner += 5 * K * (exl**2 * sx + eyl**2 * sy)
    third = 2 * (a_3 * L_f**2 + a_4 * ey / ex * L_f**2) * inner
    two = 4 if reading == "proof" else 2
    fourth = (2 * L + L_f / 5) * ex * K * (1 - m / M) * two / m * gx
    fourth += two / (5 * m) * L_f * ey * K * ey / ex * (1 - m / M) * gy
    return first, second, third, fourth


@pytest.mark.parametrize("reading", ["printed", "proof"])
@pytest.mark.parametrize("method", METHODS)
def test_bounds_are_the_papers(method, reading):
    for c, s in SETS:
        for e in STEPS:
            found = bound(method, c, s, e, reading)
            np.testing.assert_allclose(
                found, right_hand_side(method, reading, c, s, e), rtol=1e-12
            )
            assert found.total == pytest.approx(sum(found))


def test_with_everyone_the_readings_of_option_ii_agree():
    c, s = SETS[0]
    for e in STEPS:
        assert bound("sagda-ii", c, s, e, "printed") == bound("sagda-ii", c, s, e)


def test_equal_effective_rates_never_satisfy_the_theory():
    """They need eta_x/eta_y < mu^2/(20 L_f^2), and mu <= L_f."""
    for method in METHODS:
        for c, s in SETS:
            for rate in (1e-6, 1e-3, 0.1):
                e = Steps(rate, rate)
                check = check_conditions(method, c, s, e)[-1]
                assert check.condition.name == "y"
                assert not check.slack.holds
                assert check.slack.left < 0


@pytest.mark.parametrize("method", METHODS)
def test_the_best_rates_are_feasible_and_nothing_near_is_better(method):
    for c, s in SETS:
        e = rates.best(method, c, s)
        here = bound(method, c, s, e).total
        checks = check_conditions(method, c, s, e)
        assert all(check.slack.holds for check in checks)
        assert 0 <= binding(checks).slack.margin < 1
        cap = rates.largest_server_rate(s)
        for other in rates.neighbours(e):
            if rates.feasible(method, c, s, other, "proof", cap):
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
            if rates.feasible(method, c, s, other, "proof", cap):
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
    # Beyond T = mK the printed local rate is too large by itself.
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


def test_rounds_to_epsilon():
    c, s = SETS[1]
    e = rates.best("sagda-ii", c, s)
    T = rounds_to("sagda-ii", c, s, e, 1.0)
    assert T is not None
    assert bound("sagda-ii", c, s._replace(rounds=T), e).total <= 1.0
    assert bound("sagda-ii", c, s._replace(rounds=T - 1), e).total > 1.0
    assert rounds_to("sagda-ii", c, s, e, 1e-9) is None
    with pytest.raises(BadValue, match="`epsilon` must be above zero"):
        rounds_to("sagda-ii", c, s, e, 0.0)


def test_option_ii_with_sampling_is_never_called_proved():
    assert caveats("sagda-ii", Setting(10, 5, 2, 10))
    assert not caveats("sagda-ii", Setting(10, 10, 2, 10))
    assert not caveats("fsgda", Setting(10, 5, 2, 10))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Constants(1.0, 2.0), "`mu` must not be above `smoothness`"),
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
            "no rates of fsgda satisfy every condition",
        ),
    ],
)
def test_nonsense_gets_a_sentence(make, said):
    with pytest.raises(BadValue, match=said):
        make()


def test_one_local_step_divides_by_nothing():
    """K - 1 = 0 in the first condition."""
    for method in METHODS:
        c, s = SETS[1]
        first = check_conditions(method, c, s, Steps(5.0, 5.0))[0]
        assert first.slack == (1.0, 0.0)
        assert rates.best(method, c, s).x > 0


# Constants.


def made(seed, **options):
    told = {"clients": 6, "samples": 8, "x_dim": 4, "y_dim": 3} | options
    return Quadratic.make(seed=seed, **told)


def inside(estimate, true):
    return estimate.low <= true <= estimate.high


LATER = pytest.mark.slow


@pytest.mark.parametrize("curved", [True, pytest.param(False, marks=LATER)])
@pytest.mark.parametrize("nonconvex", [True, pytest.param(False, marks=LATER)])
def test_curvatures_of_quadratics_are_the_true_ones(nonconvex, curved):
    for seed in range(3):
        problem, federation = made(
            seed, nonconvex_clients=nonconvex, strongly_concave=curved
        )
        found = estimate(problem, federation, points=1, draws=2)
        assert found.smoothness.value == pytest.approx(problem.smoothness, rel=0.01)
        assert found.mu.value == pytest.approx(problem.mu, rel=0.01)


@pytest.mark.slow
def test_noise_lies_in_its_interval_and_spread_is_exact():
    """At least 90 of 100 problems, for a 95 % interval."""
    hits = {"x": 0, "y": 0}
    rng = np.random.default_rng(0)
    for seed in range(100):
        noise, spread = rng.uniform(0.1, 3.0, 2)
        problem, federation = made(seed, noise=noise, heterogeneity=spread)
        found = estimate(problem, federation, points=0, batch_size=1)
        hits["x"] += inside(found.sigma_x, noise)
        hits["y"] += inside(found.sigma_y, noise)
        assert found.spread_x.value == pytest.approx(spread, rel=1e-9)
        assert found.spread_y.value == pytest.approx(spread, rel=1e-9)
    assert min(hits.values()) >= 90, hits


@pytest.mark.slow
def test_noise_falls_with_the_batch():
    problem, federation = made(0, noise=1.0)
    one, four = (
        estimate(problem, federation, points=0, batch_size=b, draws=500).sigma_x.value
        for b in (1, 4)
    )
    assert four == pytest.approx(one / 2, rel=0.05)
    assert estimate(problem, federation, points=0, batch_size=None).sigma_x.value < 1e-9


def test_the_gap_of_a_quadratic_is_the_true_one():
    problem, federation = made(1)
    found = estimate(problem, federation, points=0, draws=2).gap.value
    run = sagda.simulate(
        sagda.algorithm("fsgda", local_lr=0.1), problem, federation, rounds=1,
        float64=True, seeds=0, batch_size=1,
    )  # fmt: skip
    phi, f = run.history["phi"][0, 0], run.history["f"][0, 0]
    x, y = problem.solution.x, problem.solution.y
    mean = lambda column: np.asarray(column).mean(0)
    A, B, C, a, b = (mean(column) for column in federation.data)
    least = x @ A @ x / 2 + x @ B @ y - y @ C @ y / 2 + a @ x + b @ y
    assert found == pytest.approx(phi - f / 10 - 0.9 * least, rel=1e-6)


def test_auc_and_dro_know_their_mu():
    rows = sagda.load("a9a").train
    clients = sagda.partition(rows, "iid", clients=3, samples=40, seed=0)
    auc, dro = sagda.AUC.of(clients), sagda.DRO.of(clients)
    assert auc.concavity() == pytest.approx(2 * auc.tau * (1 - auc.tau))
    assert dro.concavity() == 1.0
    found = estimate(auc, clients, points=0, draws=4, batch_size=5)
    assert found.mu == (auc.concavity(), "closed form", "everywhere", None, None)
    assert found.smoothness.value > found.mu.value
    assert found.constants.mu == found.mu.value


def test_large_models_are_measured_by_power_iteration(monkeypatch):
    problem, federation = made(0)
    monkeypatch.setattr("sagda.theory.constants.DENSE", 1)
    found = estimate(problem, federation, points=1, draws=3)  # other shapes of draws
    assert "power" in found.smoothness.how
    assert found.smoothness.value == pytest.approx(problem.smoothness, rel=0.01)
    assert found.smoothness.value <= problem.smoothness * (1 + 1e-9)
    assert "PL" in found.mu.how
    assert found.mu.value >= problem.mu * (1 - 1e-6)


def test_mu_without_concavity_is_by_the_inequality():
    """y^2 + 3 sin^2 y is bent both ways, and has a PL constant of 1/32."""
    rows = np.linspace(-1, 1, 12)
    clients = sagda.Federation.of(
        {"a": rows}, order=np.arange(12), size=np.array([4, 4, 4])
    )
    bent = lambda x, y, batch: (x - batch["a"]) ** 2 - y**2 - 3 * jnp.sin(y) ** 2
    problem = sagda.MinMax(bent, x=0.5, y=1.0)
    found = estimate(problem, clients, points=3, radius=2.0, draws=2)
    assert "PL" in found.mu.how
    assert 1 / 32 <= found.mu.value < 8


def test_problems_with_constraints_are_not_covered():
    rows = sagda.load("a9a").train
    clients = sagda.partition(rows, "iid", clients=3, samples=40, seed=0)
    with pytest.raises(BadValue, match="Agnostic keeps y in a simplex"):
        estimate(sagda.Agnostic.of(clients), clients)
    assert not_covered(sagda.AUC.of(clients)) is None


# The command.


def advised(capsys, *arguments):
    code = cli.main(["advise", *arguments])
    out = capsys.readouterr()
    return code, out.out, out.err.strip().removeprefix("sagda: ")


SMALL = ["--problem", "quadratic", "--clients", "6", "--samples", "8"]
SMALL += ["--batch-size", "2", "--local-steps", "3", "--rounds", "50"]


def test_advice_as_json(capsys):
    code, out, _ = advised(
        capsys, *SMALL, "--algorithm", "sagda-ii", "--epsilon", "100", "--json"
    )
    assert code == 0
    told = json.loads(out)
    assert told["setting"] == {
        "clients": 6, "cohort": 6, "local_steps": 3, "rounds": 50,
    }  # fmt: skip
    assert told["constants"]["smoothness"]["value"] == pytest.approx(2.0, rel=0.01)
    assert told["best"]["holds"]
    assert told["provable"]
    assert not told["given"]["proof"]["holds"]
    assert told["rounds"] >= 1
    terms = told["best"]["bound"]
    assert terms["total"] == pytest.approx(
        sum(v for k, v in terms.items() if k != "total")
    )


@pytest.mark.slow
def test_advice_on_a_terminal(capsys):
    code, out, _ = advised(capsys, *SMALL, "--algorithm", "sagda-ii", "--cohort", "3")
    assert code == 0
    for words in ("L_f", "FAILS", "the theorem's own", "Nothing is proved", "total"):
        assert words in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--algorithm cd-ma", "`algorithm` must be one of sagda-i, sagda-ii, fsgda"),
        ("--algorithm fsgda --epsilon 0", "`epsilon` must be above zero"),
        ("--algorithm fsgda --max-server-lr -1", "`max_server_lr` must be above zero"),
        ("--algorithm fsgda --cohort 9", "`cohort`"),
    ],
)
def test_bad_questions_get_one_sentence(arguments, said, capsys):
    code, _, error = advised(capsys, *SMALL, *arguments.split())
    assert code == 2
    assert said in error


def test_table_1_in_numbers(capsys):
    assert (
        cli.main(["theory", "table", "--cohort", "8", "--epsilon", "0.1", "--json"])
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    rows = {row["method"]: row for row in told["rows"]}
    assert rows["SAGDA"]["rounds"] == pytest.approx(100)
    assert rows["SAGDA"]["samples"] == pytest.approx(1e4 / 8)
    assert rows["CD-MAGE"]["rounds"] == pytest.approx(1e4 / 8)
    assert rows["Local SGDA"]["samples"] == pytest.approx(1e6 / 4)
    assert rows["Local SGDA"]["rounds"] == pytest.approx(1e6 / 8)
    assert rows["(Momentum) Local SGDA"]["rounds"] == pytest.approx(1e3)
    assert rows["SGDA"]["rounds"] is None
    assert all(row["source"] for row in told["rows"])
    assert all(row["rounds_order"] for row in told["rows"] if row["rounds"])
    assert cli.main(["theory", "table"]) == 0
    assert "not needed" in capsys.readouterr().out
    assert cli.main(["theory", "table", "--epsilon", "0"]) == 2
    assert "`epsilon` must be above zero" in capsys.readouterr().err


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
