"""The application, its flags, and what all commands share."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from pydantic import Field

import sagda
from sagda.check import BadValue
from sagda.runs import config as configs
from sagda.runs.config import Config

app = App(
    name="sagda",
    version=sagda.__version__,
    help="Federated min-max learning: run, compare and inspect.",
    help_epilogue="Every command takes --json (one object on stdout) and --debug.",
    result_action="return_value",
)
app.register_install_completion_command()


class Flags(Config):
    """The configuration as flags; what names algorithms has flags of its own."""

    algorithms: Annotated[list[str], Parameter(parse=False)] = Field(["sagda-i"])
    grid: Annotated[dict[str, Any], Parameter(parse=False)] = Field({})
    trials: Annotated[int | None, Parameter(parse=False)] = Field(None)
    set: Annotated[dict[str, dict[str, Any]], Parameter(parse=False)] = Field({})


def said(text: str, **options: Any) -> Parameter:
    return Parameter(help=text, negative="", **options)


AllFlags = Annotated[Flags | None, Parameter(name="*")]
File = Annotated[
    Path | None, said("A TOML file with the same keys as the flags; flags come first.")
]
Name = Annotated[str | None, said("What to run: see `sagda list`.")]
FOUR = ["sagda-i", "sagda-ii", "fsgda", "parallel-sgda"]
Names = Annotated[
    str | None,
    said(f"What to compare, with commas, or `all` (default: {','.join(FOUR)})."),
]
Set = Annotated[
    list[str] | None,
    said(
        "A parameter of every chosen algorithm, or the problem, that has it, as in "
        "start=warm, or of one, as in fsgda.local_lr=0.1; may be repeated.",
        consume_multiple=False,
    ),
]
Out = Annotated[
    Path | None, said("The run folder (default: under runs/, after the configuration).")
]
Seconds = Annotated[float, said("Seconds between checkpoints.")]
Json = Annotated[bool, said("Print one JSON object.")]
OwnModel = Annotated[
    str | None, said("FILE.py:FUNCTION, where the model is of your own code.")
]
Folder = Annotated[Path, said("The run folder.")]


@dataclass
class Processes:
    """The flags of a run over several processes."""

    host0: Annotated[
        str | None,
        said("HOST:PORT of process 0, if you start the processes of a run yourself."),
    ] = None
    processes: Annotated[
        int | None,
        said("How many processes share the run (default: what srun or mpirun starts)."),
    ] = None
    process: Annotated[int | None, said("The number of this process, from 0.")] = None

    @property
    def several(self) -> bool:
        """Whether another process may be the one that has the run folder."""
        from sagda.simulator.processes import launched

        return self.processes != 1 and (self.processes is not None or launched() > 1)


ManyFlags = Annotated[Processes | None, Parameter(name="*")]


def merged(
    file: Path | None, flags: Flags | None, algorithms: list[str] | None
) -> Config:
    """Defaults, under the file's keys, under the flags that were given."""
    values, text = configs.read_toml(file) if file else ({}, "")
    given = flags.model_fields_set if flags is not None else ()
    values |= {name: getattr(flags, name) for name in given}
    beside = Path() if file is None or "model" in given else file.parent
    if ":" in str(values.get("model")):
        values["model"] = allowed(str(values["model"]), beside)
    if algorithms is not None:
        values["algorithms"] = algorithms
    return configs.build(values, str(file), text)


def allowed(model: str, beside: Path | None = None) -> str:
    """The name of a model of the user's code, which may be run from here on."""
    from sagda.models.user_code import allow

    return allow(model, beside)


def start_jax() -> None:
    """Every core, and compiled programs kept from one command to the next."""
    import pooch

    from sagda.simulator.devices import keep_programs, use_cores

    with suppress(BadValue):  # a caller of `main` has used JAX before
        use_cores()
    keep_programs(Path(pooch.os_cache("sagda")) / "programs")
