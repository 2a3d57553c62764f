"""`Logistic`: the base class of problems with a scoring model and a logistic loss.

It is not a problem that can run. `adversarial.py`, `agnostic.py` and `fair.py` derive
from it. `dro.py` does not, because its x is a plain vector without a model.
"""

from dataclasses import dataclass
from typing import Any

import jax

from sagda.core import PyTree
from sagda.data.federation import Federation, share_of_positives
from sagda.models import Model
from sagda.problems.base import Problem
from sagda.problems.losses import softplus


@dataclass(frozen=True)
class Logistic(Problem):
    """A problem whose x holds the parameters of a model h, with a logistic loss.

    A row with features a and label b has the loss l = log(1 + exp(-b h(a))).
    """

    model: Model

    def check(self, federation: Federation) -> None:
        share_of_positives(federation)

    def logistic(self, x: PyTree, rows: Any) -> jax.Array:
        return softplus(-rows.label * self.score(x, rows))

    def score(self, x: PyTree, rows: Any) -> jax.Array:
        return self.model.apply(x, rows.features)
