"""`Figure`: a figure of the paper as configurations, from one TOML file."""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from sagda import check
from sagda.check import BadValue
from sagda.runs.config import Config, build

ORDER = (
    "fig1a",
    "fig1b",
    "fig1c",
    "fig1d",
    "partial",
    "steps",
    "local-rates",
    "server-rates",
    "gan",
)
# Figure 2 shows the runs of Figure 1 against samples.
ALSO = {"fig2a": "fig1a", "fig2b": "fig1b", "fig2c": "fig1c", "fig2d": "fig1d"}
SETTINGS = ("paper", "tuned")
QUICK_ROUNDS, QUICK_SEEDS = 10, 2  # a tenth of the rounds


class Figure(NamedTuple):
    """What is run for a figure, by setting and part; a part is one run folder."""

    name: str
    title: str
    where: str  # in the paper
    cost: float  # milliseconds of a round, roughly
    captions: dict[str, str]
    parts: dict[str, dict[str, Config]]
    tuning: dict[str, Any]  # the grid, and what was found on it
    text: str  # the file

    @property
    def needs_mnist(self) -> bool:
        return any(
            c.data == "mnist" for some in self.parts.values() for c in some.values()
        )


def chosen(names: list[str]) -> list[str]:
    """The figures that a user named, in the paper's order."""
    wanted = set()
    for name in names or ["all"]:
        check.choice("figure", name, ["all", *ORDER, *ALSO, "speedup"])
        wanted |= set(ORDER) if name == "all" else {ALSO.get(name, name)}
    return [name for name in ORDER if name in wanted]


def read(name: str, folder: Path | None = None) -> Figure:
    """The figure of that name; a file in `folder` goes before the package's."""
    own = None if folder is None else folder / f"{name}.toml"
    if own is not None and own.is_file():
        text = own.read_text(encoding="utf-8")
    else:
        place = resources.files("sagda.paper").joinpath("figures", f"{name}.toml")
        text = place.read_text(encoding="utf-8")
    try:
        return parse(name, text)
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise BadValue(f"{own or name} is not a figure's file: {error}.") from None


def parse(name: str, text: str) -> Figure:
    values = tomllib.loads(text)
    tuning = values.get("tuning", {})
    captions, parts = {}, {}
    for setting in SETTINGS:
        own = dict(values["settings"][setting])
        captions[setting] = own.pop("caption")
        several = own.pop("parts", {"": {}})
        if setting == "tuned" and "found" in tuning:
            rates = {m: found["best"] for m, found in tuning["found"].items()}
            own["set"] = rates | own.get("set", {})
        parts[setting] = {
            part: build(values["config"] | own | more, f"figure {name}")
            for part, more in several.items()
        }
    head = values["title"], values["where"], values["cost"]
    return Figure(name, *head, captions, parts, tuning, text)


def quick(config: Config) -> Config:
    """The same with fewer rounds and seeds."""
    rounds = max(10, config.rounds // QUICK_ROUNDS)
    values = {
        "rounds": rounds,
        "seeds": 1 if config.problem == "gan" else min(config.seeds, QUICK_SEEDS),
        "eval_every": max(1, min(config.eval_every, rounds // 10)),
    }
    return build(config.model_dump() | values)
