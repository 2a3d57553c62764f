"""The command that runs one algorithm over a grid of parameters: sweep.

`runs/grid.py` reads the grid and chooses the points. This file only adds the two flags.
"""

from typing import Annotated

from sagda.commands.app import (
    AllFlags,
    File,
    Json,
    Name,
    Out,
    ProcessFlags,
    Seconds,
    Set,
    flag,
    merged,
    only_algorithm,
)
from sagda.commands.run import execute_into
from sagda.runs.config import build

Grid = Annotated[
    list[str] | None,
    flag(
        "Values of one parameter, as in local_lr=0.001,0.01,0.1 or local_lr.y=0.1,1, "
        "or a range to search, as in local_lr=0.001:0.1. May be repeated.",
        "method",
        consume_multiple=False,
    ),
]
Trials = Annotated[
    int | None,
    flag(
        "Number of points that Optuna's search tries, instead of all combinations.",
        "method",
    ),
]


def sweep(
    *,
    grid: Grid = None,
    trials: Trials = None,
    config: File = None,
    algorithm: Name = None,
    flags: AllFlags = None,
    set: Set = None,
    out: Out = None,
    checkpoint_seconds: Seconds = 5.0,
    processes: ProcessFlags = None,
    json: Json = False,
) -> int:
    """Train with one algorithm over a grid of its parameters.

    All learning rates and seeds of a grid are computed in parallel.

    Examples: `sagda sweep --grid local_lr=0.001,0.01,0.1 --grid server_lr=1,2,5`,
    `sagda sweep --grid local_lr=0.0001:0.1 --trials 24 --seeds 3`
    """
    from sagda.runs.grid import check_grid, parse_grid

    chosen = merged(config, flags, only_algorithm(algorithm))
    values = chosen.model_dump()
    if grid:
        values["grid"] = parse_grid(grid)
    if trials is not None:
        values["trials"] = trials
    chosen = build(values)
    check_grid(chosen)
    return execute_into(out, chosen, set, checkpoint_seconds, processes, json)
