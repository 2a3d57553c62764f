"""`Config`: the checked settings of a run, for flags, TOML files and run folders.

Every field changes the numbers or the output of a run. The docstrings of the fields are
the help texts of `sagda run --help`. This module does not import JAX, so that the
command line starts fast. It does not build objects: `experiment.py` turns a
configuration into clients, a problem and methods. `folder.py` stores it.
"""

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_serializer,
    model_validator,
)

from sagda import check
from sagda.check import BadValue

SCHEMA = 1
PATIENCE = 100  # rounds without improvement, if `stop_early` is set without `patience`

# The groups of flags in `sagda run --help`. Every field of `Config` is in one of them.
GROUPS = {
    "data": (
        "data", "label", "positive", "categorical", "client_column", "standardise",
        "per_class", "clients", "samples", "partition", "alpha", "split_seed",
    ),
    "method": (
        "algorithms", "problem", "model", "local_lr", "server_lr", "local_steps",
        "batch_size", "weight_decay", "clip", "set",
    ),
    "run": (
        "rounds", "seed", "seeds", "cohort", "dropout", "stop_early", "patience",
        "float64", "layout", "grid", "trials",
    ),
    "output": ("eval_every", "track"),
}  # fmt: skip


def rates_text(value: Any) -> str:
    """Return a rate as text: `0.01`, or `0.01,0.05` for x and y.

    `value` is a number, a pair of numbers, or a text of this form.
    """
    parts = value.split(",") if isinstance(value, str) else value
    parts = parts if isinstance(parts, list | tuple) else [parts]
    try:
        numbers = [float(part) for part in parts if not isinstance(part, bool)]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != len(parts) or len(numbers) not in (1, 2):
        raise ValueError("must be one rate, or two for x and y as in 0.01,0.05")
    if not all(math.isfinite(n) and n > 0 for n in numbers):
        raise ValueError("must be above zero and finite")
    return ",".join(repr(n) for n in numbers)


def whole(value: Any) -> Any:
    """Return `value` unchanged if it is a whole number; raise `ValueError` otherwise.

    Pydantic alone would also accept 2.0 and True.
    """
    fraction = isinstance(value, str) and not re.fullmatch(r"[-+]?\d+", value)
    if fraction or isinstance(value, bool | float):
        raise ValueError("must be a whole number")
    return value


Rate = Annotated[str, BeforeValidator(rates_text)]
Count = Annotated[int, BeforeValidator(whole), Field(ge=1)]
Seed = Annotated[int, BeforeValidator(whole), Field(ge=0, le=2**32 - 1)]


class Config(BaseModel):
    """The settings of a run: the data, the problem, the algorithms and the rounds."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    problem: str = "auc"
    """Name of the problem, such as auc or dro; `sagda list` shows all."""
    model: str = "linear"
    """Model that scores rows: linear, mlp, cnn, or your own FILE.py:FUNCTION."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Add (weight_decay / 2) ||x||^2 to the objective."""
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Clip each stochastic gradient (x and y separately) to this Euclidean norm."""
    data: str = "a9a"
    """Name of a data set, such as a9a; or a file (.csv, .npz, LIBSVM); or a folder."""
    label: str = "label"
    """Label column of a data file."""
    client_column: str | None = None
    """Column of a data file with the client of each row, for `--partition
    by-column`."""
    categorical: str | None = None
    """Comma-separated numeric columns to treat as categories. Text columns
    always are."""
    standardise: bool | None = None
    """Scale each feature to mean 0 and variance 1, using only sums from each client."""
    positive: str | None = None
    """Label of the positive class (default: from the data set, else the larger
    label)."""
    per_class: Count | None = None
    """Rows to draw from each class before the split (default: from the data set, else
    all)."""
    algorithms: list[str] = ["sagda-i"]
    """Algorithms to run; `sagda list` shows all."""
    clients: Count | None = None
    """Number of clients (M; default: set by the problem or the column, else 100)."""
    samples: Count | Literal["all"] | None = None
    """Rows per client, or `all` (default: set by the problem, else 100).
    With `--partition by-column` the default is `all`."""
    partition: str = "by-label"
    """Name of the split of rows over clients, such as iid; `sagda list` shows all."""
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Dirichlet concentration, used by `--partition dirichlet` and `--partition
    quantity`. A smaller value gives more skew."""
    split_seed: Seed = 0
    """Seed of the split. It is independent of the run's seeds."""
    cohort: Count | None = None
    """Number of clients drawn in each round (m; default: all)."""
    dropout: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    """Probability that a client does not reply, in each exchange with the server."""
    local_steps: Count = 10
    """Number of local steps per round (K)."""
    batch_size: Count | Literal["all"] = 10
    """Rows per stochastic gradient, or `all` for all rows of the client."""
    local_lr: Rate = "0.01"
    """Local learning rate: one number, or two for x and y as in 0.01,0.05."""
    server_lr: Rate = "2.0"
    """Server learning rate: one number, or two for x and y as in 1,2."""
    rounds: Count = 500
    """Number of communication rounds (T)."""
    seed: Seed = 0
    """First random seed."""
    seeds: Count = 1
    """Number of seeds. They are counted up from `--seed` and run in parallel."""
    eval_every: Count = 1
    """Rounds between evaluations."""
    float64: bool = False
    """Compute in double precision."""
    layout: str = "auto"
    """How a device takes its clients: mapped (one at a time), batched (all at once),
    chunk-16 (16 at a time) or auto. Append /2:clients or /2:runs to divide the clients
    or the runs over two devices."""
    track: str | None = None
    """Tracker that logs evaluations to the run folder; `sagda list` shows all."""
    stop_early: str | None = None
    """Stop when this column of history.csv, such as grad_phi_sq, stops improving."""
    patience: Count | None = None
    """Rounds without improvement before `--stop-early` stops a run (default: 100)."""
    grid: dict[str, list[int | float | str] | str] = {}
    """For each swept parameter its values, or a range such as 0.001:0.1."""
    trials: Count | None = None
    """Number of points that Optuna chooses, instead of all combinations."""
    set: dict[str, dict[str, Any]] = {}
    """Parameters for the problem and for single algorithms: one table per name."""

    @field_serializer("local_lr", "server_lr")
    def numbers(self, text: str) -> float | list[float]:
        """Write a rate to TOML as a number, or as a list of two numbers."""
        numbers = [float(part) for part in text.split(",")]
        return numbers[0] if len(numbers) == 1 else numbers

    @model_validator(mode="after")
    def consistent(self) -> "Config":
        """Check that the list of algorithms is not empty and has no duplicates."""
        if not self.algorithms:
            raise ValueError("algorithms must name at least one algorithm")
        if len(dict.fromkeys(self.algorithms)) != len(self.algorithms):
            raise ValueError("algorithms must name each algorithm once")
        return self

    @property
    def run_seeds(self) -> tuple[int, ...]:
        """All seeds of the run."""
        return tuple(range(self.seed, self.seed + self.seeds))


