"""Write the results of a finished run: history, model, recipe, summary and card.

`write_run` writes these files, for simulations and for federations. `write_results`
collects their content for a simulation and calls `write_run`. `results.py` reads the
files, and `sagda.report` shows them. Checkpoints are not results: see `checkpoint.py`.
"""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from sagda import durable
from sagda.data.federation import Federation, Table
from sagda.methods import Method
from sagda.problems.base import Problem
from sagda.runs.card import write_card
from sagda.runs.checkpoint import environment
from sagda.runs.experiment import Experiment
from sagda.runs.grid import GridPoint
from sagda.runs.model_file import FinishedRun, model_arrays, recipe_in
from sagda.runs.results import PICTURES
from sagda.scoring.scorer import RECIPE
from sagda.simulator.run import Run

SCHEMA = 1


def write_run(
    folder: Path,
    runs: Mapping[str, FinishedRun],
    *,
    recipe: dict[str, Any] | None,
    summary: dict[str, Any],
) -> None:
    """Write history.csv, model.safetensors, recipe.json, summary.json and the card.

    summary.json is written after the other results. If a folder has this file, its run
    is finished.
    """
    durable.write(folder / "history.csv", history_csv(runs))
    model = safetensors.numpy.save(model_arrays(runs), {"schema": str(SCHEMA)})
    durable.write(folder / "model.safetensors", model)
    if recipe is not None:
        durable.write(folder / RECIPE, durable.as_json(recipe))
    durable.write(folder / "summary.json", durable.as_json(summary))
    if recipe is not None:
        write_card(folder)


def write_results(
    experiment: Experiment,
    runs: dict[str, Run],
    folder: Path,
    points: dict[str, GridPoint],
) -> None:
    """Write the results of a simulation.

    `points` are the points of a sweep by name. They are empty if there is no sweep.
    """
    write_pictures(experiment.problem, runs, folder)
    summary = summarise(experiment, runs)
    if points:
        summary["points"] = {name: dict(p.values) for name, p in points.items()}
    write_run(folder, runs, recipe=recipe_in(experiment, runs), summary=summary)


def write_pictures(problem: Problem, runs: dict[str, Run], folder: Path) -> None:
    """Write pictures from the first seed's model of each run, if models make any."""
    sheets = {}
    for name, run in runs.items():
        pictures = problem.pictures(jax.tree.map(lambda a: a[0], run.z.x))
        if pictures is not None:
            grey = np.nan_to_num(np.asarray(pictures))
            sheets[name] = np.clip(255 * grey + 0.5, 0, 255).astype(np.uint8)
    if sheets:
        durable.write(folder / PICTURES, safetensors.numpy.save(sheets))


def history_csv(runs: Mapping[str, FinishedRun]) -> str:
    """Return all histories as CSV: one row per algorithm, seed and evaluation."""
    columns = dict.fromkeys(c for run in runs.values() for c in run.history.columns)
    text = io.StringIO()
    writer = csv.DictWriter(text, ["algorithm", "seed", *columns], lineterminator="\n")
    writer.writeheader()
    for name, run in runs.items():
        writer.writerows({"algorithm": name, **row} for row in run.history.rows())
    return text.getvalue()


def summarise(experiment: Experiment, runs: dict[str, Run]) -> dict[str, Any]:
    """Return the content of summary.json for a simulation."""
    federation, rounds = experiment.federation, experiment.config.rounds
    sizes = federation.size
    split = {
        "hash": federation.hash,
        "clients": federation.clients,
        "smallest": int(sizes.min()),
        "largest": int(sizes.max()),
        "labels": label_counts(federation),
    }
    summary = summary_of(runs, rounds, split, experiment.methods)
    stops = {name: stopped_early(run, rounds) for name, run in runs.items()}
    if stops := {name: t for name, t in stops.items() if t is not None}:
        summary["stopped_early"] = stops
    return summary


def stopped_early(run: Run, rounds: int) -> int | None:
    """Return the round at which a callback stopped a run, or None if none did."""
    # A run also ends early if every seed diverged. This does not count.
    whole = run.round == rounds or bool((run.carry.broken >= 0).all())
    return None if whole else run.round


def summary_of(
    runs: Mapping[str, FinishedRun],
    rounds: int,
    split: dict[str, Any],
    methods: Mapping[str, Method],
) -> dict[str, Any]:
    """Return the content of summary.json for a simulation or a federation.

    It has the final values and the means over the last rounds, by algorithm and seed.
    Values that are not finite become None, because JSON has no NaN.
    """
    plain = lambda value: value.item() if np.isfinite(value) else None

    def values(run: FinishedRun) -> dict[str, Any]:
        history = run.history
        tail = {name: history.tail(name) for name in history.columns}
        return {
            str(seed): {
                "final": {k: plain(c[i, -1]) for k, c in history.columns.items()},
                "tail": {k: plain(c[i]) for k, c in tail.items()},
                "diverged": run.diverged.get(seed),
            }
            for i, seed in enumerate(history.seeds)
        }

    return {
        "schema": SCHEMA,
        "rounds": rounds,
        "split": split,
        "algorithms": {name: values(run) for name, run in runs.items()},
        "methods": {name: repr(method) for name, method in methods.items()},
        "layouts": {name: run.layout for name, run in runs.items()},
        "compile_seconds": {name: run.compile_seconds for name, run in runs.items()},
        "environment": environment(),
    }


def label_counts(federation: Federation) -> dict[str, list[int]]:
    """Return for each class the number of rows at each client; empty without labels."""
    if not isinstance(federation.data, Table):
        return {}
    data = federation.data
    classes, label = np.unique(
        data.label if data.origin is None else data.origin, return_inverse=True
    )
    counts = np.zeros((len(classes), federation.clients), int)
    np.add.at(counts, (label, federation.owner), 1)
    names = [f"{c:g}" if classes.dtype.kind == "f" else str(c) for c in classes]
    return dict(zip(names, counts.tolist(), strict=True))
