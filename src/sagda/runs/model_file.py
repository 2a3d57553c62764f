"""The models of a run as files: model.safetensors, and recipe.json to score rows.

A run has a model per algorithm and seed. `sagda.scoring.scorer` reads both files.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from sagda.core import Point
from sagda.data.federation import Facts
from sagda.data.recipe import Recipe
from sagda.keys import generator
from sagda.problems import PROBLEMS
from sagda.runs.config import Config
from sagda.runs.experiment import Experiment
from sagda.scoring.calibration import calibrated
from sagda.scoring.scorer import scored
from sagda.simulator.history import History
from sagda.simulator.run import Run, named

CALIBRATED = 200_000  # rows to calibrate on, at most: it fits two numbers only


class FinishedRun(Protocol):
    """What the files of a folder are made from: a `Run`, or a federation's outcome."""

    @property
    def history(self) -> History: ...
    @property
    def z(self) -> Point: ...
    @property
    def diverged(self) -> dict[int, int]: ...
    @property
    def layout(self) -> str: ...
    @property
    def compile_seconds(self) -> float: ...


class ModelEntry(NamedTuple):
    """A model's line in recipe.json."""

    algorithm: str
    seed: int
    begin: str = ""  # of the names of its arrays in model.safetensors
    calibration: list[float] | None = None  # slope and offset; None if it diverged


def models_of(runs: Mapping[str, FinishedRun]) -> Iterator[tuple[ModelEntry, Point]]:
    """Every model: its entry, yet without calibration, and its x and y."""
    for name, run in runs.items():
        seeds = run.history.seeds
        for i, seed in enumerate(seeds):
            begin = f"{name}/" if len(runs) > 1 else ""
            begin += f"seed-{seed}/" if len(seeds) > 1 else ""
            z = jax.tree.map(lambda a, i=i: np.asarray(a[i]), run.z)
            yield ModelEntry(name, seed, begin), z


def model_arrays(runs: Mapping[str, FinishedRun]) -> dict[str, np.ndarray]:
    """The content of model.safetensors: x and y of every model."""
    out = {}
    for entry, z in models_of(runs):
        out |= named(z.x, f"{entry.begin}x") | named(z.y, f"{entry.begin}y")
    return out


def recipe_in(experiment: Experiment, runs: dict[str, Run]) -> dict[str, Any] | None:
    """The content of a simulation's recipe.json; None if its models score no rows."""
    data, config = experiment.federation.data, experiment.config
    if experiment.recipe is None or not experiment.problem.has("score"):
        return None
    origin = data.label if data.origin is None else data.origin
    return recipe_of(
        config,
        Facts.of(experiment.federation),
        label=config.label,
        positive=origin[data.label > 0][0].item(),
        models=calibrated_models(experiment, runs),
        recipe=experiment.recipe,
    )


def recipe_of(
    config: Config,
    facts: Facts,
    *,
    label: str,
    positive: Any,
    models: list[ModelEntry],
    recipe: Recipe,
) -> dict[str, Any]:
    """What recipe.json holds: enough to build the problem again, and to read rows."""
    options = config.set.get(config.problem, {})
    return {
        "schema": 1,
        "problem": config.problem,
        "model": config.model,
        "facts": facts._asdict(),
        "options": PROBLEMS[config.problem].resolved(options, recipe),
        "label": label,
        "positive": positive,
        "models": [model._asdict() for model in models],
        **recipe.as_json(),
    }


def calibrated_models(experiment: Experiment, runs: dict[str, Run]) -> list[ModelEntry]:
    """Every model with its calibration on the training rows, unless it diverged."""
    federation = experiment.federation
    label = federation.data.label > 0
    chosen = np.arange(len(label))
    if len(label) > CALIBRATED:
        draw = generator(0, "calibration").choice(len(label), CALIBRATED, False)
        chosen = np.sort(draw)
    # Rows are sorted by client, so the chosen rows of a client are one slice.
    by_client = np.split(chosen, np.searchsorted(chosen, federation.start[1:]))
    labels = [label[rows] for rows in by_client]
    ends = np.cumsum([len(rows) for rows in by_client])[:-1]
    features = federation.data.features[chosen]
    entries = []
    for entry, z in models_of(runs):
        scores = scored(experiment.problem, z.x, features)
        if np.isfinite(scores).all():
            parts = list(zip(np.split(scores, ends), labels, strict=True))
            entry = entry._replace(calibration=list(calibrated(parts)))
        entries.append(entry)
    return entries
