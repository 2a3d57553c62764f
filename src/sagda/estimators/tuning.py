"""`rates="auto"`: a short sweep over the local rate, in one compiled program."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sagda.data.federation import Federation
from sagda.engines.sweep import sweep
from sagda.methods import Method
from sagda.problems.base import Problem

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


def lowered(rate: float) -> float:
    return rate / FACTOR


def rate_at(i: int) -> float:
    return float(f"{FIRST * FACTOR**i:.3g}")
