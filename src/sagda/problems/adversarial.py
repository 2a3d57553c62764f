"""Logistic loss under the worst perturbation of each class within a norm ball."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from sagda import check
from sagda.check import BadValue
from sagda.core import Point, PyTree
from sagda.data.federation import Federation, share_of_positives
from sagda.keys import Key
from sagda.models.networks import Linear
from sagda.problems.logistic import Logistic, scorer_for
from sagda.problems.losses import softplus
from sagda.problems.sets import Ball, ConvexSet


@dataclass(frozen=True)
class Adversarial(Logistic):
    """x scores rows; y is added to them: y_+ to the positive, y_- to the negative ones.

    Per row (a, b):  log(1 + exp(-b h(a + y_b))),  y_+ and y_- each in the ball.

    A linear model's loss falls in b <y_b, x>, for every row of a class alike. So one
    perturbation is the worst for all of them, y_b = -b r x / ||x|| (or the signs of x
    in the inf norm), and Phi(x) = mean log(1 + exp(-b <a, x> + r ||x||_dual)) is just
    adversarial training with a perturbation of its own for every row. f is convex in y,
    not concave, but has no stationary point that is not this maximum.

    For other models y is a universal perturbation of each class. The maximum is solved
    from the current y, and f is concave in no sense: a small `inner_residual` means a
    stationary point, and `phi` is what it reaches, a lower bound of the maximum.

    Args:
        model: h_x; see `sagda.models`.
        features: d; y has shape [2, d], the positives' row first.
        ball: where each row of y lies.
    """

    features: int
    ball: Ball

    def __post_init__(self) -> None:
        check.integer("features", self.features, low=1)
        check.kind("ball", self.ball, Ball, "such as sagda.Ball(0.1, rows=True)")
        if self.ball.norm == 1 or not self.ball.rows:
            raise BadValue(
                "`ball` must be of norm 2 or 'inf' and have rows=True, a perturbation "
                f"for each class, got {self.ball}."
            )

    @classmethod
    def of(
        cls,
        federation: Federation,
        model: Any = None,
        *,
        radius: float = 0.1,
        norm: Any = 2,
    ) -> "Adversarial":
        """The problem on this data: a linear scorer, perturbations up to `radius`."""
        share_of_positives(federation)
        model = scorer_for(federation, model)
        ball = Ball(radius, norm, rows=True)
        return cls(model, federation.data.features.shape[1], ball)

    def sets(self) -> tuple[ConvexSet | None, ConvexSet | None]:
        return None, self.ball

    def init(self, key: Key) -> Point:
        return Point(self.model.init(key), jnp.zeros((2, self.features)))

    def loss(self, z: Point, batch: Any, key: Key) -> jax.Array:
        positive = ((batch.label > 0) * 1.0)[:, None]
        moved = batch.features + positive * z.y[:1] + (1 - positive) * z.y[1:]
        return softplus(-batch.label * self.model.apply(z.x, moved))

    def best_y(self, x: PyTree, rows: Any, weight: jax.Array) -> jax.Array | None:
        """-r and +r times x / ||x||, or the signs of x; None but for linear models."""
        if not isinstance(self.model, Linear):
            return None
        length = jnp.sqrt((x**2).sum())
        along = jnp.sign(x)
        if self.ball.norm == 2:
            along = x / jnp.where(length > 0, length, 1)
        return self.ball.radius * jnp.stack([-along, along])
