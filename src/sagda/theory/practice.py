"""Step sizes that work in practice, found by short runs around the theory's scale.

The conditions constrain eta_y L_f K and eta_y/eta_x. So the grid covers these two
quantities at the given server rates, and one compiled program runs all of it. `rates`
has the step sizes that can be proved instead.
"""

from itertools import product
from typing import Any, NamedTuple

import numpy as np

from sagda.core import Rates
from sagda.data.federation import Federation
from sagda.methods import Method
from sagda.problems.base import Problem
from sagda.simulator.run import Run
from sagda.simulator.sweep import sweep
from sagda.theory.setting import Constants, Setting, Steps

FACTOR = 4.0  # ratio of neighbouring values in the grid
WIDE = 5  # values of eta_y L_f K, and of eta_y/eta_x, in the grid
FIRST = (-3, -1)  # the smallest of each, as exponents of FACTOR
MOVE = 3  # values by which the grid moves if the best one is on its edge
TURNS = 4  # grids at most
ROUNDS = 100
LAST = 5  # 1/LAST of the rounds, the last ones, are averaged


class TriedRates(NamedTuple):
    """Step sizes and their mean ||grad Phi||^2 in the last rounds (inf: diverged)."""

    steps: Steps
    error: float


class Practice(NamedTuple):
    """Result of the short runs: the best, the given and the provable step sizes."""

    best: TriedRates
    given: TriedRates
    provable: TriedRates
    begin: float  # ||grad Phi(x_0)||^2
    rounds: int  # of every short run
    tried: int  # the number of step sizes that were run
    edge: bool  # whether the best is on the edge of the last grid


def practice(
    method: Method,
    problem: Problem,
    federation: Federation,
    constants: Constants,
    setting: Setting,
    given: Steps,
    provable: Steps,
    *,
    rounds: int = ROUNDS,
    **options: Any,
) -> Practice:
    """Run a grid of step sizes around the theory's scale for a few rounds each.

    The given and the provable step sizes run with every grid. `options` are options of
    `simulate`, such as `seeds` and `batch_size`.
    """
    rounds = min(rounds, setting.rounds)
    options |= {"cohort": setting.cohort, "rounds": rounds}
    options["eval_every"] = max(1, rounds // 50)
    unit = 1 / (constants.smoothness * setting.local_steps)

    def steps_at(i: int, j: int) -> Steps:
        """eta_y = unit FACTOR^i, and eta_x = eta_y / FACTOR^j."""
        y = unit * FACTOR**i
        x = y / FACTOR**j
        x, y = (float(f"{v:.3g}") for v in (x / given.x_server, y / given.y_server))
        return Steps(x, y, given.x_server, given.y_server)

    errors: dict[tuple[int, int], TriedRates] = {}
    tried: list[TriedRates] = []
    corner, begin = FIRST, 0.0
    best, edge = FIRST, True
    for _ in range(TURNS):
        i, j = corner
        grid = list(product(range(i, i + WIDE), range(j, j + WIDE)))
        # Every turn runs the same number of methods, so they share one program.
        steps = [*(steps_at(*cell) for cell in grid), given, provable]
        methods = [with_steps(method, e) for e in steps]
        runs = sweep(methods, problem, federation, **options)
        tried = [
            TriedRates(e, last_error(run, rounds))
            for e, run in zip(steps, runs, strict=True)
        ]
        errors |= zip(grid, tried[:-2], strict=True)
        begin = float(runs[0].history["grad_phi_sq"][:, 0].mean())
        best = min(errors, key=lambda cell: errors[cell].error)
        moves = [direction(k, low) for k, low in zip(best, corner, strict=True)]
        edge = any(moves)
        if not edge or not np.isfinite(errors[best].error):
            break
        corner = (i + MOVE * moves[0], j + MOVE * moves[1])
    return Practice(
        best=errors[best],
        given=tried[-2],
        provable=tried[-1],
        begin=begin,
        rounds=rounds,
        tried=len(errors) + 2,
        edge=edge,
    )


def direction(k: int, low: int) -> int:
    """Where the grid from `low` on must move: -1 or 1 if k is on its edge, else 0."""
    return (k >= low + WIDE - 1) - (k <= low)


def last_error(run: Run, rounds: int) -> float:
    """The mean of ||grad Phi||^2 over seeds and the last rounds (inf: diverged)."""
    error = float(run.history.tail("grad_phi_sq", max(1, rounds // LAST)).mean())
    return error if np.isfinite(error) else float("inf")


def with_steps(method: Method, e: Steps) -> Method:
    """The same method with other step sizes."""
    local, server = Rates(e.x_local, e.y_local), Rates(e.x_server, e.y_server)
    rates = {"local_lr": local, "server_lr": server}
    return Method(method.factory, method.arguments | rates)
