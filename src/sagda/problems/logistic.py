"""`Logistic`: what problems around the logistic loss of a scoring model share."""

from dataclasses import dataclass
from typing import Any

import jax

from sagda.core import PyTree
from sagda.data.federation import Federation, share_of_positives
from sagda.models import Model, as_model
from sagda.problems.base import Problem
from sagda.problems.losses import softplus


@dataclass(frozen=True)
class Logistic(Problem):
    """x: the parameters of a model h; l = log(1 + exp(-b h(a))) for a row (a, b)."""

    model: Model

    def check(self, federation: Federation) -> None:
        share_of_positives(federation)

    def logistic(self, x: PyTree, rows: Any) -> jax.Array:
        return softplus(-rows.label * self.score(x, rows))

    def score(self, x: PyTree, rows: Any) -> jax.Array:
        return self.model.apply(x, rows.features)


def scorer_for(federation: Federation, model: Any) -> Any:
    """The model that is asked for, a linear one if None."""
    return as_model(model, federation.data.features.shape[1])
