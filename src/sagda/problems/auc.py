"""AUC maximisation by the square surrogate, as a min-max problem (Ying et al. 2016).

The exact AUC of scores, which is measured and not optimised, is in `metrics.py`.
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
    """x: the model's parameters, and the mean scores c_1 and c_2 of the two classes."""

    model: PyTree
    c_1: Any
    c_2: Any


@dataclass(frozen=True)
class AUC(Problem):
    """A scorer with a high AUC on imbalanced data.

    x = (model, c_1, c_2) and y = lambda. h is the model's score, and tau the share of
    positives. Per row, with 1_+ and 1_- for its class:

    (1 - tau) (h - c_1)^2 1_+  +  tau (h - c_2)^2 1_-
    + 2 (1 + lambda) (tau h 1_-  -  (1 - tau) h 1_+)  -  tau (1 - tau) lambda^2

    f is strongly concave in lambda with modulus 2 tau (1 - tau). A client with rows of
    one class only has no gradient in one of c_1 and c_2.

    Args:
        model: h_x, linear by default; see `sagda.models`.
        tau: the share of positives over all clients, in (0, 1).
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
        """The problem for this data, with a linear model by default."""
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
        """E[h 1_+] and E[h 1_-]."""
        h = self.model.apply(x.model, rows.features)
        positive = (rows.label > 0) * 1.0
        return weight @ (positive * h), weight @ ((1 - positive) * h)

    def y_from(self, sums: PyTree) -> jax.Array:
        """lambda* = E[h 1_-] / (1 - tau) - E[h 1_+] / tau."""
        on_positives, on_negatives = sums
        return on_negatives / (1 - self.tau) - on_positives / self.tau

    def score(self, x: PyTree, rows: Any) -> jax.Array:
        return self.model.apply(x.model, rows.features)
