"""What works, beside what can be proved: a short sweep around the theory's scale.

The conditions have eta_y L_f K and eta_y/eta_x; the sweep goes over these two, at the
server rates that were given, in one compiled program.
"""

from typing import Any, NamedTuple

import numpy as np

from sagda.core import Rates
from sagda.data.federation import Federation
from sagda.methods import Method
from sagda.problems.base import Problem
from sagda.simulator.run import Run
from sagda.simulator.sweep import sweep
from sagda.theory.setting import Constants, Setting, Steps

FACTOR = 4.0  # from one value of a grid to the next
WIDE = 5  # values of each of the two
FIRST = (-3, -1)  # the least eta_y L_f K and the least eta_y/eta_x, as powers of it
MOVE = 3  # by so many values the grid goes after a best point at its edge
TURNS = 4
ROUNDS = 100
LAST = 5  # the last fifth of the rounds counts


class Tried(NamedTuple):
    """Rates, and the mean of ||grad Phi||^2 in the last rounds; inf: diverged."""

    steps: Steps
    error: float


class Practice(NamedTuple):
    """The best of a short sweep, and where the others stand after as many rounds."""

    best: Tried
    given: Tried
    provable: Tried
    begin: float  # ||grad Phi(x_0)||^2
    rounds: int
    tried: int  # rates
    edge: bool  # whether the best is at the end of the last grid


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
    """Try rates around the theory's scale, the given ones, and the provable ones.

    `options` are those of `simulate`: seeds, batch_size and others.
    """
    rounds = min(rounds, setting.rounds)
    options |= {"cohort": setting.cohort, "rounds": rounds}
    options["eval_every"] = max(1, rounds // 50)
    unit = 1 / (constants.smoothness * setting.local_steps)

    def point(i: int, j: int) -> Steps:
        """eta_y = unit FACTOR^i, and eta_x = eta_y / FACTOR^j."""
        y = unit * FACTOR**i
        x = y / FACTOR**j
        x, y = (float(f"{v:.3g}") for v in (x / given.x_server, y / given.y_server))
        return Steps(x, y, given.x_server, given.y_server)

    found: dict[tuple[int, int], Tried] = {}
    tried: list[Tried] = []
    corner, begin = FIRST, 0.0
    best, edge = FIRST, True
    for _ in range(TURNS):
        grid = [
            (corner[0] + i, corner[1] + j) for i in range(WIDE) for j in range(WIDE)
        ]
        # The two others come along each time, so that one program does for all turns.
        steps = [*(point(*place) for place in grid), given, provable]
        runs = sweep([at(method, e) for e in steps], problem, federation, **options)
        tried = [Tried(e, end(run, rounds)) for e, run in zip(steps, runs, strict=True)]
        found |= zip(grid, tried[:-2], strict=True)
        begin = float(runs[0].history["grad_phi_sq"][:, 0].mean())
        best = min(found, key=lambda place: found[place].error)
        moves = [direction(k, low) for k, low in zip(best, corner, strict=True)]
        edge = any(moves)
        if not edge or not np.isfinite(found[best].error):
            break
        corner = (corner[0] + MOVE * moves[0], corner[1] + MOVE * moves[1])
    return Practice(
        found[best], tried[-2], tried[-1], begin, rounds, len(found) + 2, edge
    )


def direction(k: int, low: int) -> int:
    """Where to go on: nowhere, if k is inside of the values from `low` on."""
    return (k >= low + WIDE - 1) - (k <= low)


def end(run: Run, rounds: int) -> float:
    """The mean of ||grad Phi||^2 over seeds and the last rounds."""
    error = float(run.history.tail("grad_phi_sq", max(1, rounds // LAST)).mean())
    return error if np.isfinite(error) else float("inf")


def at(method: Method, e: Steps) -> Method:
    """The method at other rates."""
    local, server = Rates(e.x_local, e.y_local), Rates(e.x_server, e.y_server)
    rates = {"local_lr": local, "server_lr": server}
    return Method(method.factory, method.arguments | rates)
