"""The content of model.safetensors and recipe.json: a run's models, ready for scoring.

A run has one model per algorithm and seed. `output.py` writes both files, and
`sagda.scoring.scorer` reads them.
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

# The largest number of rows to calibrate on. More rows are not needed, because a
# calibration has only two parameters.
CALIBRATED = 200_000


class FinishedRun(Protocol):
    """A finished simulation (`Run`) or federation, with all that its files need."""

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
    """The entry of one model in recipe.json."""

    algorithm: str
    seed: int
    begin: str = ""  # prefix of the names of the model's arrays in model.safetensors
    calibration: list[float] | None = None  # slope and offset; None if it diverged


def models_of(runs: Mapping[str, FinishedRun]) -> Iterator[tuple[ModelEntry, Point]]:
    """Yield for every model its entry, still without calibration, and its x and y."""
    for name, run in runs.items():
        seeds = run.history.seeds
        for i, seed in enumerate(seeds):
            begin = f"{name}/" if len(runs) > 1 else ""
            begin += f"seed-{seed}/" if len(seeds) > 1 else ""
            z = jax.tree.map(lambda a, i=i: np.asarray(a[i]), run.z)
            yield ModelEntry(name, seed, begin), z


def model_arrays(runs: Mapping[str, FinishedRun]) -> dict[str, np.ndarray]:
    """Return the content of model.safetensors: x and y of every model."""
    out = {}
    for entry, z in models_of(runs):
        out |= named(z.x, f"{entry.begin}x") | named(z.y, f"{entry.begin}y")
    return out


def recipe_in(experiment: Experiment, runs: dict[str, Run]) -> dict[str, Any] | None:
    """Return the content of recipe.json for a simulation.

    Returns None if the models of this problem cannot score rows.
    """
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
    """Return the content of recipe.json.

    `Scorer` builds the problem again from it, and reads new rows with it.
    """
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
    """Return the entry of every model, calibrated on the training rows.

    A model that diverged has no calibration.
    """
    federation = experiment.federation
    label = federation.data.label > 0
    chosen = np.arange(len(label))
    if len(label) > CALIBRATED:
        draw = generator(0, "calibration").choice(len(label), CALIBRATED, False)
        chosen = np.sort(draw)
    # Rows are sorted by client, so the chosen rows of each client are contiguous.
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
