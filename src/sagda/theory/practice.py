"""Step sizes that work in practice, found by short runs on a grid.

The conditions of the theorems constrain eta_y L_f K and eta_y/eta_x. So these two
quantities are the axes of the grid. Server rates stay as given. One compiled program
runs the whole grid. `rates` has the step sizes with a proof instead.
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
WIDE = 5  # number of values on each axis: of eta_y L_f K and of eta_y/eta_x
FIRST = (-3, -1)  # the smallest value on each axis, as an exponent of FACTOR
MOVE = 3  # number of values by which the grid moves if its best point is on an edge
TURNS = 4  # the largest number of grids
ROUNDS = 100
LAST = 5  # errors are averaged over the last 1/LAST of the rounds


class TriedRates(NamedTuple):
    """The step sizes of a short run, and its error."""

    steps: Steps
    error: float  # the mean of ||grad Phi||^2 in the last rounds; inf: diverged


class Practice(NamedTuple):
    """The result of the short runs."""

    best: TriedRates  # of the grid
    given: TriedRates  # of the user
    provable: TriedRates  # the step sizes that minimise the theorem's bound
    begin: float  # ||grad Phi(x_0)||^2
    rounds: int  # of every short run
    tried: int  # the number of different step sizes
    edge: bool  # True if the best step sizes are on the edge of the last grid


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
    """Find the best step sizes of a grid, with a few rounds for each.

    The grid moves until its best point is not on its edge, at most `TURNS` times. The
    step sizes `given` and `provable` run with every grid. `options` are options of
    `simulate`, such as `seeds` and `batch_size`.
    """
    rounds = min(rounds, setting.rounds)
    options |= {"cohort": setting.cohort, "rounds": rounds}
    options["eval_every"] = max(1, rounds // 50)
    unit = 1 / (constants.smoothness * setting.local_steps)

    def steps_at(i: int, j: int) -> Steps:
        """Return steps with eta_y = unit * FACTOR^i and eta_x = eta_y / FACTOR^j."""
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
        # Every grid has the same number of methods, so one compiled program runs all.
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
    """Return the direction in which the grid must move along one axis.

    The grid covers `low` to `low + WIDE - 1`. The result is -1 or 1 if `k` is at the
    lower or upper end, else 0.
    """
    return (k >= low + WIDE - 1) - (k <= low)


def last_error(run: Run, rounds: int) -> float:
    """Return the mean of ||grad Phi||^2 over seeds and the last rounds.

    The result is infinity if the run diverged.
    """
    error = float(run.history.tail("grad_phi_sq", max(1, rounds // LAST)).mean())
    return error if np.isfinite(error) else float("inf")


def with_steps(method: Method, e: Steps) -> Method:
    """Return a copy of `method` with the step sizes `e`."""
    local, server = Rates(e.x_local, e.y_local), Rates(e.x_server, e.y_server)
    rates = {"local_lr": local, "server_lr": server}
    return Method(method.factory, method.arguments | rates)
