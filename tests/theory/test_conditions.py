"""Conditions and bounds against the paper's formulas, written out again here."""

import numpy as np
import pytest

from sagda.check import BadValue
from sagda.theory import (
    Constants,
    Setting,
    Steps,
    bound,
    caveats,
    check_conditions,
    rates,
    rounds_to,
    samples,
)

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


def test_samples_are_k_a_round_and_one_for_the_variate():
    s = Setting(10, 5, 4, 100)
    assert samples("fsgda", s) == 400
    assert samples("sagda-i", s) == samples("sagda-ii", s) == 500


def test_one_local_step_divides_by_nothing():
    """K - 1 = 0 in the first condition."""
    for method in METHODS:
        c, s = SETS[1]
        first = check_conditions(method, c, s, Steps(5.0, 5.0))[0]
        assert first.slack == (1.0, 0.0)
        assert rates.best(method, c, s).x > 0
