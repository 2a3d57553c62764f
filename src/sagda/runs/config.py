"""`Config`: one description of a run for flags, TOML files and the run folder.

It knows no JAX, so that the command line answers at once.
"""

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

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
PATIENCE = 100  # rounds, where an early stop names none


def rates_text(value: Any) -> str:
    """`0.01` or `0.01,0.05` from a number, a pair or such a text."""
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
    """Whole numbers only: pydantic would take 2.0 for 2 and True for 1."""
    text = isinstance(value, str) and not re.fullmatch(r"[-+]?\d+", value)
    if text or isinstance(value, bool | float):
        raise ValueError("must be a whole number")
    return value


Rate = Annotated[str, BeforeValidator(rates_text)]
Count = Annotated[int, BeforeValidator(whole), Field(ge=1)]
Seed = Annotated[int, BeforeValidator(whole), Field(ge=0, le=2**32 - 1)]


class Config(BaseModel):
    """Everything that decides a run's numbers."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    problem: str = "auc"
    """What is solved: auc, dro, agnostic, adversarial, fair, gan or quadratic."""
    model: str = "linear"
    """What scores rows: linear, mlp, cnn, or your own FILE.py:FUNCTION (not dro)."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Add this much of ||x||^2 / 2 to the objective."""
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The longest stochastic gradient in x, and in y, that clients use."""
    data: str = "a9a"
    """a9a, mnist, digits, a file (.csv, .npz, LIBSVM) or a folder of .npy columns."""
    label: str = "label"
    """The label column of a file."""
    client_column: str | None = None
    """The column of a file that says who holds a row; for partition by-column."""
    categorical: str | None = None
    """Columns of numbers in a file that are categories, with commas; texts are."""
    standardise: bool | None = None
    """Give features mean zero and deviation one, from sums that clients add up."""
    positive: str | None = None
    """The label of the positive class (default: 1 for mnist and digits)."""
    per_class: Count | None = None
    """Draw that many rows of each class first (default: for mnist 5000, gan 1000)."""
    algorithms: list[str] = ["sagda-i"]
    """What is run: see `sagda list`."""
    clients: Count | None = None
    """M, the clients (default: 100; the data's own for by-column)."""
    samples: Count | Literal["all"] | None = None
    """Rows per client, or `all` there are (default: 100; 10 for the quadratic)."""
    partition: str = "by-label"
    """by-label, iid, dirichlet, quantity or by-column."""
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Skew of dirichlet and quantity: the smaller, the more."""
    split_seed: Seed = 0
    """The seed of the split; run seeds do not change it."""
    cohort: Count | None = None
    """m, the clients drawn each round (default: all)."""
    dropout: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    """The probability that a client fails in an exchange."""
    local_steps: Count = 10
    """K, the local steps between exchanges."""
    batch_size: Count | Literal["all"] = 10
    """Rows per stochastic gradient, or `all` local ones."""
    local_lr: Rate = "0.01"
    """Local rates: one number, or x,y."""
    server_lr: Rate = "2.0"
    """Server rates: one number, or x,y."""
    rounds: Count = 500
    """T."""
    seed: Seed = 0
    """The first run seed."""
    seeds: Count = 1
    """How many seeds, from the first on, side by side."""
    eval_every: Count = 1
    """Rounds between evaluations."""
    float64: bool = False
    """Double precision."""
    layout: str = "auto"
    """How clients and seeds are laid out: auto, mapped, batched/2:clients, chunk-16."""
    stream: Count | None = None
    """Rows to hold on the device at a time (default: all that fit)."""
    track: str | None = None
    """Log evaluations with tensorboard or mlflow, into the run folder."""
    stop_early: str | None = None
    """A column of the history: stop when its best value improves no more."""
    patience: Count | None = None
    """Rounds without an improvement after which that stops a run (default: 100)."""
    grid: dict[str, list[int | float | str] | str] = {}
    """A sweep's values of parameters, or a range of them as in 0.001:0.1."""
    trials: Count | None = None
    """How many points a sweep tries by Optuna's search instead of all combinations."""
    set: dict[str, dict[str, Any]] = {}
    """Parameters of single algorithms, by name."""

    @field_serializer("local_lr", "server_lr")
    def numbers(self, text: str) -> float | list[float]:
        numbers = [float(part) for part in text.split(",")]
        return numbers[0] if len(numbers) == 1 else numbers

    @model_validator(mode="after")
    def consistent(self) -> "Config":
        if not self.algorithms:
            raise ValueError("algorithms must name at least one algorithm")
        if len(set_of(self.algorithms)) != len(self.algorithms):
            raise ValueError("algorithms must name each algorithm once")
        return self

    @property
    def run_seeds(self) -> tuple[int, ...]:
        return tuple(range(self.seed, self.seed + self.seeds))


set_of = set  # the name `set` is a field above


def sentence(error: ValidationError, where: str = "") -> str:
    """The first mistake in one sentence: field, expected, found."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][:1])
    said = first["msg"].removeprefix("Value error, ")
    kind = first["type"]
    if not field:
        return f"{where}{said}."
    if kind == "extra_forbidden":
        try:
            check.choice("key", field, list(Config.model_fields))
        except BadValue as mistake:
            return f"{where}{mistake}"
    said = said.replace("Input should be", "must be").split(", unable to parse")[0]
    said = said.replace("greater than or equal to", "at least")
    said = said.replace("a valid integer", "a whole number")
    if field in ("batch_size", "samples"):
        said = "must be a whole number from 1 on, or 'all'"
    if kind == "finite_number":
        said = "must be finite"
    return f"{where}`{field}` {said}, got {first['input']!r}."


def build(values: dict[str, Any], where: str = "", text: str = "") -> Config:
    """A checked configuration; `text` is the TOML file's, to name a line."""
    try:
        return Config(**values)
    except ValidationError as error:
        field = str((error.errors()[0]["loc"] or [""])[0])
        line = line_of(field, text)
        raise BadValue(
            sentence(error, f"{where}, line {line}: " if line else "")
        ) from None


def line_of(key: str, text: str) -> int | None:
    """Where a TOML text sets `key`."""
    pattern = re.compile(rf'\s*(\[\s*)?"?{re.escape(key)}"?\s*[\].=]')
    for number, line in enumerate(text.splitlines(), 1):
        if key and pattern.match(line):
            return number
    return None


def is_federation(folder: Path) -> bool:
    """Whether a run folder is a federation's server's, whose data are elsewhere."""
    return "federation" in read_toml(folder / "config.toml")[0]


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """The keys of a configuration file, and its text."""
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
    """The whole configuration as TOML; running it again repeats the run."""
    values = config.model_dump(exclude_none=True)
    tables, grid = values.pop("set"), values.pop("grid")
    lines = [f"schema = {SCHEMA}"]
    lines += [f"{key} = {toml_value(value)}" for key, value in values.items()]
    if grid:
        lines += ["", "[grid]"]
        lines += [f'"{key}" = {toml_value(value)}' for key, value in grid.items()]
    for name, table in tables.items():
        if table:
            lines += ["", f'[set."{name}"]']
            lines += [f"{key} = {toml_value(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    # Strings, numbers and booleans look the same in JSON and in TOML.
    return json.dumps(value, ensure_ascii=False)


def parse_set(assignments: list[str]) -> dict[str, Any]:
    """`start=warm` and `fsgda.local_lr=0.1` as {key: value}."""
    out: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise BadValue(f"`--set` must look like start=warm, got {text!r}.")
        try:
            parsed = json.loads(value)
        except json.JSONDecodeError:
            numbers = re.fullmatch(r"[-+.\deE]+(,[-+.\deE]+)+", value)
            parsed = [float(v) for v in value.split(",")] if numbers else value
        out[key.strip()] = parsed
    return out
