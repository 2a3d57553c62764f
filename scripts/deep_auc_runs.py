"""The runs of docs/deep-auc.md: its data, methods and tuning.

This file is not a command: `deep_auc.py` is. Each finished run is saved immediately, so
an interruption loses at most one point of a grid.
"""

import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sagda
from sagda import durable
from sagda.keys import generator

CLIENTS, ROWS, VALIDATION = 50, 100, 10_000
COHORTS = (50, 10)  # all clients, and 10 of 50
ROUNDS, STEPS, BATCH = 300, 10, 10
EVERY, TUNING_EVERY = 10, 50  # rounds between evaluations
SEEDS = (0, 1, 2, 3, 4)
TUNING_SEEDS = {50: (100, 101), 10: (100, 101, 102)}  # by cohort; 50 takes longer
# The axes of each method's grid.
METHODS = {
    "sagda-i": ("local x", "local y", "server"),
    "fsgda": ("local x", "local y", "server"),
    "fedavg": ("local x",),
    "fedavg-server": ("local x", "server"),
}
CENTRE = {"local x": 0.03, "local y": 0.3, "server": 1.0}
SETTINGS = {
    "clients": CLIENTS,
    "rows": ROWS,
    "validation": VALIDATION,
    "rounds": ROUNDS,
    "local steps": STEPS,
    "batch size": BATCH,
    "network": "784-32-1",
    "seeds": list(SEEDS),
    "tuning seeds": {str(m): list(seeds) for m, seeds in TUNING_SEEDS.items()},
}
# A grid point: for each axis, the index of a rate (its *rung*), see `rate`.
Place = tuple[int, ...]


@dataclass(frozen=True)
class NetworkCrossEntropy(sagda.Problem):
    """Logistic loss of a network. This problem has no y, so FSGDA on it is FedAvg."""

    measures_phi = False

    model: Any

    def init(self, key: Any) -> sagda.Point:
        return sagda.Point(self.model.init(key), jnp.zeros(()))

    def loss(self, z: sagda.Point, batch: Any, key: Any) -> jax.Array:
        margin = batch.label * self.model.apply(z.x, batch.features)
        return sagda.softplus(-margin) - z.y**2 / 2

    def score(self, x: Any, rows: Any) -> jax.Array:
        return self.model.apply(x, rows.features)


# The data, the problems and the methods.


@cache
def tables() -> tuple[sagda.Table, sagda.Table, sagda.Table]:
    """Return three tables: rows for clients, validation rows, and test rows."""
    data = sagda.load("mnist", positive=1)
    assert data.test is not None
    order = generator(0, "validation").permutation(len(data.train.label))
    validation, rest = order[:VALIDATION], order[VALIDATION:]
    return rows_of(data.train, rest), rows_of(data.train, validation), data.test


def rows_of(table: sagda.Table, rows: np.ndarray) -> sagda.Table:
    """Return a table with only these rows of `table`."""
    return sagda.Table(*(None if c is None else c[rows] for c in table))


@cache
def clients_of(seed: int) -> sagda.Federation:
    """Draw rows by `seed` and return 50 clients whose rows are sorted by digit.

    One client has the digit 1 only. The other 49 have the other digits.
    """
    pool = tables()[0]
    order = generator(seed, "rows").permutation(len(pool.label))
    ones, others = order[pool.label[order] > 0], order[pool.label[order] < 0]
    drawn = np.concatenate([ones[:ROWS], others[: (CLIENTS - 1) * ROWS]])
    table = rows_of(pool, drawn)
    return sagda.partition(table, clients=CLIENTS, samples=ROWS, seed=seed)