def sentence(error: ValidationError, model: type[BaseModel], table: str = "") -> str:
    """Return the first of the errors as one sentence that names the field of `model`.

    `table` is the name of the TOML table that holds the fields. It is empty for fields
    at the top level of the file.
    """
    first = error.errors()[0]
    field = str((first["loc"] or ("",))[0])
    message = first["msg"].removeprefix("Value error, ")
    if not field:
        return f"{message}."
    if first["type"] == "extra_forbidden":
        # A misspelt key: `choice` suggests the nearest one.
        key = f"{table} key" if table else "key"
        try:
            check.choice(key, field, list(model.model_fields))
        except BadValue as unknown:
            return str(unknown)
    message = message.replace("Input should be", "must be").split(", unable to parse")[
        0
    ]
    message = message.replace("greater than or equal to", "at least")
    message = message.replace("a valid integer", "a whole number")
    if first["type"] == "finite_number":
        message = "must be finite"
    # Some fields accept a word, such as 'all', instead of a number.
    for other in error.errors():
        if other["type"] == "literal_error" and other["loc"][:1] == (field,):
            word = other.get("ctx", {}).get("expected")
            message = f"must be a whole number of at least 1, or {word}"
    name = f"{table}.{field}" if table else field
    return f"`{name}` {message}, got {first['input']!r}."


def build(values: dict[str, Any], where: str = "", text: str = "") -> Config:
    """Check `values` and return them as a configuration.

    If `values` come from a TOML file, `where` is its name and `text` its content. Then
    an error message names the file and the line.
    """
    try:
        return Config(**values)
    except ValidationError as error:
        field = str((error.errors()[0]["loc"] or [""])[0])
        line = line_of(field, text)
        begin = f"{where}, line {line}: " if line else ""
        raise BadValue(begin + sentence(error, Config)) from None


def line_of(key: str, text: str) -> int | None:
    """Return the number of the line at which a TOML text sets `key`, or None."""
    pattern = re.compile(rf'\s*(\[\s*)?"?{re.escape(key)}"?\s*[\].=]')
    lines = enumerate(text.splitlines(), 1)
    return next((i for i, line in lines if key and pattern.match(line)), None)


def is_federation(folder: Path) -> bool:
    """Return True if `folder` is the run folder of a federation's server.

    Such a folder has no data: the data stay at the sites.
    """
    return "federation" in read_toml(folder / "config.toml")[0]


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """Return the values of a configuration file by key, and the text of the file."""
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except FileNotFoundError:
        raise BadValue(f"configuration {path} does not exist.") from None
    except IsADirectoryError:
        raise BadValue(f"configuration {path} is a folder, not a file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadValue(f"configuration {path} is not TOML: {error}.") from None
    schema = values.pop("schema", SCHEMA)
    if schema != SCHEMA:
        raise BadValue(
            f"configuration {path}: `schema` must be {SCHEMA} for this version, got "
            f"{schema!r}."
        )
    return values, text


def write_toml(config: Config) -> str:
    """Return the whole configuration as TOML. Running this file repeats the run."""
    values = config.model_dump(exclude_none=True)
    values["set"] = {name: table for name, table in config.set.items() if table}
    return toml_text({"schema": SCHEMA} | values)


def toml_text(values: dict[str, Any]) -> str:
    """Return `values` as TOML, without empty tables and with each list on one line."""
    text = tomli_w.dumps({k: v for k, v in values.items() if v != {}})
    # tomli_w writes each element of a list on a separate line, indented by four.
    one_line = lambda match: "[" + ", ".join(re.findall(r" {4}(.*),\n", match[1])) + "]"
    return re.sub(r"(?m)\[\n((?: {4}.*,\n)+)\]$", one_line, text)


def parse_set(assignments: list[str]) -> dict[str, Any]:
    """Return assignments such as `start=warm` and `fsgda.local_lr=0.1` as a dict.

    The values are parsed as JSON if possible, or as numbers with commas.
    """
    out: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise BadValue(f"`--set` must have the form start=warm, got {text!r}.")
        try:
            parsed = json.loads(value)
        except json.JSONDecodeError:
            numbers = re.fullmatch(r"[-+.\deE]+(,[-+.\deE]+)+", value)
            parsed = [float(v) for v in value.split(",")] if numbers else value
        # TOML has no null, so config.toml could not store it. Store the text instead.
        out[key.strip()] = value if parsed is None else parsed
    return out
