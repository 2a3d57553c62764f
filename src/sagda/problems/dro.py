"""Distributionally robust logistic regression with a non-convex regulariser.

y has one entry per row number, as in the paper. The entry y_j is the weight of row j of
every client. The problem in `agnostic.py` gives weights to clients instead.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from sagda import check
from sagda.check import BadValue
from sagda.core import Point, PyTree
from sagda.data.federation import Facts, Federation, share_of_positives
from sagda.keys import Key
from sagda.problems.base import Problem
from sagda.problems.losses import entries, softplus, summed


@dataclass(frozen=True)
class DRO(Problem):
    """A linear classifier that gives more weight to rows with a large loss.

    x holds one coefficient per feature. y_j is the weight of the j-th row of every
    client. Neither x nor y is constrained.

    Row j of client i has features a_ij, label b_ij and the logistic loss
    l_ij = log(1 + exp(-b_ij <a_ij, x>)). It contributes:

    y_j l_ij - V(y) + g(x)

    V(y) = lambda_1 / 2 ||n y - 1||^2
    g(x) = lambda_2 sum_k alpha x_k^2 / (1 + alpha x_k^2)

    The paper has lambda_1 = 1/n^2. The objective is then 1-strongly concave in y. The
    weights y_j are near 1/n, so gradients in x are also smaller by about this factor.

    Args:
        features: d, the number of features and of entries of x.
        samples: n, the number of rows of the largest client and of entries of y.
        lambda_1: the factor of the penalty V; None means 1/n^2.
        lambda_2: the factor of the regulariser g.
        alpha: how fast g saturates for large x.
    """

    federates: ClassVar[bool] = True

    features: int
    samples: int
    lambda_1: float | None = None
    lambda_2: float = 1e-3
    alpha: float = 10.0

    @classmethod
    def of(
        cls,
        data: Federation | Facts,
        *,
        lambda_1: float | None = None,
        lambda_2: float = 1e-3,
        alpha: float = 10.0,
    ) -> "DRO":
        """Return the problem for `data`, with the constants of the paper by default."""
        facts = Facts.of(data)
        return cls(
            features=facts.width,
            samples=facts.rows,
            lambda_1=lambda_1,
            lambda_2=lambda_2,
            alpha=alpha,
        )

    def __post_init__(self) -> None:
        check.integer("features", self.features, low=1)
        check.integer("samples", self.samples, low=1)
        if self.lambda_1 is not None:
            check.positive("lambda_1", self.lambda_1)
        check.real("lambda_2", self.lambda_2, low=0)
        check.positive("alpha", self.alpha)

    def check(self, federation: Federation) -> None:
        share_of_positives(federation)
        if federation.size.max() > self.samples:
            raise BadValue(
                f"`samples` must be at least {federation.size.max()}, the number of "
                f"rows of the largest client, got {self.samples}; use "
                "`DRO.of(federation)`."
            )

    @property
    def most_rows(self) -> int:
        return self.samples

    @property
    def pull(self) -> Any:
        """n^2 lambda_1, the modulus of concavity: V(y) = pull / 2 ||y - 1/n||^2."""
        return 1.0 if self.lambda_1 is None else self.samples**2 * self.lambda_1

    def concavity(self) -> float:
        return self.pull

    def init(self, key: Key) -> Point:
        x = 0.1 * jax.random.normal(key, (self.features,))
        return Point(x, jnp.full((self.samples,), 1 / self.samples))

    def logistic(self, x: jax.Array, rows: Any) -> jax.Array:
        return softplus(-rows.label * (rows.features @ x))

    def loss(self, z: Point, batch: Any, key: Key) -> jax.Array:
        square = self.alpha * z.x**2
        g = self.lambda_2 * jnp.sum(square / (1 + square))
        V = self.pull / 2 * jnp.sum((z.y - 1 / self.samples) ** 2)
        return entries(z.y, batch.position) * self.logistic(z.x, batch) - V + g

    def inner_sums(self, x: PyTree, rows: Any, weight: jax.Array) -> jax.Array:
        """Return, for every j, the mean over clients of l_ij / n_i.

        n_i is the number of rows of client i. A client without a row j counts as zero.
        """
        shares = weight * self.logistic(x, rows)
        return summed(shares, rows.position, self.samples)

    def y_from(self, sums: PyTree) -> jax.Array:
        """Return the best y, with entries 1/n + sums_j / (n^2 lambda_1)."""
        return 1 / self.samples + sums / self.pull

    def score(self, x: PyTree, rows: Any) -> jax.Array:
        return rows.features @ x
