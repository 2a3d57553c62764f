"""Tuning: every method's rates from one grid, with the same number of points."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sagda.algorithms import ALGORITHMS
from sagda.paper.figure import Figure, parse
from sagda.runs.config import Config, build
from sagda.runs.experiment import (
    Experiment,
    arguments_of,
    options_of,
    prepare,
    resolve,
    simulate_options,
)
from sagda.runs.grid import tail_of
from sagda.simulator.sweep import sweep

MARK = "# What follows was written by `sagda reproduce --retune`."
WIDER, MOST = 3.0, 8  # the factor by which a grid grows, and how often
Point = dict[str, float]


def retuned(figure: Figure, say: Callable[[str], None]) -> Figure:
    """The figure with freshly chosen rates, and the sweeps behind them in its file."""
    if not figure.tuning:
        return figure
    (config,) = figure.parts["paper"].values()
    head = figure.text.partition(MARK)[0].rstrip()
    lines = [head, "", MARK]
    for name in config.algorithms:
        found = tuned(config, name, figure.tuning)
        best = min(found, key=lambda point: found[point])
        at = ", ".join(f"{k} {v:g}" for k, v in best)
        say(f"{figure.name}: {name}: {at}, {found[best]:.2g}, {len(found)} points")
        lines += ["", f'[tuning.found."{name}"]']
        values = ", ".join(f"{k} = {v!r}" for k, v in best)
        lines += [f"best = {{ {values} }}", f"error = {found[best]:.4g}", "sweep = ["]
        for point, error in sorted(found.items()):
            rates = ", ".join(f"{v:g}" for _, v in point)
            shown = f"{error:.3g}" if math.isfinite(error) else "inf"
            lines.append(f"  [{rates}, {shown}],")
        lines.append("]")
    return parse(figure.name, "\n".join(lines) + "\n")


def tuned(config: Config, name: str, tuning: dict[str, Any]) -> dict[tuple, float]:
    """By point, the error; the grid grows until the best is not on its edge."""
    local, server = tuning["local_lr"], tuning["server_lr"]
    axes: dict[str, list[float]] = {"local_lr": local, "server_lr": server}
    if "server_lr" not in options_of(name) or name == "parallel-sgda":
        # One rate: as many points, over the products that the others can have.
        low, high = local[0] * server[0], local[-1] * server[-1]
        count = len(local) * len(server)
        axes = {"local_lr": np.geomspace(low, high, count).tolist()}
    values = {"algorithms": [name], "seed": tuning["seed"], "seeds": tuning["seeds"]}
    rounds = tuning.get("rounds", config.rounds)
    values |= {"rounds": rounds, "eval_every": max(1, rounds // 40), "set": {}}
    experiment = prepare(resolve(build(config.model_dump() | values)))
    found: dict[tuple, float] = {}
    for _ in range(MOST + 1):
        points = [
            tuple(zip(axes, map(short, each), strict=True))
            for each in itertools.product(*axes.values())
        ]
        new = [point for point in points if point not in found]
        found |= measured(experiment, name, new)
        best = dict(min(found, key=lambda point: found[point]))
        wider = {k: grown(v, best[k]) for k, v in axes.items()}
        if wider == axes:
            break
        axes = wider
    return found


def short(value: float) -> float:
    return float(f"{value:.3g}")


def grown(values: list[float], best: float) -> list[float]:
    """With one more value beyond the end where the best is."""
    if best <= short(values[0]):
        return [values[0] / WIDER, *values]
    if best >= short(values[-1]):
        return [*values, values[-1] * WIDER]
    return values


def measured(
    experiment: Experiment, name: str, points: list[tuple]
) -> dict[tuple, float]:
    given = arguments_of(experiment.config, name)
    methods = [ALGORITHMS[name](**given | dict(point)) for point in points]
    options = {k: v for k, v in simulate_options(experiment).items() if k != "test"}
    runs = sweep(methods, experiment.problem, experiment.federation, **options)
    return {point: tail_of(run) for point, run in zip(points, runs, strict=True)}
