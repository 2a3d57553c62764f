"""Adversarial training: the worst perturbation of each class, within a norm ball.

There is one perturbation per class, not one per row. For a linear model, both give the
same problem. The common part of all logistic problems is in `logistic.py`.
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

    x holds the parameters of the model h. y holds two perturbations: y_+ is added to
    the features of all positive rows, y_- to those of all negative rows.

    Loss of a row with features a and label b, where y_+ and y_- each lie in the ball:

    log(1 + exp(-b h(a + y_b)))

    Linear model: the loss decreases in b <y_b, x> for every row of a class. So one
    perturbation is the worst for all rows of a class: y_b = -b r x / ||x||, or
    -b r sign(x) in the inf norm, where r is the radius of the ball. The maximum over y
    is Phi(x) = mean log(1 + exp(-b <a, x> + r ||x||_dual)). One perturbation per row
    would give the same Phi. f is convex in y, but its only stationary point is this
    maximum.

    Other models: one perturbation must serve all rows of a class. A solver searches
    for the maximum, starting from the current y. f is not concave in y. So a small
    `inner_residual` shows only a stationary point, and `phi` is a lower bound of the
    maximum.

    Args:
        model: the model h; see `sagda.models`.
        features: d, the number of features. y has shape [2, d], with y_+ first.
        ball: the set that each row of y must lie in.
    """

    features: int
    ball: Ball

    def __post_init__(self) -> None:
        check.integer("features", self.features, low=1)
        check.kind("ball", self.ball, Ball, "such as sagda.Ball(0.1, rows=True)")
        if self.ball.norm == 1 or not self.ball.rows:
            raise BadValue(
                "`ball` must have norm 2 or 'inf', and rows=True for one perturbation "
                f"per class, got {self.ball}."
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
        """Return the problem for `data`, with a linear model by default.

        Args:
            data: the federation, or facts about it.
            model: the model h; see `sagda.models`.
            radius: the largest norm of a perturbation.
            norm: the norm of the ball, 2 or "inf".
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
        """Return the worst y_+ and y_- of a linear model; None for other models.

        They are -r and +r times x / ||x||, or times sign(x) in the inf norm.
        """
        if not isinstance(self.model, Linear):
            return None
        length = jnp.sqrt((x**2).sum())
        direction = jnp.sign(x)
        if self.ball.norm == 2:
            direction = x / jnp.where(length > 0, length, 1)
        return self.ball.radius * jnp.stack([-direction, direction])
