"""Choose the local rates of a classifier by short sweeps.

`rates="auto"` sweeps one rate that x and y share. `rates="advice"` sweeps a rate for x
and a rate for y, around the scale that the theorems suggest. Sweeps over other
parameters are in `sagda.runs.grid`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sagda.check import BadValue
from sagda.data.federation import Federation
from sagda.methods import Method
from sagda.problems.base import Problem
from sagda.simulator.sweep import sweep

# A sweep has WIDE rates. Each is FACTOR times the one before. The first sweep goes from
# 0.001 to 0.7.
FIRST, FACTOR, WIDE = 1e-3, 3.0, 7
TURNS = 3  # sweeps at most; if the best rate is at an edge, the range moves there
ROUNDS = 40  # rounds of each run in a sweep, at most


def local_rate(
    make: Callable[[float], Method],
    problem: Problem,
    federation: Federation,
    *,
    rounds: int,
    **options: Any,
) -> float:
    """Return the local rate that gives the lowest ||grad Phi||^2 in short runs."""
    rounds = min(rounds, ROUNDS)
    errors: dict[int, float] = {}
    low = best = 0
    for _ in range(TURNS):
        steps = list(range(low, low + WIDE))
        methods = [make(rate_at(i)) for i in steps]
        runs = sweep(
            methods, problem, federation, rounds=rounds,
            eval_every=max(1, rounds // 10), **options,
        )  # fmt: skip
        last = max(1, rounds // 4)
        tails = [float(run.history.tail("grad_phi_sq", last).mean()) for run in runs]
        errors |= zip(steps, np.nan_to_num(tails, nan=np.inf).tolist(), strict=True)
        best = min(errors, key=lambda i: errors[i])
        if low < best < low + WIDE - 1 or not np.isfinite(errors[best]):
            break
        low += (WIDE - 2) * (1 if best > low else -1)
    return rate_at(best)


def advised(
    name: str,
    make: Callable[[float], Method],
    problem: Problem,
    federation: Federation,
    *,
    local_steps: int,
    rounds: int,
    cohort: int | None,
    batch_size: int | None,
    seeds: int,
) -> tuple[float, float]:
    """Return local rates for x and for y: the best in short runs near the theorems."""
    from sagda import theory

    if name not in theory.CONDITIONS:
        raise BadValue(
            f"`rates` may be 'advice' only for {', '.join(theory.CONDITIONS)}, which "
            f"have theorems, got algorithm {name!r}; use 'auto', which works for all."
        )
    setting = theory.Setting(
        federation.clients, cohort or federation.clients, local_steps, rounds
    )
    constants = theory.estimate(problem, federation, batch_size=batch_size).constants
    provable = theory.rates.best(name, constants, setting)
    given = theory.Steps(FIRST, FIRST)
    advice = theory.practice(
        make(FIRST), problem, federation, constants, setting, given, provable,
        batch_size=batch_size, seeds=seeds,
    ).best.steps  # fmt: skip
    return advice.x_local, advice.y_local


def lowered(rate: Any) -> Any:
    """Return `rate` divided by `FACTOR`. For a pair, both rates are divided."""
    return tuple(map(lowered, rate)) if isinstance(rate, tuple) else rate / FACTOR


def rate_at(i: int) -> float:
    """Return the rate FIRST * FACTOR^i, rounded to three digits."""
    return float(f"{FIRST * FACTOR**i:.3g}")
