"""Figures of the paper as run configurations, read from one TOML file per figure.

The files are `figures/NAME.toml` in this package. If the output folder has a file of
the same name, it is read instead. `run` makes the runs of a figure, and `tuning` finds
its tuned rates.
"""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from sagda import check
from sagda.check import BadValue
from sagda.runs.config import Config, build

PANELS = ("fig1a", "fig1b", "fig1c", "fig1d")
ORDER = (*PANELS, "partial", "steps", "local-rates", "server-rates", "gan")
# Figure 2 shows the runs of Figure 1 against samples.
ALSO = {panel.replace("1", "2"): panel for panel in PANELS}
SETTINGS = ("paper", "tuned")
QUICK_ROUNDS = 10  # a quick run has 1/QUICK_ROUNDS of the rounds
QUICK_SEEDS = 2  # the largest number of seeds of a quick run


class Figure(NamedTuple):
    """A figure of the paper, with the configurations of its runs."""

    name: str
    title: str
    where: str  # the number of the figure in the paper
    cost: float  # milliseconds per round, approximately
    captions: dict[str, str]  # by setting
    parts: dict[str, dict[str, Config]]  # by setting and part; a part is a run folder
    tuning: dict[str, Any]  # the grid, and the rates that tuning has found
    text: str  # the content of the file

    @property
    def needs_mnist(self) -> bool:
        """True if a run of the figure trains on MNIST, which must be downloaded."""
        return any(
            c.data == "mnist" for some in self.parts.values() for c in some.values()
        )


def chosen(names: list[str]) -> list[str]:
    """Return the figures that `names` select, in the order of the paper.

    Figure 2 has the runs of Figure 1. `all`, or no name, selects every figure.
    """
    wanted = set()
    for name in names or ["all"]:
        check.choice("figure", name, ["all", *ORDER, *ALSO, "speedup"])
        wanted |= set(ORDER) if name == "all" else {ALSO.get(name, name)}
    return [name for name in ORDER if name in wanted]


def read(name: str, folder: Path | None = None) -> Figure:
    """Read the figure `name` from `folder`, or from the package if it has no file."""
    path = resources.files("sagda.paper").joinpath("figures", f"{name}.toml")
    if folder is not None and (folder / f"{name}.toml").is_file():
        path = folder / f"{name}.toml"
    try:
        return parse(name, path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise BadValue(
            f"{path} must describe a figure with `title`, `where`, `cost`, `config` "
            f"and `settings`, but reading it failed: {error}; correct or remove it."
        ) from None


def parse(name: str, text: str) -> Figure:
    """Return the figure that `text`, the content of a TOML file, describes."""
    values = tomllib.loads(text)
    tuning = values.get("tuning", {})
    captions, parts = {}, {}
    for setting in SETTINGS:
        table = dict(values["settings"][setting])
        captions[setting] = table.pop("caption")
        part_tables = table.pop("parts", {"": {}})
        if setting == "tuned" and "found" in tuning:
            rates = {m: found["best"] for m, found in tuning["found"].items()}
            table["set"] = rates | table.get("set", {})
        parts[setting] = {
            part: build(values["config"] | table | part_table, f"figure {name}")
            for part, part_table in part_tables.items()
        }
    return Figure(
        name=name,
        title=values["title"],
        where=values["where"],
        cost=values["cost"],
        captions=captions,
        parts=parts,
        tuning=tuning,
        text=text,
    )


def quick(config: Config) -> Config:
    """Return a copy of `config` with fewer rounds and seeds."""
    rounds = max(10, config.rounds // QUICK_ROUNDS)
    values = {
        "rounds": rounds,
        "seeds": 1 if config.problem == "gan" else min(config.seeds, QUICK_SEEDS),
        "eval_every": max(1, min(config.eval_every, rounds // 10)),
    }
    return build(config.model_dump() | values)
