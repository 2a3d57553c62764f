"""Commands that run algorithms: run, compare, sweep, resume."""

import signal
import sys
from pathlib import Path
from typing import Annotated

from sagda.check import BadValue
from sagda.commands import app as base
from sagda.commands.app import (
    FOUR,
    AllFlags,
    File,
    Folder,
    Json,
    ManyFlags,
    Name,
    Names,
    Out,
    OwnModel,
    Processes,
    Seconds,
    Set,
    app,
    merged,
    said,
)
from sagda.runs import config as configs
from sagda.runs.config import Config


@app.command
def run(
    *,
    config: File = None,
    algorithm: Name = None,
    flags: AllFlags = None,
    set: Set = None,
    out: Out = None,
    checkpoint_seconds: Seconds = 5.0,
    machines: ManyFlags = None,
    json: Json = False,
) -> int:
    """Run one algorithm into a folder; the same command again goes on or is done.

    Examples: `sagda run --algorithm sagda-ii --rounds 200 --seeds 3`,
    `sagda run --config runs/mine/config.toml --out runs/again`
    """
    chosen = merged(config, flags, None if algorithm is None else [algorithm])
    if len(chosen.algorithms) != 1:
        raise BadValue(
            f"`run` takes one algorithm, got {', '.join(chosen.algorithms)}; use "
            "`sagda compare` for several."
        )
    return go(chosen, set, out, checkpoint_seconds, machines, json)


@app.command
def compare(
    *,
    config: File = None,
    algorithms: Names = None,
    flags: AllFlags = None,
    set: Set = None,
    out: Out = None,
    checkpoint_seconds: Seconds = 5.0,
    machines: ManyFlags = None,
    json: Json = False,
) -> int:
    """Run several algorithms and seeds: same start, same samples, one table and page.

    Example: `sagda compare --algorithms sagda-i,fsgda --seeds 3 --set start=warm`
    """
    names = [n.strip() for n in algorithms.split(",")] if algorithms else None
    if names is None and config is None:
        names = FOUR
    elif names == ["all"]:
        from sagda.algorithms import ALGORITHMS

        names = list(ALGORITHMS)
    chosen = merged(config, flags, names)
    return go(chosen, set, out, checkpoint_seconds, machines, json)


@app.command
def sweep(
    *,
    grid: Annotated[
        list[str] | None,
        said(
            "Values of a parameter of the algorithm, as in local_lr=0.001,0.01,0.1 or "
            "local_lr.y=0.1,1, or a range for a search, as in local_lr=0.001:0.1; may "
            "be repeated.",
            consume_multiple=False,
        ),
    ] = None,
    trials: Annotated[
        int | None,
        said("Try that many points by Optuna's search, not all combinations."),
    ] = None,
    config: File = None,
    algorithm: Name = None,
    flags: AllFlags = None,
    set: Set = None,
    out: Out = None,
    checkpoint_seconds: Seconds = 5.0,
    machines: ManyFlags = None,
    json: Json = False,
) -> int:
    """Run an algorithm over a grid of its parameters, all rates and seeds side by side.

    Examples: `sagda sweep --grid local_lr=0.001,0.01,0.1 --grid server_lr=1,2,5`,
    `sagda sweep --grid local_lr=0.0001:0.1 --trials 24 --seeds 3`
    """
    from sagda.runs.grid import check_grid, parse_grid

    chosen = merged(config, flags, None if algorithm is None else [algorithm])
    values = chosen.model_dump()
    if grid:
        values["grid"] = parse_grid(grid)
    if trials is not None:
        values["trials"] = trials
    chosen = configs.build(values)
    check_grid(chosen)
    return go(chosen, set, out, checkpoint_seconds, machines, json)


@app.command
def resume(
    folder: Folder,
    /,
    *,
    checkpoint_seconds: Seconds = 5.0,
    model: OwnModel = None,
    machines: ManyFlags = None,
    json: Json = False,
) -> int:
    """Go on with the run in FOLDER from its newest checkpoint.

    Example: `sagda resume runs/mine`
    """
    from sagda.runs.folder import read_folder

    if model is not None:
        base.allowed(model)
    # Of several processes, only the first one needs the folder.
    several = (machines or Processes()).several
    config = None if several else read_folder(folder)
    return go(config, None, folder, checkpoint_seconds, machines, json)


def go(
    config: Config | None,
    assignments: list[str] | None,
    out: Path | None,
    checkpoint_seconds: float,
    machines: Processes | None,
    json: bool,
) -> int:
    """Run a configuration, or a folder's, into its folder and show what came out."""
    if not checkpoint_seconds >= 0:
        raise BadValue(
            f"`checkpoint_seconds` must be zero or more, got {checkpoint_seconds}."
        )
    from sagda.simulator.processes import ProcessAddress, connect, is_first

    machines = machines or Processes()
    address = ProcessAddress(machines.host0, machines.processes, machines.process)
    base.start_jax()
    connect(address)
    from sagda.durable import digest
    from sagda.problems import PROBLEMS
    from sagda.report.terminal import Interrupt, RunDisplay, results
    from sagda.runs.experiment import prepare, resolve
    from sagda.runs.folder import Stopped, execute, folder_config

    config = config or folder_config(out or Path())
    config = resolve(config, configs.parse_set(assignments or []))
    short = digest(configs.write_toml(config).encode())[:8]
    name = config.algorithms[0] if len(config.algorithms) == 1 else "compare"
    name = f"sweep-{name}" if config.grid else name
    makes_data = PROBLEMS[config.problem].defines("make")
    data = "" if makes_data else f"-{Path(config.data).stem}"
    folder = out or Path("runs") / f"{config.problem}{data}-{name}-{short}"
    experiment = prepare(config)
    first = is_first()
    interrupt = Interrupt()
    try:
        with interrupt, RunDisplay(config, quiet=json or not first) as display:
            execute(experiment, folder, display.watch(interrupt, checkpoint_seconds))
    except Stopped as stopped:
        if first:
            remedy = f"resume with: sagda resume {folder}"
            print(f"stopped {stopped}; {remedy}", file=sys.stderr)
        # Another process may have been the one that was asked.
        return 128 + (interrupt.number or signal.SIGTERM)
    if not first:
        return 0
    made = page_of(folder)
    results(folder, made, json)
    return 0


def page_of(folder: Path) -> str:
    """Write the page; a sentence says where it is or what it needs."""
    from sagda.report.charts import MissingExtra
    from sagda.report.run_page import write_page

    try:
        return f"page: {write_page(folder)}"
    except MissingExtra as missing:
        return str(missing)
