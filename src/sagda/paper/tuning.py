"""Tunes every method of a figure on one grid, with the same number of points.

`retuned` returns a figure whose TOML text has the results, and `figure` reads them from
there. This module is for the paper's figures. Users tune with `sagda sweep`.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import tomli_w

from sagda.algorithms import ALGORITHMS
from sagda.paper.figure import Figure, parse
from sagda.runs.config import Config, build
from sagda.runs.experiment import Experiment, prepare, resolve, run_options
from sagda.runs.grid import tail_of
from sagda.runs.parameters import arguments_of, options_of
from sagda.simulator.sweep import sweep

MARK = "# What follows was written by `sagda reproduce --retune`."
WIDER = 3.0  # ratio of a new value to its neighbour when the grid grows
MOST = 8  # how often the grid may grow
RatePoint = tuple[tuple[str, float], ...]  # pairs (parameter, value)


def retuned(figure: Figure, say: Callable[[str], None]) -> Figure:
    """Tune the rates of a figure again. Return it with the results in its text."""
    (config,) = figure.parts["paper"].values()
    tables = {}
    for name in config.algorithms:
        errors = tuned(config, name, figure.tuning)
        best = min(errors, key=lambda point: errors[point])
        rates = ", ".join(f"{k} {v:g}" for k, v in best)
        say(f"{figure.name}: {name}: {rates}, {errors[best]:.2g}, {len(errors)} points")
        tables[name] = tuning_table(errors, best)
    head = figure.text.partition(MARK)[0].rstrip()
    text = tomli_w.dumps({"tuning": {"found": tables}})
    return parse(figure.name, f"{head}\n\n{MARK}\n\n{text}")


def tuning_table(errors: dict[RatePoint, float], best: RatePoint) -> dict[str, Any]:
    """Return the best rates of a method and all tried points, for the TOML file."""
    return {
        "error": float(f"{errors[best]:.4g}"),
        "best": dict(best),
        "sweep": [
            {k: float(f"{v:g}") for k, v in point}
            | {"error": short(error) if math.isfinite(error) else math.inf}
            for point, error in sorted(errors.items())
        ],
    }


def tuned(config: Config, name: str, tuning: dict[str, Any]) -> dict[RatePoint, float]:
    """Return the error of one method at every point of its grid.

    The grid grows until the best point is not on its edge, at most `MOST` times.
    """
    local, server = tuning["local_lr"], tuning["server_lr"]
    axes: dict[str, list[float]] = {"local_lr": local, "server_lr": server}
    if "server_lr" not in options_of(name) or name == "parallel-sgda":
        # This method has one rate, but gets the same number of points as the others.
        # The points cover the range of their effective rates (local times server).
        low, high = local[0] * server[0], local[-1] * server[-1]
        count = len(local) * len(server)
        axes = {"local_lr": np.geomspace(low, high, count).tolist()}
    # Tune with other seeds than those of the reported runs.
    values = {"algorithms": [name], "seed": tuning["seed"], "seeds": tuning["seeds"]}
    rounds = tuning.get("rounds", config.rounds)
    values |= {"rounds": rounds, "eval_every": max(1, rounds // 40), "set": {}}
    experiment = prepare(resolve(build(config.model_dump() | values)))
    errors: dict[RatePoint, float] = {}
    for _ in range(MOST + 1):
        points = [
            tuple(zip(axes, map(short, point), strict=True))
            for point in itertools.product(*axes.values())
        ]
        new = [point for point in points if point not in errors]
        errors |= measured(experiment, name, new)
        best = dict(min(errors, key=lambda point: errors[point]))
        wider = {k: grown(v, best[k]) for k, v in axes.items()}
        if wider == axes:
            break
        axes = wider
    return errors


def short(value: float) -> float:
    """Round a number to three significant digits."""
    return float(f"{value:.3g}")


def grown(values: list[float], best: float) -> list[float]:
    """Return the values of an axis, with one value more if `best` is at an end."""
    if best <= short(values[0]):
        return [values[0] / WIDER, *values]
    if best >= short(values[-1]):
        return [*values, values[-1] * WIDER]
    return values


def measured(
    experiment: Experiment, name: str, points: list[RatePoint]
) -> dict[RatePoint, float]:
    """Run one sweep and return the error of the method at every point."""
    given = arguments_of(experiment.config, name)
    methods = [ALGORITHMS[name](**given | dict(point)) for point in points]
    options = vars(replace(run_options(experiment), test=None))
    runs = sweep(methods, experiment.problem, experiment.federation, **options)
    return {point: tail_of(run) for point, run in zip(points, runs, strict=True)}
