"""Rates of estimators by short sweeps, each in one compiled program.

`auto` goes over one local rate; `advice` over x's and y's, around the scale that the
theorems' constants set.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sagda.check import BadValue
from sagda.data.federation import Federation
from sagda.methods import Method
from sagda.problems.base import Problem
from sagda.simulator.sweep import sweep

FIRST, FACTOR, WIDE = 1e-3, 3.0, 7  # 0.001 to 0.7
TURNS = 3  # how often the values may move after a best one at their edge
ROUNDS = 40


def local_rate(
    make: Callable[[float], Method],
    problem: Problem,
    federation: Federation,
    *,
    rounds: int,
    **options: Any,
) -> float:
    """The rate with the least ||grad Phi||^2 after some rounds."""
    rounds = min(rounds, ROUNDS)
    found: dict[int, float] = {}
    low = best = 0
    for _ in range(TURNS):
        places = list(range(low, low + WIDE))
        methods = [make(rate_at(i)) for i in places]
        runs = sweep(
            methods, problem, federation, rounds=rounds,
            eval_every=max(1, rounds // 10), **options,
        )  # fmt: skip
        last = max(1, rounds // 4)
        errors = [float(run.history.tail("grad_phi_sq", last).mean()) for run in runs]
        found |= zip(places, np.nan_to_num(errors, nan=np.inf).tolist(), strict=True)
        best = min(found, key=lambda i: found[i])
        if low < best < low + WIDE - 1 or not np.isfinite(found[best]):
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
    """Local rates of x and y: those that work beside the ones that can be proved."""
    from sagda import theory

    if name not in theory.CONDITIONS:
        raise BadValue(
            f"`rates` may be 'advice' only for {', '.join(theory.CONDITIONS)}, which "
            f"the theorems are about, got algorithm {name!r}; 'auto' does for all."
        )
    setting = theory.Setting(
        federation.clients, cohort or federation.clients, local_steps, rounds
    )
    constants = theory.estimate(problem, federation, batch_size=batch_size).constants
    provable = theory.rates.best(name, constants, setting)
    given = theory.Steps(FIRST, FIRST)
    found = theory.practice(
        make(FIRST), problem, federation, constants, setting, given, provable,
        batch_size=batch_size, seeds=seeds,
    ).best.steps  # fmt: skip
    return found.x_local, found.y_local


def lowered(rate: Any) -> Any:
    """A rate, or a pair of them, a step down."""
    return tuple(map(lowered, rate)) if isinstance(rate, tuple) else rate / FACTOR


def rate_at(i: int) -> float:
    return float(f"{FIRST * FACTOR**i:.3g}")
