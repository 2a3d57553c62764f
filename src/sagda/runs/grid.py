"""Sweeps: the points of a grid or of a search, grouped into batches.

A grid tries every combination of values. A search (`trials`) asks Optuna for points and
reports the error of each point to Optuna. Points that can share a compiled program run
together in one batch. `execution.py` runs the batches, and `results.py` ranks the
points.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from sagda.runs.parameters import arguments_of, options_of
from sagda.simulator.run import Run
from sagda.simulator.sweep import alike

AT_ONCE = 8  # points that a search proposes before it reads their results
HALVES = ("x", "y")


@dataclass(frozen=True)
class GridPoint:
    """One point of a sweep: a value for each swept parameter.

    `values` has pairs `(parameter, value)`. A parameter is an argument of the
    algorithm, such as `local_lr`. `local_lr.x` sets only the rate for x.
    """

    values: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """The point as text. Points with different values have different names."""
        return " ".join(f"{key}={short(value)}" for key, value in self.values)

    def method(self, config: Config) -> Method:
        """Return the algorithm of `config` with the parameters of this point."""
        (name,) = config.algorithms
        arguments = arguments_of(config, name)
        # Set `local_lr` before `local_lr.x`, so that the order of the keys is free.
        for key, value in sorted(self.values, key=lambda item: "." in item[0]):
            parameter, dot, half = key.partition(".")
            if dot:
                given = arguments.get(parameter)
                whole = Rates(1.0, 1.0) if given is None else rates(parameter, given)
                value = replace(whole, **{half: value})
            arguments[parameter] = value
        return ALGORITHMS[name](**arguments)


def short(value: Any) -> str:
    """Return a number with six digits if this is exact, otherwise with all digits."""
    if not isinstance(value, int | float):
        return str(value)
    text = f"{value:g}"
    return text if float(text) == value else repr(value)


def parse_grid(assignments: list[str]) -> dict[str, Any]:
    """Return the grid that assignments such as `local_lr=0.01,0.1` describe.

    The result has a list of values for each parameter. For `local_lr=0.001:0.1` it has
    the text of the range.
    """
    grid: dict[str, Any] = {}
    for text in assignments:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not (key and equals and values):
            raise BadValue(
                "`--grid` must have the form local_lr=0.01,0.1 or local_lr=0.001:0.1, "
                f"got {text!r}."
            )
        if key in grid:
            raise BadValue(
                f"`--grid` must name each parameter once, got {key} again in {text!r}; "
                f"give all values of {key} in one --grid, separated by commas."
            )
        grid[key] = values if ":" in values else [number(v) for v in values.split(",")]
    return grid


def number(text: str) -> Any:
    """Return `text` as an int or a float if possible, otherwise unchanged."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip()


def check_grid(config: Config) -> None:
    """Raise `BadValue` unless `config` describes a valid sweep of one algorithm."""
    if len(config.algorithms) != 1:
        raise BadValue(
            f"a sweep takes one algorithm, got {', '.join(config.algorithms)}; choose "
            "one with --algorithm."
        )
    if not config.grid:
        raise BadValue(
            "`grid` must have at least one parameter, got none; add one, as in --grid "
            "local_lr=0.01,0.1."
        )
    for key in ("track", "stop_early"):
        if getattr(config, key) is not None:
            raise BadValue(
                f"`{key}` must not be set in a sweep; it is for `sagda run` and "
                "`sagda compare`."
            )
    (name,) = config.algorithms
    for key, values in config.grid.items():
        parameter, dot, half = key.partition(".")
        check.choice(f"grid of {name}", parameter, options_of(name))
        if dot:
            check.choice(f"grid {parameter}", half, HALVES)
        if isinstance(values, str):
            ends(key, values)
            if config.trials is None:
                raise BadValue(
                    f"`trials` must be set to search {key} in the range {values}; add "
                    "--trials 24."
                )
        elif not values:
            raise BadValue(f"`grid` must have at least one value for {key}, got none.")
    if config.trials is not None and find_spec("optuna") is None:
        raise BadValue("`trials` needs the extra `sweep`: pip install 'sagda[sweep]'.")


def ends(key: str, text: str) -> tuple[float, float]:
    """Return the lower and the upper end of the range `text`, such as 0.001:0.1."""
    low, _, high = text.partition(":")
    values = [number(low), number(high)]
    numeric = all(isinstance(v, int | float) for v in values)
    if not numeric or not 0 < values[0] < values[1] < float("inf"):
        raise BadValue(
            f"`grid` must have a range LOW:HIGH with 0 < LOW < HIGH for {key}, got "
            f"{text!r}."
        )
    return float(values[0]), float(values[1])


def grid_points(config: Config) -> list[GridPoint]:
    """Return every combination of the values in the grid.

    For a range, the only value is its geometric middle.
    """
    middle = lambda key, text: [float(np.sqrt(np.prod(ends(key, text))))]
    values = [
        middle(key, v) if isinstance(v, str) else v for key, v in config.grid.items()
    ]
    return [
        GridPoint(tuple(zip(config.grid, combination, strict=True)))
        for combination in itertools.product(*values)
    ]


def sweep_batches(
    config: Config, handed: dict[str, GridPoint], runs: dict[str, Run]
) -> Iterator[dict[str, Method]]:
    """Yield batches of methods that run together, by the names of their points.

    All points are added to `handed`. The caller must put the results of a batch into
    `runs` before it asks for the next batch, because a search uses these results.
    """
    for points in searched(config, runs) if config.trials else [grid_points(config)]:
        # A search may propose a point twice. Its result is then in `runs` already.
        new = {p.name: p for p in points if p.name not in handed}
        handed |= new
        names, methods = list(new), [point.method(config) for point in new.values()]
        for group in alike(methods):
            yield {names[i]: methods[i] for i in group}


def searched(config: Config, runs: dict[str, Run]) -> Iterator[list[GridPoint]]:
    """Yield lists of points that Optuna proposes from the results of earlier points.

    The sampler of Optuna is seeded, so a resumed sweep proposes the same points again.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=config.seed, constant_liar=True)
    study = optuna.create_study(sampler=sampler)
    left = config.trials or 0
    while left:
        trials = [study.ask() for _ in range(min(left, AT_ONCE))]
        points = [
            GridPoint(tuple((k, pick(trial, k, v)) for k, v in config.grid.items()))
            for trial in trials
        ]
        yield points
        for trial, point in zip(trials, points, strict=True):
            # A diverged point reports infinity. If it reported a failure, the sampler
            # would ignore the point and propose similar ones.
            study.tell(trial, tail_of(runs[point.name]))
        left -= len(trials)


def pick(trial: Any, key: str, values: Any) -> Any:
    """Return the value that an Optuna trial proposes for the parameter `key`."""
    if not isinstance(values, str):
        return trial.suggest_categorical(key, values)
    low, high = ends(key, values)
    # With six digits, the name of the point shows the exact value.
    return float(f"{trial.suggest_float(key, low, high, log=True):.6g}")


def tail_of(run: Run) -> float:
    """Return the main metric of a run, averaged over the last rounds and all seeds.

    The result is infinite if a seed diverged.
    """
    tail = run.history.tail(judged_by(run.history.columns))
    return float(tail.mean()) if np.isfinite(tail).all() else float("inf")
