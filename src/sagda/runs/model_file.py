"""The models of a run as files: their numbers, and what else scoring needs."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from sagda import durable
from sagda.core import Point
from sagda.data.federation import Facts
from sagda.data.recipe import Recipe
from sagda.keys import generator
from sagda.problems import PROBLEMS
from sagda.runs.config import Config
from sagda.runs.experiment import Experiment
from sagda.scoring.calibration import calibrated
from sagda.scoring.scorer import RECIPE, scored
from sagda.simulator.history import History
from sagda.simulator.run import Run, named

CALIBRATED = 200_000  # about so many rows are enough for two numbers


class FinishedRun(Protocol):
    """What the files of a folder are made of: a `Run`, or a federation's."""

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


def model_arrays(runs: Mapping[str, FinishedRun]) -> dict[str, np.ndarray]:
    """x and y; under algorithm and seed where there are several."""
    out = {}
    for (*_, begin), z in places(runs):
        out |= named(z.x, f"{begin}x") | named(z.y, f"{begin}y")
    return out


class ModelEntry(NamedTuple):
    """A model in its file."""

    algorithm: str
    seed: int
    begin: str  # of the names of its arrays


def places(runs: Mapping[str, FinishedRun]) -> Iterator[tuple[ModelEntry, Point]]:
    for name, run in runs.items():
        seeds = run.history.seeds
        for i, seed in enumerate(seeds):
            begin = f"{name}/" if len(runs) > 1 else ""
            begin += f"seed-{seed}/" if len(seeds) > 1 else ""
            z = jax.tree.map(lambda a, i=i: np.asarray(a[i]), run.z)
            yield ModelEntry(name, seed, begin), z


def keep_recipe(experiment: Experiment, runs: dict[str, Run], folder: Path) -> None:
    """recipe.json: what a model needs beside its numbers to score rows of a file."""
    data, config = experiment.federation.data, experiment.config
    if experiment.recipe is None or not experiment.problem.has("score"):
        return
    origin = data.label if data.origin is None else data.origin
    positive = origin[data.label > 0][0].item()
    found = models(experiment, runs)
    stored = recipe_of(
        config,
        Facts.of(experiment.federation),
        label=config.label,
        positive=positive,
        models=found,
        recipe=experiment.recipe,
    )
    durable.write(folder / RECIPE, durable.as_json(stored))


def recipe_of(
    config: Config,
    facts: Facts,
    *,
    label: str,
    positive: Any,
    models: list[dict[str, Any]],
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
        "models": models,
        **recipe.as_json(),
    }


def models(experiment: Experiment, runs: dict[str, Run]) -> list[dict[str, Any]]:
    """Every model: its place in the file, and its calibration unless it diverged."""
    held, label = experiment.federation, experiment.federation.data.label > 0
    looked = np.arange(len(label))
    if len(label) > CALIBRATED:
        chosen = generator(0, "calibration").choice(len(label), CALIBRATED, False)
        looked = np.sort(chosen)
    owners = np.split(looked, np.searchsorted(looked, held.start[1:]))
    features = held.data.features[looked]
    ends = np.cumsum([len(own) for own in owners])[:-1]
    found = []
    for place, z in places(runs):
        scores = scored(experiment.problem, z.x, features)
        parts = np.split(scores, ends)
        numbers = None
        if np.isfinite(scores).all():
            labels = [label[own] for own in owners]
            numbers = list(calibrated(list(zip(parts, labels, strict=True))))
        found.append(place._asdict() | {"calibration": numbers})
    return found
