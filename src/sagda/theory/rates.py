"""Step sizes from the theorems: those that minimise a bound, and those of corollaries.

Every bound is a sum of positive monomials in the four rates. So is every condition,
after its negative terms change sides. Both are therefore convex in the logarithms of
the rates, and a local search finds the global optimum.

All functions use the reading "proof" of `conditions`. `practice` finds step sizes that
work without a proof.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import minimize

from sagda import check
from sagda.check import BadValue
from sagda.theory.bounds import Bound, bound
from sagda.theory.conditions import CONDITIONS, check_conditions
from sagda.theory.setting import Constants, Setting, Steps

TINY = 1e-60  # smaller rates count as infeasible
EDGE = 1e-9  # the smallest margin of a condition: rounding cannot make it fail
WIDE = 30.0  # largest change of a logarithm in one search
MOST = 10**18  # the largest number of rounds
MOST_STEPS = 10**6  # the largest number of local steps


def largest_server_rate(s: Setting) -> float:
    """Return sqrt(m K), the default limit of the server rates.

    With this server rate the effective rate of the corollaries, sqrt(m K) / (K
    sqrt(T)), needs the local rate 1 / (K sqrt(T)).
    """
    return math.sqrt(s.cohort * s.local_steps)


def feasible(method: str, c: Constants, s: Setting, e: Steps, cap: float) -> bool:
    """Check that server rates are at most `cap` and that every condition holds."""
    capped = max(e.x_server, e.y_server) <= cap * (1 + 1e-12)
    return capped and satisfied(method, c, s, e)


def satisfied(method: str, c: Constants, s: Setting, e: Steps) -> bool:
    """Check that every condition of `method` holds at the step sizes `e`."""
    checks = check_conditions(method, c, s, e)
    return all(check.slack.holds for check in checks)


def best(
    method: str, c: Constants, s: Setting, *, max_server_lr: float | None = None
) -> Steps:
    """Return the rates that minimise the bound among those that satisfy all conditions.

    Without a limit, the minimum would be at local rates of zero and infinite server
    rates. So server rates are at most `max_server_lr` (default: sqrt(mK)).
    """
    check.choice("method", method, CONDITIONS)
    s.check()
    cap = largest_server_rate(s)
    if max_server_lr is not None:
        cap = check.positive("max_server_lr", max_server_lr)
    steps = start(method, c, s, cap)
    if steps is None:
        raise BadValue(
            f"{method} would need rates below {TINY:g} for L_f = {c.smoothness:g}, "
            f"mu = {c.mu:g} and K = {s.local_steps}; lower the ratio of `smoothness` "
            "to `mu`, or lower `local_steps`."
        )
    steps = minimised(method, c, s, steps, cap)
    return polished(method, c, s, steps, cap)


def reach(
    method: str,
    c: Constants,
    s: Setting,
    epsilon: float,
    *,
    max_server_lr: float | None = None,
) -> tuple[Setting, Steps]:
    """Return the fewest rounds for which the minimal bound is at most epsilon^2.

    Returns a copy of `s` with these rounds, and the rates that minimise the bound. The
    rounds are exact to 0.1 %. `s.rounds` is ignored.
    """
    check.positive("epsilon", epsilon)

    def steps(rounds: int) -> Steps | None:
        at = s._replace(rounds=rounds)
        e = best(method, c, at, max_server_lr=max_server_lr)
        return e if bound(method, c, at, e).total <= epsilon**2 else None

    # Double T until the bound is small enough, then bisect.
    low, high = 0, 1
    while (solution := steps(high)) is None:
        low, high = high, 2 * high
        if high > MOST:
            raise BadValue(
                f"`epsilon` must be reachable in {MOST:g} rounds, got {epsilon:g}; "
                "raise it."
            )
    # A precision of 0.1 % is enough. Below 1000 rounds the result is exact.
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        if (closer := steps(middle)) is None:
            low = middle
        else:
            high, solution = middle, closer
    return s._replace(rounds=high), solution


class BoundPoint(NamedTuple):
    """The minimal bound of one setting, and the step sizes that minimise it."""

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
    max_server_lr: float | None = None,
) -> list[BoundPoint]:
    """Return the minimal bound for each of `values`, in place of T or of K in `s`."""
    check.choice("over", over, ("rounds", "local_steps"))
    points = []
    for value in values:
        at = s._replace(**{over: check.integer(over, value, low=1)})
        e = best(method, c, at, max_server_lr=max_server_lr)
        points.append(BoundPoint(at, e, bound(method, c, at, e)))
    return points


def start(method: str, c: Constants, s: Setting, cap: float) -> Steps | None:
    """Return feasible rates from which `minimised` can start.

    The result is None if only rates below `TINY` are feasible. Halving the rates finds
    a feasible point, because the right side of each condition shrinks faster than the
    left side.
    """
    y = 1 / (c.potential_smoothness * s.local_steps)
    while y > TINY:
        x = y / (40 * c.kappa**2)
        steps = Steps(x / cap, y / cap, cap, cap)
        if feasible(method, c, s, steps, cap):
            return steps
        y /= 2
    return None


def minimised(method: str, c: Constants, s: Setting, steps: Steps, cap: float) -> Steps:
    """Minimise the bound over log eta_x and log eta_y by SLSQP, from `steps`.

    Both server rates stay at `cap`.
    """

    def at(logs: np.ndarray) -> Steps:
        x, y = np.exp(logs)
        return Steps(float(x / cap), float(y / cap), cap, cap)

    def log_bound(logs: np.ndarray) -> float:
        return math.log(bound(method, c, s, at(logs)).total)

    def margins(logs: np.ndarray) -> np.ndarray:
        checks = check_conditions(method, c, s, at(logs))
        # A margin of minus infinity would stop the solver.
        return np.array([max(check.slack.margin, -1e3) for check in checks]) - EDGE

    now = np.log([steps.x, steps.y])
    # SLSQP may stop early. Restart from its solution until a restart improves nothing.
    for _ in range(20):
        with np.errstate(all="ignore"):
            done = minimize(
                log_bound, now, method="SLSQP",
                bounds=[(log - WIDE, log + WIDE) for log in now],
                constraints={"type": "ineq", "fun": margins},
                options={"ftol": 1e-14, "maxiter": 200},
            )  # fmt: skip
        then = done.x
        valid = np.isfinite(then).all() and margins(then).min() >= -EDGE / 2
        if not valid or log_bound(then) >= log_bound(now) - 1e-12:
            break
        now = then
    return at(now)


def polished(method: str, c: Constants, s: Setting, steps: Steps, cap: float) -> Steps:
    """Improve `steps` by small feasible changes of the rates until no change helps."""
    # `minimised` fixes the server rates at `cap`. Here they may also become smaller.
    size = 1.1
    while size > 1 + 1e-7:
        here = bound(method, c, s, steps).total
        for other in neighbours(steps, size):
            if (
                feasible(method, c, s, other, cap)
                and bound(method, c, s, other).total < here
            ):
                steps = other
                break
        else:
            size = 1 + (size - 1) / 2
    return steps


def neighbours(steps: Steps, size: float) -> list[Steps]:
    """Return copies of `steps` in which one or two rates are changed by a factor.

    A copy has one rate, or both local rates, multiplied or divided by `size`.
    """
    others = []
    for factor in (size, 1 / size):
        values = steps._asdict().items()
        others += [steps._replace(**{name: v * factor}) for name, v in values]
        x, y = steps.x_local * factor, steps.y_local * factor
        others.append(steps._replace(x_local=x, y_local=y))
    return others


# The corollaries.


def schedule(method: str, s: Setting, scale: float = 1.0) -> Steps:
    """Return the rates of the corollaries. `scale` replaces their unnamed constants.

    Corollary 1 has the local rates K^(3/4)/(mT)^(1/4) and 1/(m^(1/2) K^(3/2)). They
    bound the local error by 1/sqrt(mKT) only up to T = mK. The local rate of Corollary
    2 also does so for larger T. This function uses the smallest of these local rates.
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


def most_local_steps(method: str, c: Constants, s: Setting, e: Steps) -> int:
    """Return the largest K at which the rates `e` satisfy every condition.

    The result is 0 if there is no such K, and `MOST_STEPS` at most.
    """
    holds = lambda K: satisfied(method, c, s._replace(local_steps=K), e)
    if not holds(1):
        return 0
    low, high = 1, 2
    # If the conditions hold at K, they hold at every smaller K.
    while high <= MOST_STEPS and holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return min(low, MOST_STEPS)
