"""`Scorer`: a trained model from a run folder, ready to score new rows.

It reads recipe.json and model.safetensors, which `sagda run` and `sagda compare` write.
It never trains. `evaluation.py` measures the quality of the scores.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from scipy.special import expit

from sagda.check import BadValue
from sagda.data.datasets import binary
from sagda.data.federation import Facts, Table
from sagda.data.recipe import Recipe
from sagda.models.user_code import allow
from sagda.problems import PROBLEMS, problem_of
from sagda.problems.base import Problem, shape_of
from sagda.scoring.calibration import Calibration
from sagda.simulator.run import filled

RECIPE, MODEL = "recipe.json", "model.safetensors"
BLOCK = 2**16  # rows scored in one call, which bounds memory


@jax.jit
def score(problem: Problem, x: Any, rows: Table) -> Any:
    """Return the scores of the model x. Compiled once per problem and shape."""
    return problem.score(x, rows)


def scored(problem: Problem, x: Any, features: np.ndarray) -> np.ndarray:
    """Return one score per row of `features`, computed in double precision.

    With this precision, the score of a row does not depend on the other rows.
    """
    if problem.uses_torch:
        from sagda.simulator.torch.objective import torch_scores

        return torch_scores(problem, x, features, BLOCK)
    with jax.enable_x64(True):
        wide = lambda a: jnp.asarray(np.asarray(a), jnp.float64)
        x = jax.tree.map(wide, x)
        parts = [
            np.asarray(score(problem, x, Table(wide(features[i : i + BLOCK]), None)))
            for i in range(0, len(features), BLOCK)
        ]
    return np.concatenate(parts) if parts else np.zeros(0)


class Scorer(NamedTuple):
    """A trained model, with the recipe that turns columns of a file into features."""

    name: str
    problem: Problem
    x: Any
    recipe: Recipe
    label: str
    positive: Any
    calibration: Calibration

    @classmethod
    def load(
        cls,
        folder: str | Path,
        algorithm: str | None = None,
        seed: int | None = None,
        model: str | None = None,
    ) -> "Scorer":
        """Load a model from a run folder.

        Args:
            folder: a folder written by `sagda run` or `sagda compare`.
            algorithm: the algorithm that trained the model. It may be omitted if the
                folder has only one.
            seed: the seed of the model. The default is the first seed.
            model: FILE.py:FUNCTION, if the model is defined by your own code.
        """
        if model is not None:
            allow(model)
        folder = Path(folder)
        if not (folder / RECIPE).is_file():
            scoring = [name for name, kind in PROBLEMS.items() if kind.defines("score")]
            raise BadValue(
                f"{folder} must hold a model that scores rows, found no {RECIPE}; run "
                f"`sagda run` with problem {' or '.join(scoring)}."
            )
        stored = json.loads((folder / RECIPE).read_text(encoding="utf-8"))
        entry = chosen(stored["models"], algorithm, seed)
        name = f"{entry['algorithm']}, seed {entry['seed']}"
        if entry["calibration"] is None:
            raise BadValue(
                f"{folder}: {name} has no model that scores: it diverged, or no site "
                "evaluated it at the end; choose another algorithm or seed."
            )
        recipe = Recipe.from_json(stored)
        problem = problem_of(
            stored["problem"],
            Facts(**stored["facts"]),
            stored["model"],
            stored["options"],
        )
        arrays = safetensors.numpy.load((folder / MODEL).read_bytes())
        return cls(
            name=name,
            problem=problem,
            x=filled(shape_of(problem).x, arrays, f"{entry['begin']}x"),
            recipe=recipe,
            label=stored["label"],
            positive=stored["positive"],
            calibration=Calibration(*entry["calibration"]),
        )

    def scores(self, table: Table) -> np.ndarray:
        """Return one score for each row that `recipe.read` returned.

        A higher score means that the row is more likely positive.
        """
        return scored(self.problem, self.x, table.features)

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Return the probabilities of the positive class that belong to `scores`.

        They are calibrated on the training rows.
        """
        return expit(self.calibration(scores))

    def predict(self, rows: Any, *, label: str | None = None) -> np.ndarray:
        """Return one score for each row of a file or a frame.

        `rows` need no labels. If they have a label column with another name than in
        training, `label` names this column.
        """
        # If the rows have the label column of training, it is not used as a feature.
        return self.scores(self.recipe.read(rows, label, unused=self.label))

    def labelled(
        self, path: str | Path, label: str | None = None, client: str | None = None
    ) -> Table:
        """Read the rows of a file: features for the model, and labels of -1 and +1."""
        table = self.recipe.read(path, label or self.label, client)
        return binary(table, self.positive)


def chosen(
    models: list[dict[str, Any]], algorithm: str | None, seed: int | None
) -> dict[str, Any]:
    """Return the entry of the model with this algorithm and seed.

    Without a seed, return the entry of the first seed.
    """
    entries = [
        entry
        for entry in models
        if algorithm in (None, entry["algorithm"]) and seed in (None, entry["seed"])
    ]
    if len({entry["algorithm"] for entry in entries}) != 1:
        shown = ", ".join(f"{m['algorithm']} (seed {m['seed']})" for m in models)
        raise BadValue(
            f"`algorithm` and `seed` must name one of the models {shown}, got "
            f"{algorithm or 'no algorithm'} and {'no seed' if seed is None else seed}."
        )
    return entries[0]
