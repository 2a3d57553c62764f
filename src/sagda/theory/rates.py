"""Rates from the theorems: the ones that minimise a bound, and the corollaries' scales.

In the logarithms of the four rates every bound is convex, and so is every condition:
all are sums of positive monomials, once what is subtracted is moved to the other side.
So a local search finds the best rates there are.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import minimize

from sagda import check
from sagda.check import BadValue
from sagda.theory.bounds import Bound, bound
from sagda.theory.conditions import CONDITIONS, Reading, judged
from sagda.theory.setting import Constants, Setting, Steps

TINY = 1e-60  # rates below this are none
EDGE = 1e-9  # relative room that is left, so that rounding does not cross an edge
WIDE = 30.0  # in logarithms, how far one search may go
STEP = 1.01  # the step by which an answer is tried
MOST = 10**18  # rounds


def largest_server_rate(s: Setting) -> float:
    """sqrt(m K): where the corollaries' eta and the largest local rates meet."""
    return math.sqrt(s.cohort * s.local_steps)


def feasible(
    method: str, c: Constants, s: Setting, e: Steps, reading: Reading, server: float
) -> bool:
    capped = max(e.x_server, e.y_server) <= server * (1 + 1e-12)
    return capped and all(v.slack.holds for v in judged(method, c, s, e, reading))


def best(
    method: str,
    c: Constants,
    s: Setting,
    *,
    reading: Reading = "proof",
    server: float | None = None,
) -> Steps:
    """The rates that satisfy every condition and make the bound least.

    The theory likes local rates of zero with server rates without end, so server rates
    are capped at `server` (default: sqrt(mK)).
    """
    check.choice("method", method, CONDITIONS)
    s.check()
    cap = largest_server_rate(s) if server is None else check.positive("server", server)
    steps = start(method, c, s, reading, cap)
    if steps is None:
        raise BadValue(
            f"no rates of {method} satisfy every condition for L_f = {c.smoothness:g}, "
            f"mu = {c.mu:g}, K = {s.local_steps}: they would be below {TINY:g}."
        )
    steps = descended(method, c, s, steps, reading, cap)
    return polished(method, c, s, steps, reading, cap)


def reach(
    method: str,
    c: Constants,
    s: Setting,
    epsilon: float,
    *,
    reading: Reading = "proof",
    server: float | None = None,
) -> tuple[Setting, Steps]:
    """The fewest rounds whose least bound is at most epsilon^2, and their best rates.

    The rounds of `s` are not looked at.
    """
    check.positive("epsilon", epsilon)

    def steps(rounds: int) -> Steps | None:
        at = s._replace(rounds=rounds)
        e = best(method, c, at, reading=reading, server=server)
        fits = bound(method, c, at, e, reading).total <= epsilon**2
        return e if fits else None

    low, high = 0, 1
    while (found := steps(high)) is None:
        low, high = high, 2 * high
        if high > MOST:
            raise BadValue(f"`epsilon` {epsilon:g} needs more than {MOST:g} rounds.")
    # Three digits of so many rounds are enough; few are had exactly.
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        if (closer := steps(middle)) is None:
            low = middle
        else:
            high, found = middle, closer
    return s._replace(rounds=high), found


class BoundPoint(NamedTuple):
    """The least bound of a setting, and the rates that have it."""

    setting: Setting
    steps: Steps
    bound: Bound


def curve(
    method: str,
    c: Constants,
    s: Setting,
    over: Literal["rounds", "local_steps"],
    values: Sequence[int],
    *,
    reading: Reading = "proof",
    server: float | None = None,
) -> list[BoundPoint]:
    """The least bound over T, or over K at equal T."""
    check.choice("over", over, ("rounds", "local_steps"))
    found = []
    for value in values:
        at = s._replace(**{over: check.integer(over, value, low=1)})
        e = best(method, c, at, reading=reading, server=server)
        found.append(BoundPoint(at, e, bound(method, c, at, e, reading)))
    return found


