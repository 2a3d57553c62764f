"""The commands that train: run, compare, sweep and resume.

They only read flags and print results. `runs/folder.py` lists the files of a run
folder. `runs/execution.py` runs and resumes, and `runs/grid.py` chooses the points of a
sweep.
"""

import signal
import sys
from pathlib import Path
from typing import Annotated, Any

from sagda.check import BadValue
from sagda.commands.app import (
    Execution,
    Folder,
    Name,
    Out,
    OwnModel,
    Settings,
    allow_model,
    flag,
    show_run,
    start_jax,
)
from sagda.runs.config import Config, build, write_toml
from sagda.runs.interrupt import Interrupt

FOUR = ["sagda-i", "sagda-ii", "fsgda", "parallel-sgda"]


def run(
    *,
    algorithm: Name = None,
    settings: Settings = Settings(),
    out: Out = None,
    execution: Execution = Execution(),
) -> int:
    """Train with one algorithm.

    Repeating the command resumes the run, or shows its results if it is finished.

    Examples: `sagda run --algorithm sagda-ii --rounds 200 --seeds 3`,
    `sagda run --config runs/mine/config.toml --out runs/again`
    """
    config = settings.of_one("run", algorithm)
    return execute_into(config, out, execution, settings.assignments)


def compare(
    *,
    algorithms: Annotated[
        str | None,
        flag(
            "Comma-separated names of algorithms to compare, or `all` (default: "
            f"{','.join(FOUR)}).",
            "method",
        ),
    ] = None,
    settings: Settings = Settings(),
    out: Out = None,
    execution: Execution = Execution(),
) -> int:
    """Train with several algorithms and compare them in one table and one report.

    All algorithms begin at the same point and draw the same samples.

    Example: `sagda compare --algorithms sagda-i,fsgda --seeds 3 --set start=warm`
    """
    names = [n.strip() for n in algorithms.split(",")] if algorithms else None
    if names is None and settings.config is None:
        names = FOUR
    elif names == ["all"]:
        from sagda.algorithms import ALGORITHMS

        names = list(ALGORITHMS)
    return execute_into(settings.merged(names), out, execution, settings.assignments)


def sweep(
    *,
    grid: Annotated[
        list[str] | None,
        flag(
            "Values of one parameter, such as `local_lr=0.001,0.01,0.1`; may be "
            "repeated. `local_lr.y=0.1,1` sets only the rate for y. "
            "`local_lr=0.001:0.1` is a range, which needs `--trials`.",
            "method",
            consume_multiple=False,
        ),
    ] = None,
    trials: Annotated[
        int | None,
        flag(
            "Number of points that Optuna chooses, instead of all combinations.",
            "method",
        ),
    ] = None,
    algorithm: Name = None,
    settings: Settings = Settings(),
    out: Out = None,
    execution: Execution = Execution(),
) -> int:
    """Train with one algorithm for many values of its parameters.

    All learning rates and seeds of a grid run in parallel.

    Examples: `sagda sweep --grid local_lr=0.001,0.01,0.1 --grid server_lr=1,2,5`,
    `sagda sweep --grid local_lr=0.0001:0.1 --trials 24 --seeds 3`
    """
    from sagda.runs.grid import check_grid, parse_grid

    values = settings.of_one("sweep", algorithm).model_dump()
    if grid:
        values["grid"] = parse_grid(grid)
    if trials is not None:
        values["trials"] = trials
    config = build(values)
    check_grid(config)
    return execute_into(config, out, execution, settings.assignments)


def resume(
    folder: Folder,
    /,
    *,
    model: OwnModel = None,
    execution: Execution = Execution(),
) -> int:
    """Resume the run in FOLDER from its newest checkpoint.

    Example: `sagda resume runs/mine`
    """
    if model is not None:
        allow_model(model)
    return execute_into(None, folder, execution, {})


def execute_into(
    config: Config | None,
    out: Path | None,
    execution: Execution,
    assignments: dict[str, Any],
) -> int:
    """Run a configuration into the run folder `out` and print the results.

    If `config` is None, the configuration stored in the folder is run. If `out` is
    None, the name of the folder is made from the configuration.
    """
    seconds = execution.checkpoint_seconds
    if not seconds >= 0:
        raise BadValue(f"`checkpoint_seconds` must be zero or more, got {seconds}.")
    from sagda.simulator.processes import connect, is_first

    start_jax()
    connect(execution.host0, execution.processes, execution.process)
    from sagda.report.terminal import RunDisplay
    from sagda.runs.execution import Stopped, execute
    from sagda.runs.experiment import prepare, resolve
    from sagda.runs.folder import shared_folder_config

    config = config or shared_folder_config(out or Path())
    config = resolve(config, assignments)
    folder = out or default_folder(config)
    experiment = prepare(config)
    display = RunDisplay(config, quiet=execution.json or not is_first())
    interrupt = Interrupt()
    try:
        with interrupt, display.bars:
            execute(experiment, folder, display.monitor(interrupt, seconds))
    except Stopped as stopped:
        if is_first():
            sentence = f"stopped {stopped}; resume with: sagda resume {folder}"
            print(sentence, file=sys.stderr)
        # If this process got no signal, another process of the run got one.
        return 128 + (interrupt.number or signal.SIGTERM)
    return show_run(folder, execution.json) if is_first() else 0


def default_folder(config: Config) -> Path:
    """Return a folder in runs/ that is different for every configuration."""
    from sagda.durable import digest
    from sagda.problems import PROBLEMS

    short = digest(write_toml(config).encode())[:8]
    name = config.algorithms[0] if len(config.algorithms) == 1 else "compare"
    name = f"sweep-{name}" if config.grid else name
    makes_data = PROBLEMS[config.problem].defines("make")
    data = "" if makes_data else f"-{Path(config.data).stem}"
    return Path("runs") / f"{config.problem}{data}-{name}-{short}"
