"""The command-line application, the flags that commands share, and `say`.

Every other file here defines the commands of one group of `sagda --help` as plain
functions. `main.py` registers them and turns errors into exit codes.
"""

import json as json_module
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Group, Parameter
from pydantic import Field

import sagda
from sagda.check import BadValue
from sagda.runs.config import GROUPS, Config, build, parse_set, read_toml

app = App(
    name="sagda",
    version=sagda.__version__,
    help="Federated min-max learning: train, compare, evaluate, and run real "
    "federations.",
    help_epilogue="Every command takes --help, --json (print one JSON object) and "
    "--debug (show tracebacks).",
    result_action="return_value",
    group_parameters=Group.create_ordered("Flags"),
)
app.register_install_completion_command()


class Exit(IntEnum):
    """The exit codes of all commands; 128 plus a signal's number is a stop by it."""

    DONE = 0
    FAILED = 1  # anything not below
    INVALID = 2  # invalid input: nothing was written
    DISK = 3
    UNREACHABLE = 4  # no server, or too few sites, can be reached


class CommandFailed(Exception):
    """A sentence for the user, and the exit code of the command."""

    def __init__(self, sentence: str, code: int = Exit.FAILED):
        super().__init__(sentence)
        self.code = code


def flag(text: str, group: str | None = None, **options: Any) -> Parameter:
    """A flag with its help text. A group is a heading of `--help`."""
    if group is not None:
        options["group"] = HEADINGS[group]
    return Parameter(help=text, negative="", **options)


# The headings of flags in `sagda run --help` and others, in the order shown.
HEADINGS = {
    name: Group.create_ordered(name.capitalize())
    for name in (
        "data",
        "method",
        "run",
        "connection",
        "security",
        "state",
        "output",
        "several processes",
    )
}


class Flags(Config):
    """The configuration as flags. Algorithms and their parameters have other flags."""

    algorithms: Annotated[list[str], Parameter(parse=False)] = Field(["sagda-i"])
    grid: Annotated[dict[str, Any], Parameter(parse=False)] = Field({})
    trials: Annotated[int | None, Parameter(parse=False)] = Field(None)
    set: Annotated[dict[str, dict[str, Any]], Parameter(parse=False)] = Field({})


for name, fields in GROUPS.items():
    for key in fields:
        info = Flags.model_fields[key]
        info.metadata = [*info.metadata, Parameter(group=HEADINGS[name])]


Name = Annotated[
    str | None, flag("Algorithm to run; `sagda list` shows all.", "method")
]
Out = Annotated[
    Path | None,
    flag("Run folder (default: a name made from the settings, in runs/).", "output"),
]
Json = Annotated[
    bool, flag("Print one JSON object, not text.", "output", show_default=False)
]
OwnModel = Annotated[
    str | None,
    flag("FILE.py:FUNCTION of the run's model, if it is your own code.", "method"),
]
Folder = Annotated[Path, flag("Run folder.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Settings:
    """The flags that describe a configuration: a file, its keys as flags, `--set`."""

    config: Annotated[
        Path | None,
        flag("TOML file with the same keys as the flags. Flags override it.", "run"),
    ] = None
    flags: Annotated[Flags | None, Parameter(name="*")] = None
    set: Annotated[
        list[str] | None,
        flag(
            "Set a parameter of the problem and of every chosen algorithm that has it, "
            "as in start=warm, or of one, as in fsgda.local_lr=0.1. May be repeated.",
            "method",
            consume_multiple=False,
        ),
    ] = None

    @property
    def assignments(self) -> dict[str, Any]:
        """The values of `--set`, by parameter."""
        return parse_set(self.set or [])

    def merged(self, algorithms: list[str] | None = None) -> Config:
        """The configuration: flags override the file, the file overrides defaults."""
        values, text = read_toml(self.config) if self.config else ({}, "")
        given = self.flags.model_fields_set if self.flags is not None else ()
        values |= {name: getattr(self.flags, name) for name in given}
        if ":" in str(values.get("model")):
            # A file names its model's code relative to its own folder.
            file = None if "model" in given else self.config
            folder = file.parent if file else Path()
            values["model"] = allow_model(str(values["model"]), folder)
        if algorithms is not None:
            values["algorithms"] = algorithms
        return build(values, str(self.config), text)

    def of_one(self, command: str, algorithm: str | None) -> Config:
        """The same for a command that takes a single algorithm."""
        config = self.merged(None if algorithm is None else [algorithm])
        if len(config.algorithms) != 1:
            raise BadValue(
                f"`{command}` takes one algorithm, got {', '.join(config.algorithms)}; "
                "use `sagda compare` for several."
            )
        return config


@Parameter(name="*")
@dataclass(frozen=True)
class Execution:
    """The flags of a command that trains: checkpoints, processes, and its output."""

    checkpoint_seconds: Annotated[
        float, flag("Seconds between checkpoints.", "output")
    ] = 5.0
    host0: Annotated[
        str | None,
        flag(
            "HOST:PORT at which process 0 listens, without a cluster manager.",
            "several processes",
        ),
    ] = None
    processes: Annotated[
        int | None,
        flag(
            "Number of processes that share the run (default: as many as srun or "
            "mpirun started).",
            "several processes",
        ),
    ] = None
    process: Annotated[
        int | None, flag("Number of this process, from 0.", "several processes")
    ] = None
    json: Json = False


def say(json: bool, facts: Any, text: str | Callable[[], None]) -> int:
    """Print a command's result: `facts` as one JSON object, or `text` for a person.

    `text` may be a function that prints. Returns the exit code of success.
    """
    if json:
        print(json_module.dumps(facts))
    elif callable(text):
        text()
    else:
        print(text)
    return Exit.DONE


def allow_model(model: str, folder: Path | None = None) -> str:
    """Allow this command to run the code of a user's model; returns the model's name.

    Only code that the user names on the command line, or in the file given there, runs.
    """
    from sagda.models.user_code import allow

    return allow(model, folder)


def start_jax() -> None:
    """Let JAX use every core, and store compiled programs for later commands."""
    import pooch

    from sagda.simulator.devices import keep_programs, use_cores

    with suppress(BadValue):  # the caller of `main` has already used JAX
        use_cores()
    keep_programs(Path(pooch.os_cache("sagda")) / "programs")


def page_of(folder: Path) -> str:
    """Write the report of a run folder. Returns a line that says where it is.

    Without the extra that draws charts, the line says how to install it.
    """
    from sagda.report.charts import MissingExtra
    from sagda.report.run_page import write_page

    try:
        return f"page: {write_page(folder)}"
    except MissingExtra as missing:
        return str(missing)


def show_run(folder: Path, json: bool) -> int:
    """Write the report of a finished run and print its table."""
    from sagda.report.terminal import show_results
    from sagda.runs.results import read_results

    page, results = page_of(folder), read_results(folder)
    facts = {"folder": str(folder), "summary": results.summary, "page": page}
    return say(json, facts, lambda: show_results(results, folder, page))
