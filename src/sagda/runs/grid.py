"""Sweeps: the points of a grid or of a search, and which of them run together."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from sagda import check
from sagda.algorithms import ALGORITHMS
from sagda.check import BadValue
from sagda.core import Rates
from sagda.methods import Method, rates
from sagda.problems.metrics import judged_by
from sagda.runs.config import Config
from sagda.runs.experiment import Experiment, arguments_of, options_of
from sagda.simulator.run import Run
from sagda.simulator.sweep import alike

AT_ONCE = 8  # trials that a search asks for before it looks at their results
HALVES = ("x", "y")
GridPoint = dict[str, Any]


def parse_grid(assignments: list[str]) -> dict[str, Any]:
    """`local_lr=0.01,0.1` as a list of values, `local_lr=0.001:0.1` as a range."""
    grid: dict[str, Any] = {}
    for text in assignments:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not (key and equals and values):
            raise BadValue(
                f"`--grid` must look like local_lr=0.01,0.1 or local_lr=0.001:0.1, got "
                f"{text!r}."
            )
        if key in grid:
            raise BadValue(
                f"`--grid` must name each parameter once, got {key} again in {text!r}; "
                "give all its values at once, as in local_lr=0.01,0.1."
            )
        grid[key] = values if ":" in values else [number(v) for v in values.split(",")]
    return grid


def number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip()


def check_grid(config: Config) -> None:
    """Keys that the algorithm has, values of one kind, ranges only for a search."""
    if len(config.algorithms) != 1:
        raise BadValue(
            f"a sweep takes one algorithm, got {', '.join(config.algorithms)}."
        )
    if not config.grid:
        raise BadValue("`grid` must have a parameter, as in --grid local_lr=0.01,0.1.")
    for key in ("track", "stop_early"):
        if getattr(config, key) is not None:
            raise BadValue(f"`{key}` is for `run` and `compare`, not for a sweep.")
    (name,) = config.algorithms
    for key, values in config.grid.items():
        parameter, dot, half = key.partition(".")
        check.choice(f"grid of {name}", parameter, options_of(name))
        if dot:
            check.choice(f"grid {parameter}", half, HALVES)
        if isinstance(values, str):
            ends(key, values)
            if config.trials is None:
                raise BadValue(f"`trials` must be set for the range `{key}` {values}.")
        elif not values:
            raise BadValue(f"`grid` must have a value for {key}, got none.")
    if config.trials is not None and find_spec("optuna") is None:
        raise BadValue("`trials` needs the extra `sweep`: pip install 'sagda[sweep]'.")


def ends(key: str, text: str) -> tuple[float, float]:
    """Both ends of a range."""
    low, _, high = text.partition(":")
    values = [number(low), number(high)]
    fine = all(isinstance(v, int | float) for v in values)
    if not fine or not 0 < values[0] < values[1] < float("inf"):
        raise BadValue(
            f"`grid` must have a range from low to high, above zero, for {key}, got "
            f"{text!r}."
        )
    return float(values[0]), float(values[1])


def name_of(point: GridPoint) -> str:
    """A point in words; other values make another name."""
    return " ".join(f"{key}={short(value)}" for key, value in point.items())


def short(value: Any) -> str:
    """Six digits where they say all of a number, else every one."""
    if not isinstance(value, int | float):
        return str(value)
    text = f"{value:g}"
    return text if float(text) == value else repr(value)


def method_at(config: Config, point: GridPoint) -> Method:
    """The algorithm with a point's parameters; `local_lr.x` is one half of a rate.

    Whole rates come first, so that their halves are set in them in any order of keys.
    """
    (name,) = config.algorithms
    arguments = arguments_of(config, name)
    for key, value in sorted(point.items(), key=lambda item: "." in item[0]):
        parameter, dot, half = key.partition(".")
        if dot:
            given = arguments.get(parameter)
            before = rates(parameter, given) if given is not None else Rates(1.0, 1.0)
            value = replace(before, **{half: value})
        arguments[parameter] = value
    return ALGORITHMS[name](**arguments)


def grid_points(config: Config) -> list[GridPoint]:
    """Every combination of the listed values; ranges by their middle."""
    middle = lambda key, text: [float(np.sqrt(np.prod(ends(key, text))))]
    values = [
        middle(key, v) if isinstance(v, str) else v for key, v in config.grid.items()
    ]
    return [
        dict(zip(config.grid, each, strict=True)) for each in itertools.product(*values)
    ]


class Sweep:
    """The batches of a sweep: points that share a program run side by side."""

    def __init__(self, experiment: Experiment):
        self.config = experiment.config
        self.points: dict[str, GridPoint] = {}

    def batches(self, runs: dict[str, Run]) -> Iterator[dict[str, Method]]:
        """Methods to run together, until all is done; `runs` fills up meanwhile."""
        chosen = searched(self.config, runs) if self.config.trials else None
        for points in chosen or [grid_points(self.config)]:
            named = {name_of(point): point for point in points}
            named = {k: v for k, v in named.items() if k not in self.points}
            self.points |= named
            names = list(named)
            methods = [method_at(self.config, named[name]) for name in names]
            for group in alike(methods):
                yield {names[i]: methods[i] for i in group}


def searched(config: Config, runs: dict[str, Run]) -> Iterator[list[GridPoint]]:
    """Points that Optuna asks for, a few at a time, from what the earlier ones gave.

    Its sampler is seeded, so a sweep that goes on asks for the same points again.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=config.seed, constant_liar=True)
    study = optuna.create_study(sampler=sampler)
    left = config.trials or 0
    while left:
        trials = [study.ask() for _ in range(min(left, AT_ONCE))]
        points = [{k: pick(t, k, v) for k, v in config.grid.items()} for t in trials]
        yield points
        for trial, point in zip(trials, points, strict=True):
            # Infinity, not a failure: the sampler learns nothing from failed trials.
            study.tell(trial, tail_of(runs[name_of(point)]))
        left -= len(trials)


def pick(trial: Any, key: str, values: Any) -> Any:
    if not isinstance(values, str):
        return trial.suggest_categorical(key, values)
    low, high = ends(key, values)
    # Six digits, so that a point's name says all of it.
    return float(f"{trial.suggest_float(key, low, high, log=True):.6g}")


def tail_of(run: Run) -> float:
    """The mean over seeds of what runs are judged by, in the last rounds; inf if one
    diverged."""
    tail = run.history.tail(judged_by(run.history.columns))
    return float(tail.mean()) if np.isfinite(tail).all() else float("inf")
