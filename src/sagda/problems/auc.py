"""AUC maximisation by the square surrogate, as a min-max problem (Ying et al. 2016).

This is the loss that training minimises. The exact AUC of given scores, which is only
measured, is `metrics.auc`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from sagda import check
from sagda.core import Point, PyTree
from sagda.data.federation import Facts, Federation, share_of_positives
from sagda.keys import Key, key_of
from sagda.models import Model, as_model
from sagda.problems.base import Problem


class AUCPoint(NamedTuple):
    """The variable x of the problem `AUC`: model parameters, and two numbers."""

    model: PyTree
    c_1: Any  # estimates the mean score of positive rows
    c_2: Any  # estimates the mean score of negative rows


@dataclass(frozen=True)
class AUC(Problem):
    """A scoring model with a high AUC, also if one class is rare.

    x = (model parameters, c_1, c_2), and y is one number, lambda. h is the score that
    the model gives to a row. 1_+ is 1 for a positive row and 0 for a negative row; 1_-
    is the opposite. tau is the share of positive rows. Loss of a row:

    (1 - tau) (h - c_1)^2 1_+  +  tau (h - c_2)^2 1_-
    + 2 (1 + lambda) (tau h 1_-  -  (1 - tau) h 1_+)  -  tau (1 - tau) lambda^2

    f is strongly concave in lambda with modulus 2 tau (1 - tau). On a client without
    positive rows the gradient in c_1 is zero; without negative rows, that in c_2.

    Args:
        model: the model h, linear by default; see `sagda.models`.
        tau: the share of positive rows, a mean over clients, in (0, 1).
    """

    quadratic_in_y: ClassVar[bool] = True
    federates: ClassVar[bool] = True

    model: Model
    tau: float

    def __post_init__(self) -> None:
        check.real("tau", self.tau, low=0, high=1)
        check.positive("tau", self.tau)

    @classmethod
    def of(cls, data: Federation | Facts, model: Any = None) -> "AUC":
        """Return the problem for `data`, with a linear model by default."""
        facts = Facts.of(data)
        return cls(as_model(model, facts.width), facts.tau)

    def check(self, federation: Federation) -> None:
        share_of_positives(federation)

    def concavity(self) -> float:
        return 2 * self.tau * (1 - self.tau)

    def init(self, key: Key) -> Point:
        c_1, c_2 = 0.1 * jax.random.normal(key_of(key, "centres"), (2,))
        return Point(AUCPoint(self.model.init(key), c_1, c_2), jnp.zeros(()))

    def loss(self, z: Point, batch: Any, key: Key) -> jax.Array:
        (model, c_1, c_2), lam, tau = z.x, z.y, self.tau
        h = self.model.apply(model, batch.features)
        positive = (batch.label > 0) * 1.0
        negative = 1 - positive
        return (
            (1 - tau) * (h - c_1) ** 2 * positive
            + tau * (h - c_2) ** 2 * negative
            + 2 * (1 + lam) * (tau * h * negative - (1 - tau) * h * positive)
            - tau * (1 - tau) * lam**2
        )

    def inner_sums(self, x: PyTree, rows: Any, weight: jax.Array) -> PyTree:
        """Return the means over clients of h 1_+ and of h 1_-."""
        h = self.model.apply(x.model, rows.features)
        positive = (rows.label > 0) * 1.0
        return weight @ (positive * h), weight @ ((1 - positive) * h)

    def y_from(self, sums: PyTree) -> jax.Array:
        """Return the best lambda: mean(h 1_-) / (1 - tau) - mean(h 1_+) / tau."""
        on_positives, on_negatives = sums
        return on_negatives / (1 - self.tau) - on_positives / self.tau

    def score(self, x: PyTree, rows: Any) -> jax.Array:
        return self.model.apply(x.model, rows.features)