def train(
    method: str, rates: dict[str, float], cohort: int, seed: int, on: Any, every: int
) -> Any:
    """Make one run. Return its AUC on the table `on` and its seconds.

    The AUC is evaluated every `every` rounds. It is None after a run diverged.
    """
    clients, model = clients_of(seed), sagda.MLP(784, width=32, depth=1)
    is_auc = method in ("sagda-i", "fsgda")
    problem = sagda.AUC.of(clients, model) if is_auc else NetworkCrossEntropy(model)
    algorithm = sagda.algorithm(
        "sagda-i" if method == "sagda-i" else "fsgda",
        local_lr=(rates["local x"], rates.get("local y", 1.0)),
        server_lr=rates.get("server", 1.0),
        local_steps=STEPS,
    )
    begun = time.perf_counter()
    with warnings.catch_warnings(action="ignore", category=sagda.DivergenceWarning):
        run = sagda.simulate(
            algorithm,
            problem,
            clients,
            rounds=ROUNDS,
            cohort=cohort,
            batch_size=BATCH,
            seeds=seed,
            eval_every=every,
            test=on,
        )
    values = [float(a) for a in run.history["auc_test"][0]]
    # A run that diverged has fewer evaluations. Fill up with NaN.
    values += [np.nan] * (ROUNDS // every + 1 - len(values))
    auc = [round(a, 6) if np.isfinite(a) else None for a in values]
    return {"auc": auc, "seconds": round(time.perf_counter() - begun, 2)}


# Tuning.


def rate(rung: int) -> float:
    """Return the rate with the index `rung` in ..., 0.1, 0.3, 1, 3, 10, ...

    Index 0 is the rate 1.
    """
    return float(f"{(1, 3)[rung % 2] * 10.0 ** (rung // 2):.6g}")


def rung(value: float) -> int:
    """Return the index of a rate: the inverse of `rate`."""
    return next(i for i in range(-40, 40) if rate(i) == value)


def tune(
    measure: Callable[[Place], float], start: Place, tried: dict[Place, float]
) -> Place:
    """Find the point of a grid that maximises `measure`.

    The grid grows until all neighbours of the best point are tried. Neighbours that
    differ on one axis are tried before those that differ on more. `tried` has the
    points that are already measured, and new points are added to it.
    """
    tried = tried or {start: measure(start)}
    moves = list(product((-1, 0, 1), repeat=len(start)))
    while True:
        best = max(tried, key=lambda place: tried[place])
        for changed in range(1, len(start) + 1):
            for move in (m for m in moves if np.count_nonzero(m) == changed):
                place = tuple(b + s for b, s in zip(best, move, strict=True))
                if place not in tried:
                    tried[place] = measure(place)
            if max(tried.values()) > tried[best]:
                break
        else:
            return best


def neighbours(tried: dict[Place, float], best: Place) -> list[list[float]]:
    """Return three values for each axis: one rung below `best`, at it, and one above.

    Raises `ValueError` if `best` is at an edge of the grid or if a neighbour is better.
    """
    values_by_axis = []
    for axis in range(len(best)):
        near = [(*best[:axis], best[axis] + s, *best[axis + 1 :]) for s in (-1, 0, 1)]
        missing = [place for place in near if place not in tried]
        if missing:
            raise ValueError(
                f"{best} must not be at an edge of axis {axis}, but {missing} was not "
                "tried; tune again."
            )
        values = [round(tried[place], 6) for place in near]
        if max(values) > values[1]:
            raise ValueError(
                f"{best} must be the best point on axis {axis}, got {values}; tune "
                "again."
            )
        values_by_axis.append(values)
    return values_by_axis


def final(run: Any) -> float:
    """Return the value to maximise: the last AUC, or 0 if the run diverged."""
    return 0.0 if run["auc"][-1] is None else run["auc"][-1]


def places(points: Any) -> dict[Place, float]:
    """Return the mean validation AUC over tuning seeds, by grid point."""
    place = lambda name: tuple(rung(float(r)) for r in name.split())
    mean = lambda runs: float(np.mean([final(run) for run in runs]))
    return {place(name): mean(runs) for name, runs in points.items()}


def validate(method: str, rates: dict[str, float], cohort: int) -> list[Any]:
    """Make one run for each tuning seed, evaluated on the validation rows."""
    return [
        train(method, rates, cohort, seed, tables()[1], TUNING_EVERY)
        for seed in TUNING_SEEDS[cohort]
    ]


def run_all(path: Path) -> None:
    """Make the tuning and the runs that are missing in the evidence file.

    At the end, SAGDA and FSGDA also run with each other's tuned rates.
    """
    evidence = read(path) if path.exists() else {"tuning": {}, "runs": {}}
    if evidence.setdefault("settings", SETTINGS) != SETTINGS:
        raise ValueError(
            f"{path} must have the settings {SETTINGS}, got {evidence['settings']}; "
            "remove it to start again."
        )
    save = lambda: durable.write(path, json.dumps(evidence, indent=None) + "\n")
    for cohort, (method, axes) in product(sorted(COHORTS), METHODS.items()):
        points = evidence["tuning"].setdefault(f"{method}/{cohort}", {})

        def measure(
            place: Place, method=method, axes=axes, cohort=cohort, points=points
        ):
            rates = dict(zip(axes, map(rate, place), strict=True))
            name = " ".join(f"{r:g}" for r in rates.values())
            if name not in points:
                points[name] = validate(method, rates, cohort)
                save()
                print(cohort, method, name, list(map(final, points[name])), flush=True)
            return float(np.mean([final(run) for run in points[name]]))

        start = tuple(rung(CENTRE[axis]) for axis in axes)
        best = tune(measure, start, places(points))
        rates = dict(zip(axes, map(rate, best), strict=True))
        runs = evidence["runs"].setdefault(f"{method}/{cohort}", {"rates": rates})
        if runs["rates"] != rates:
            raise ValueError(
                f"{method}: the reported runs must use the rates {rates}, got "
                f"{runs['rates']}."
            )
        values = neighbours(places(points), best)
        runs["validation"] = dict(zip(axes, values, strict=True))
        for seed in map(str, SEEDS):
            if seed not in runs:
                test = tables()[2]
                runs[seed] = train(method, rates, cohort, int(seed), test, EVERY)
                save()
                print(cohort, method, "seed", seed, runs[seed]["seconds"], flush=True)
    crossed = evidence.setdefault("crossed", {})
    for cohort, (method, other) in product(COHORTS, permutations(("sagda-i", "fsgda"))):
        rates = evidence["runs"][f"{other}/{cohort}"]["rates"]
        if f"{method}/{cohort}" not in crossed:
            crossed[f"{method}/{cohort}"] = validate(method, rates, cohort)
    save()


def read(path: Path) -> Any:
    """Read the evidence in a file."""
    return json.loads(path.read_text(encoding="utf-8"))
