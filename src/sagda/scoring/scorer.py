"""`Scorer`: a trained model of a run folder, for rows of one's own."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

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
BLOCK = 2**16  # rows scored together


@jax.jit
def score(problem: Problem, x: Any, rows: Table) -> Any:
    return problem.score(x, rows)


def scored(problem: Problem, x: Any, features: np.ndarray) -> np.ndarray:
    """[rows], in double precision: the same wherever and however many are scored."""
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
    """A model, and how the rows it scores are made."""

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
        """The model of a run folder; of several, name the one.

        Args:
            folder: what `sagda run` or `sagda compare` left.
            algorithm: which one, where several were compared.
            seed: which one, where there were several; the first by default.
            model: FILE.py:FUNCTION, where the model is of one's own code.
        """
        if model is not None:
            allow(model)
        folder = Path(folder)
        if not (folder / RECIPE).is_file():
            scoring = [name for name, kind in PROBLEMS.items() if kind.defines("score")]
            raise BadValue(
                f"{folder} holds no model that scores rows: no {RECIPE}. `sagda run` "
                f"with problem {' or '.join(scoring)} makes one."
            )
        facts = json.loads((folder / RECIPE).read_text(encoding="utf-8"))
        own = chosen(facts["models"], algorithm, seed)
        name = f"{own['algorithm']}, seed {own['seed']}"
        if own["calibration"] is None:
            raise BadValue(
                f"{folder}: {name} has no model that scores: it diverged, or it was "
                "not measured at the end."
            )
        recipe = Recipe.from_json(facts)
        problem = problem_of(
            facts["problem"], Facts(**facts["facts"]), facts["model"], facts["options"]
        )
        arrays = safetensors.numpy.load((folder / MODEL).read_bytes())
        like = shape_of(problem).x
        return cls(
            name,
            problem,
            filled(like, arrays, f"{own['begin']}x"),
            recipe,
            facts["label"],
            facts["positive"],
            Calibration(*own["calibration"]),
        )

    def scores(self, table: Table) -> np.ndarray:
        """One number a row of `recipe.read`: the larger, the more like a positive."""
        return scored(self.problem, self.x, table.features)

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Of the positive class, by the calibration on the training rows."""
        return 1 / (1 + np.exp(-np.clip(self.calibration(scores), -500, 500)))

    def predict(self, rows: Any, *, label: str | None = None) -> np.ndarray:
        """Scores of a file's or a frame's rows."""
        own = label, self.label  # the second is left alone if it is there
        if isinstance(rows, str | Path):
            return self.scores(self.recipe.read(Path(rows), own[0], None, own[1]))
        return self.scores(self.recipe.frame(rows, *own))

    def labelled(
        self, path: str | Path, label: str | None = None, client: str | None = None
    ) -> Table:
        """A file's rows as the model sees them, their labels as -1 and +1."""
        table = self.recipe.read(Path(path), label or self.label, client)
        return binary(table, self.positive)


def chosen(
    models: list[dict[str, Any]], algorithm: str | None, seed: int | None
) -> dict[str, Any]:
    """The model that was asked for; the first seed's if none is named."""
    found = [
        own
        for own in models
        if algorithm in (None, own["algorithm"]) and seed in (None, own["seed"])
    ]
    if len({own["algorithm"] for own in found}) != 1:
        shown = ", ".join(f"{own['algorithm']} (seed {own['seed']})" for own in models)
        raise BadValue(
            f"`algorithm` and `seed` must name one of the models {shown}, got "
            f"{algorithm or 'no algorithm'} and {'no seed' if seed is None else seed}."
        )
    return found[0]
