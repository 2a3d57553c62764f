"""The runs of docs/deep-auc.md: data, methods, tuning; `deep_auc.py` is the command.

Every finished run is kept at once, so that a stop loses one point of a grid at most.
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
EVERY, TUNING_EVERY = 10, 50  # rounds between AUCs that are kept
SEEDS = (0, 1, 2, 3, 4)
TUNING_SEEDS = {50: (100, 101), 10: (100, 101, 102)}  # by cohort, as time allows
# By method, the axes of its grid.
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
Place = tuple[int, ...]  # of a grid's point, by axis, on the ladder of rates


@dataclass(frozen=True)
class CrossEntropy(sagda.Problem):
    """Logistic loss of a network; it has no y, so that FSGDA is FedAvg."""

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
    """Rows to draw clients from, rows to tune on, and MNIST's test rows."""
    data = sagda.load("mnist", positive=1)
    assert data.test is not None
    order = generator(0, "validation").permutation(len(data.train.label))
    validation, rest = order[:VALIDATION], order[VALIDATION:]
    return rows_of(data.train, rest), rows_of(data.train, validation), data.test


def rows_of(table: sagda.Table, rows: np.ndarray) -> sagda.Table:
    return sagda.Table(*(None if c is None else c[rows] for c in table))


@cache
def clients_of(seed: int) -> sagda.Federation:
    """One client of ones, 49 of other digits, sorted by digit; rows drawn by seed."""
    pool = tables()[0]
    order = generator(seed, "rows").permutation(len(pool.label))
    ones, others = order[pool.label[order] > 0], order[pool.label[order] < 0]
    drawn = np.concatenate([ones[:ROWS], others[: (CLIENTS - 1) * ROWS]])
    table = rows_of(pool, drawn)
    return sagda.partition(table, clients=CLIENTS, samples=ROWS, seed=seed)


def train(
    method: str, rates: dict[str, float], cohort: int, seed: int, on: Any, every: int
) -> Any:
    """The AUC of the rows `on` every few rounds of one run."""
    clients, model = clients_of(seed), sagda.MLP(784, width=32, depth=1)
    is_auc = method in ("sagda-i", "fsgda")
    problem = sagda.AUC.of(clients, model) if is_auc else CrossEntropy(model)
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
    found = [float(a) for a in run.history["auc_test"][0]]
    found += [np.nan] * (ROUNDS // every + 1 - len(found))  # after it diverged
    auc = [round(a, 6) if np.isfinite(a) else None for a in found]
    return {"auc": auc, "seconds": round(time.perf_counter() - begun, 2)}


# Tuning.


def rate(rung: int) -> float:
    """..., 0.1, 0.3, 1, 3, 10, ...; 1 is the rung 0."""
    return float(f"{(1, 3)[rung % 2] * 10.0 ** (rung // 2):.6g}")


def rung(value: float) -> int:
    return next(i for i in range(-40, 40) if rate(i) == value)


def tune(
    measure: Callable[[Place], float], start: Place, tried: dict[Place, float]
) -> Place:
    """The best place of a grid that grows around its best until that is inside.

    It goes on from what has been `tried`. Neighbours along the axes come first, and
    at the end all of them have been measured, diagonal ones too.
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
    """By axis, what one rung less, the optimum and one rung more gave.

    An optimum at an edge of its grid, or with a better neighbour, is refused.
    """
    found = []
    for axis in range(len(best)):
        near = [(*best[:axis], best[axis] + s, *best[axis + 1 :]) for s in (-1, 0, 1)]
        missing = [place for place in near if place not in tried]
        if missing:
            raise ValueError(f"{best} is at an edge of axis {axis}: no {missing}.")
        values = [round(tried[place], 6) for place in near]
        if max(values) > values[1]:
            raise ValueError(f"{best} is no optimum on axis {axis}: {values}.")
        found.append(values)
    return found


def final(run: Any) -> float:
    """What tuning goes by: the last AUC, and the worst one if the run diverged."""
    return 0.0 if run["auc"][-1] is None else run["auc"][-1]


def places(kept: Any) -> dict[Place, float]:
    """By place of a method's grid, the mean validation AUC over tuning seeds."""
    place = lambda name: tuple(rung(float(r)) for r in name.split())
    mean = lambda runs: float(np.mean([final(run) for run in runs]))
    return {place(name): mean(runs) for name, runs in kept.items()}


def validate(method: str, rates: dict[str, float], cohort: int) -> list[Any]:
    """Runs by tuning seed, with AUCs of the validation rows."""
    return [
        train(method, rates, cohort, seed, tables()[1], TUNING_EVERY)
        for seed in TUNING_SEEDS[cohort]
    ]


def run_all(evidence: Path) -> None:
    """Tune and run what `evidence` does not have yet; at last, swap rates."""
    found = read(evidence) if evidence.exists() else {"tuning": {}, "runs": {}}
    if found.setdefault("settings", SETTINGS) != SETTINGS:
        raise ValueError(f"{evidence} has other settings: {found['settings']}.")
    save = lambda: durable.write(evidence, json.dumps(found, indent=None) + "\n")
    for cohort, (method, axes) in product(sorted(COHORTS), METHODS.items()):
        kept = found["tuning"].setdefault(f"{method}/{cohort}", {})

        def measure(place: Place, method=method, axes=axes, cohort=cohort, kept=kept):
            rates = dict(zip(axes, map(rate, place), strict=True))
            name = " ".join(f"{r:g}" for r in rates.values())
            if name not in kept:
                kept[name] = validate(method, rates, cohort)
                save()
                print(cohort, method, name, list(map(final, kept[name])), flush=True)
            return float(np.mean([final(run) for run in kept[name]]))

        start = tuple(rung(CENTRE[axis]) for axis in axes)
        best = tune(measure, start, places(kept))
        rates = dict(zip(axes, map(rate, best), strict=True))
        own = found["runs"].setdefault(f"{method}/{cohort}", {"rates": rates})
        if own["rates"] != rates:
            raise ValueError(f"{method}: the runs have other rates than {rates}.")
        values = neighbours(places(kept), best)
        own["validation"] = dict(zip(axes, values, strict=True))
        for seed in map(str, SEEDS):
            if seed not in own:
                test = tables()[2]
                own[seed] = train(method, rates, cohort, int(seed), test, EVERY)
                save()
                print(cohort, method, "seed", seed, own[seed]["seconds"], flush=True)
    crossed = found.setdefault("crossed", {})
    for cohort, (method, other) in product(COHORTS, permutations(("sagda-i", "fsgda"))):
        rates = found["runs"][f"{other}/{cohort}"]["rates"]
        if f"{method}/{cohort}" not in crossed:
            crossed[f"{method}/{cohort}"] = validate(method, rates, cohort)
    save()


def read(evidence: Path) -> Any:
    return json.loads(evidence.read_text(encoding="utf-8"))