def start(
    method: str, c: Constants, s: Setting, reading: Reading, cap: float
) -> Steps | None:
    """Rates small enough: every condition's right side shrinks faster than its left."""
    y = 1 / (c.potential_smoothness * s.local_steps)
    while y > TINY:
        x = y / (40 * c.kappa**2)
        steps = Steps(x / cap, y / cap, cap, cap)
        if feasible(method, c, s, steps, reading, cap):
            return steps
        y /= 2
    return None


def descended(
    method: str, c: Constants, s: Setting, steps: Steps, reading: Reading, cap: float
) -> Steps:
    """Sequential quadratic programming on logarithms, server rates at their cap."""

    def at(logs: np.ndarray) -> Steps:
        x, y = np.exp(logs)
        return Steps(float(x / cap), float(y / cap), cap, cap)

    def height(logs: np.ndarray) -> float:
        return math.log(bound(method, c, s, at(logs), reading).total)

    def rooms(logs: np.ndarray) -> np.ndarray:
        found = [v.slack for v in judged(method, c, s, at(logs), reading)]
        return np.array([max(slack.room, -1e3) for slack in found]) - EDGE

    now = np.log([steps.x, steps.y])
    for _ in range(20):
        with np.errstate(all="ignore"):
            done = minimize(
                height, now, method="SLSQP",
                bounds=[(log - WIDE, log + WIDE) for log in now],
                constraints={"type": "ineq", "fun": rooms},
                options={"ftol": 1e-14, "maxiter": 200},
            )  # fmt: skip
        found = done.x
        better = np.isfinite(found).all() and rooms(found).min() >= -EDGE / 2
        if not better or height(found) >= height(now) - 1e-12:
            break
        now = found
    return at(now)


def polished(
    method: str, c: Constants, s: Setting, steps: Steps, reading: Reading, cap: float
) -> Steps:
    """Small steps in every rate for as long as one is feasible and better."""
    size = 1.1
    while size > 1 + 1e-7:
        here = bound(method, c, s, steps, reading).total
        for other in neighbours(steps, size):
            if (
                feasible(method, c, s, other, reading, cap)
                and bound(method, c, s, other, reading).total < here
            ):
                steps = other
                break
        else:
            size = 1 + (size - 1) / 2
    return steps


def neighbours(steps: Steps, size: float = STEP) -> list[Steps]:
    """One step up and down in each rate, and in both rates of a variable together."""
    found = []
    for factor in (size, 1 / size):
        for name, value in steps._asdict().items():
            found.append(steps._replace(**{name: value * factor}))
        found.append(
            steps._replace(
                x_local=steps.x_local * factor, y_local=steps.y_local * factor
            )
        )
    return found


# The corollaries.


def schedule(method: str, s: Setting, scale: float = 1.0) -> Steps:
    """The corollaries' rates, with `scale` for their unnamed constants, all alike.

    Corollary 1's local rate K^(3/4)/(mT)^(1/4) and 1/(m^(1/2) K^(3/2)) bound the local
    error by 1/sqrt(mKT) only up to T = mK; the one of Corollary 2 does so beyond, and
    the least of them is taken.
    """
    check.choice("method", method, CONDITIONS)
    check.positive("scale", scale)
    s.check()
    m, K, T = s.cohort, s.local_steps, s.rounds
    effective = scale * math.sqrt(m / (K * T))
    local = 1 / ((m * T) ** 0.25 * K**1.25)
    if method != "fsgda":
        local = min(local, 1 / math.sqrt(m * K**3), K**0.75 / (m * T) ** 0.25)
    elif not s.full:
        effective = scale * math.sqrt(m / T) / K
        local = 1 / ((m * T) ** 0.25 * K)
    local = min(scale * local, effective)
    return Steps(local, local, effective / local, effective / local)


def most_local_steps(
    method: str,
    c: Constants,
    s: Setting,
    e: Steps,
    reading: Reading = "proof",
    limit: int = 10**6,
) -> int:
    """The largest K at which these rates satisfy every condition; 0: none does."""
    holds = lambda K: all(
        v.slack.holds for v in judged(method, c, s._replace(local_steps=K), e, reading)
    )
    if not holds(1):
        return 0
    low, high = 1, 2
    while high <= limit and holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return min(low, limit)
