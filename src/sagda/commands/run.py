"""The commands that train: run, compare and resume.

`sweep.py` shares `execute_into` from here. What a run folder holds, and how a run
resumes, is in `runs/folder.py`.
"""

import signal
import sys
from pathlib import Path

from sagda.check import BadValue
from sagda.commands.app import (
    FOUR,
    AllFlags,
    File,
    Folder,
    Json,
    Name,
    Names,
    Out,
    OwnModel,
    Processes,
    ProcessFlags,
    Seconds,
    Set,
    allow_model,
    merged,
    only_algorithm,
    show_run,
    start_jax,
)
from sagda.runs.config import Config, parse_set, write_toml


def run(
    *,
    config: File = None,
    algorithm: Name = None,
    flags: AllFlags = None,
    set: Set = None,
    out: Out = None,
    checkpoint_seconds: Seconds = 5.0,
    processes: ProcessFlags = None,
    json: Json = False,
) -> int:
    """Train with one algorithm.

    Repeating the command resumes the run, or shows its results if it is finished.

    Examples: `sagda run --algorithm sagda-ii --rounds 200 --seeds 3`,
    `sagda run --config runs/mine/config.toml --out runs/again`
    """
    chosen = merged(config, flags, only_algorithm(algorithm))
    if len(chosen.algorithms) != 1:
        raise BadValue(
            f"`run` takes one algorithm, got {', '.join(chosen.algorithms)}; use "
            "`sagda compare` for several."
        )
    return execute_into(out, chosen, set, checkpoint_seconds, processes, json)


def compare(
    *,
    config: File = None,
    algorithms: Names = None,
    flags: AllFlags = None,
    set: Set = None,
    out: Out = None,
    checkpoint_seconds: Seconds = 5.0,
    processes: ProcessFlags = None,
    json: Json = False,
) -> int:
    """Train with several algorithms and compare them in one table and one report.

    All algorithms begin at the same point and draw the same samples.

    Example: `sagda compare --algorithms sagda-i,fsgda --seeds 3 --set start=warm`
    """
    names = [n.strip() for n in algorithms.split(",")] if algorithms else None
    if names is None and config is None:
        names = FOUR
    elif names == ["all"]:
        from sagda.algorithms import ALGORITHMS

        names = list(ALGORITHMS)
    chosen = merged(config, flags, names)
    return execute_into(out, chosen, set, checkpoint_seconds, processes, json)


def resume(
    folder: Folder,
    /,
    *,
    checkpoint_seconds: Seconds = 5.0,
    model: OwnModel = None,
    processes: ProcessFlags = None,
    json: Json = False,
) -> int:
    """Resume the run in FOLDER from its newest checkpoint.

    Example: `sagda resume runs/mine`
    """
    from sagda.runs.folder import read_folder_config

    if model is not None:
        allow_model(model)
    # Of several processes, only the first one needs the folder.
    several = processes is not None and processes.several
    config = None if several else read_folder_config(folder)
    return execute_into(folder, config, None, checkpoint_seconds, processes, json)


def execute_into(
    out: Path | None,
    config: Config | None,
    assignments: list[str] | None,
    checkpoint_seconds: float,
    processes: Processes | None,
    json: bool,
) -> int:
    """Run a configuration into a run folder and print its results.

    Without `config`, the folder's own one is run, which process 0 reads. Without `out`,
    the folder is named after the configuration.
    """
    if not checkpoint_seconds >= 0:
        raise BadValue(
            f"`checkpoint_seconds` must be zero or more, got {checkpoint_seconds}."
        )
    from sagda.simulator.processes import ProcessAddress, connect, is_first

    flags = processes or Processes()
    start_jax()
    connect(ProcessAddress(flags.host0, flags.processes, flags.process))
    from sagda.report.terminal import RunDisplay
    from sagda.runs.execution import Stopped, execute
    from sagda.runs.experiment import prepare, resolve
    from sagda.runs.folder import shared_folder_config
    from sagda.runs.interrupt import Interrupt

    config = config or shared_folder_config(out or Path())
    config = resolve(config, parse_set(assignments or []))
    folder = out or default_folder(config)
    experiment = prepare(config)
    interrupt = Interrupt()
    try:
        with (
            interrupt,
            RunDisplay(config, quiet=json or not is_first()) as display,
        ):
            execute(experiment, folder, display.monitor(interrupt, checkpoint_seconds))
    except Stopped as stopped:
        if is_first():
            sentence = f"stopped {stopped}; resume with: sagda resume {folder}"
            print(sentence, file=sys.stderr)
        # Without a signal of its own, another process of the run got one.
        return 128 + (interrupt.number or signal.SIGTERM)
    return show_run(folder, json) if is_first() else 0


def default_folder(config: Config) -> Path:
    """A folder in runs/ that is different for every configuration."""
    from sagda.durable import digest
    from sagda.problems import PROBLEMS

    short = digest(write_toml(config).encode())[:8]
    name = config.algorithms[0] if len(config.algorithms) == 1 else "compare"
    name = f"sweep-{name}" if config.grid else name
    makes_data = PROBLEMS[config.problem].defines("make")
    data = "" if makes_data else f"-{Path(config.data).stem}"
    return Path("runs") / f"{config.problem}{data}-{name}-{short}"
