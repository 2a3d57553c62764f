"""The command-line application, the flags that commands share, and their output.

This file defines no command. The other files here define commands as plain functions.
`main.py` registers these functions and turns errors into exit codes.
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
    """The exit codes of all commands.

    A command that a signal stopped exits with 128 plus the number of the signal.
    """

    DONE = 0
    FAILED = 1  # any other error
    INVALID = 2  # invalid input: nothing was written
    DISK = 3  # a file could not be read or written
    UNREACHABLE = 4  # no server, or too few sites, can be reached


class CommandFailed(Exception):
    """An error with a sentence for the user and the exit code of the command."""

    def __init__(self, sentence: str, code: int = Exit.FAILED):
        super().__init__(sentence)
        self.code = code


def flag(text: str, group: str | None = None, **options: Any) -> Parameter:
    """Return a flag with its help text. `group` is a key of `HEADINGS`."""
    if group is not None:
        options["group"] = HEADINGS[group]
    return Parameter(help=text, negative="", **options)


# The headings above groups of flags in `--help`, in the order shown.
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
    """The fields of a configuration as flags.

    The fields below do not become flags: `--algorithm`, `--grid` and `--set` set them.
    """

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
    flag(
        "Run folder (default: a folder in runs/, named after the settings).", "output"
    ),
]
Json = Annotated[
    bool, flag("Print one JSON object instead of text.", "output", show_default=False)
]
OwnModel = Annotated[
    str | None,
    flag("FILE.py:FUNCTION that defines the model, if it is your own code.", "method"),
]
Folder = Annotated[Path, flag("Run folder.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Settings:
    """The flags that describe a configuration: `--config`, `--set`, one per field."""

    config: Annotated[
        Path | None,
        flag("TOML file with the same keys as the flags. A flag overrides it.", "run"),
    ] = None
    flags: Annotated[Flags | None, Parameter(name="*")] = None
    set: Annotated[
        list[str] | None,
        flag(
            "Set a parameter; may be repeated. `start=warm` sets it in the problem and "
            "in every chosen algorithm that has it. `fsgda.local_lr=0.1` sets it in "
            "one algorithm.",
            "method",
            consume_multiple=False,
        ),
    ] = None

    @property
    def assignments(self) -> dict[str, Any]:
        """The values of `--set`, by parameter."""
        return parse_set(self.set or [])

    def merged(self, algorithms: list[str] | None = None) -> Config:
        """Return the configuration from flags, file and defaults.

        Flags override the file, and the file overrides the defaults.
        """
        values, text = read_toml(self.config) if self.config else ({}, "")
        given = self.flags.model_fields_set if self.flags is not None else ()
        values |= {name: getattr(self.flags, name) for name in given}
        if ":" in str(values.get("model")):
            # In a TOML file, the path of the model's code is relative to that file.
            file = None if "model" in given else self.config
            folder = file.parent if file else Path()
            values["model"] = allow_model(str(values["model"]), folder)
        if algorithms is not None:
            values["algorithms"] = algorithms
        return build(values, str(self.config), text)

    def of_one(self, command: str, algorithm: str | None) -> Config:
        """Return the configuration for a command that takes a single algorithm."""
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
    """The flags of commands that train: checkpoints, processes and output."""

    checkpoint_seconds: Annotated[
        float, flag("Seconds between checkpoints.", "output")
    ] = 5.0
    host0: Annotated[
        str | None,
        flag(
            "HOST:PORT at which process 0 listens. Needed without srun and mpirun.",
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
        int | None, flag("Index of this process, from 0.", "several processes")
    ] = None
    json: Json = False


def say(json: bool, facts: Any, text: str | Callable[[], None]) -> int:
    """Print the result of a command and return the exit code of success.

    With `--json` it prints `facts` as one JSON object, otherwise `text`. `text` may be
    a function that prints.
    """
    if json:
        print(json_module.dumps(facts))
    elif callable(text):
        text()
    else:
        print(text)
    return Exit.DONE


def allow_model(model: str, folder: Path | None = None) -> str:
    """Allow this command to run the code of a user's model. Return the model's name.

    For safety, the library runs only code that the user named on the command line or in
    the file of `--config`.
    """
    from sagda.models.user_code import allow

    return allow(model, folder)


def start_jax() -> None:
    """Let JAX use every core, and store compiled programs for later commands."""
    import pooch

    from sagda.simulator.devices import keep_programs, use_cores

    with suppress(BadValue):  # raised if the caller of `main` has already used JAX
        use_cores()
    keep_programs(Path(pooch.os_cache("sagda")) / "programs")


def page_of(folder: Path) -> str:
    """Write the report of a run folder, and return a line with the path of the report.

    If the extra `report` is missing, the line says how to install it instead.
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
