"""Adversarial training: each class moves by its worst perturbation in a norm ball.

The perturbation here is one per class, not one per row. For a linear model the two are
the same problem.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from sagda import check
from sagda.check import BadValue
from sagda.core import Point, PyTree
from sagda.data.federation import Facts, Federation
from sagda.keys import Key
from sagda.models import as_model
from sagda.models.networks import Linear
from sagda.problems.logistic import Logistic
from sagda.problems.losses import softplus
from sagda.problems.sets import Ball, ConvexSet


@dataclass(frozen=True)
class Adversarial(Logistic):
    """A classifier that resists small perturbations of its input.

    x scores rows. y is added to them: y_+ to the positive and y_- to the negative rows.

    Per row (a, b):  log(1 + exp(-b h(a + y_b))),  y_+ and y_- each in the ball.

    Linear model: the loss decreases in b <y_b, x> for every row of a class. So one
    perturbation is the worst for all of them: y_b = -b r x / ||x||, or -b r sign(x) in
    the inf norm. Phi(x) = mean log(1 + exp(-b <a, x> + r ||x||_dual)) then equals
    adversarial training with one perturbation per row. f is convex in y, not concave,
    but its only stationary point is this maximum.

    Other models: y is a universal perturbation of each class. The maximum is solved
    for, starting from the current y. f is not concave, so a small `inner_residual`
    means a stationary point, and `phi` is a lower bound of the maximum.

    Args:
        model: h_x; see `sagda.models`.
        features: d; y has shape [2, d], the positives' row first.
        ball: the set of each row of y.
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
        data: Federation | Facts,
        model: Any = None,
        *,
        radius: float = 0.1,
        norm: Any = 2,
    ) -> "Adversarial":
        """The problem for this data, with a linear model by default.

        Args:
            data: the federation, or facts about it.
            model: see `sagda.models`.
            radius: the largest norm of a perturbation.
            norm: 2 or "inf".
        """
        width = Facts.of(data).width
        return cls(as_model(model, width), width, Ball(radius, norm, rows=True))

    def sets(self) -> tuple[ConvexSet | None, ConvexSet | None]:
        return None, self.ball

    def init(self, key: Key) -> Point:
        return Point(self.model.init(key), jnp.zeros((2, self.features)))

    def loss(self, z: Point, batch: Any, key: Key) -> jax.Array:
        positive = ((batch.label > 0) * 1.0)[:, None]
        moved = batch.features + positive * z.y[:1] + (1 - positive) * z.y[1:]
        return softplus(-batch.label * self.model.apply(z.x, moved))

    def best_y(self, x: PyTree, rows: Any, weight: jax.Array) -> jax.Array | None:
        """-r and +r times x / ||x||, or sign(x); None unless the model is linear."""
        if not isinstance(self.model, Linear):
            return None
        length = jnp.sqrt((x**2).sum())
        direction = jnp.sign(x)
        if self.ball.norm == 2:
            direction = x / jnp.where(length > 0, length, 1)
        return self.ball.radius * jnp.stack([-direction, direction])
