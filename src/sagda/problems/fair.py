"""Logistic regression with equal chances for two groups, by a Lagrangian."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sagda import check
from sagda.check import BadValue
from sagda.core import Point, PyTree
from sagda.data.federation import Federation, share_of_positives
from sagda.keys import Key
from sagda.problems.logistic import Logistic, scorer_for
from sagda.problems.losses import sigmoid
from sagda.problems.sets import Box, ConvexSet

CRITERIA = ("parity", "opportunity")


@dataclass(frozen=True)
class Fair(Logistic):
    """x scores rows, y prices a difference between two groups beyond a slack.

    f(x, y) = mean l + y_1 (c(x) - slack) + y_2 (-c(x) - slack) - penalty/2 ||y||^2,
    y in [0, bound]^2, where c(x) is the mean probability sigmoid(h) in the one group
    less that in the other: of all rows (demographic parity), or of the positive ones
    (equal opportunity). A mean over rows, once the groups' shares are known:

    l + (y_1 - y_2) sigmoid(h) (1_one / share_one - 1_other / share_other)
    - slack (y_1 + y_2) - penalty/2 ||y||^2

    y* = (c - slack, -c - slack) / penalty, clipped. The penalty lets the difference
    exceed the slack by penalty times y*.

    Args:
        model: h_x; see `sagda.models`.
        group: the number of the feature that tells the groups apart.
        shares: of both groups, a mean over clients; the one above the threshold first.
        box: where y lies.
        criterion: `parity` or `opportunity`.
        slack: the difference that is free.
        penalty: the modulus of concavity.
        threshold: the first group has values of the feature above it.
    """

    group: int
    shares: tuple[float, float]
    box: Box
    criterion: str = "parity"
    slack: float = 0.0
    penalty: float = 0.01
    threshold: float = 0.5

    def __post_init__(self) -> None:
        check.integer("group", self.group, low=0)
        check.choice("criterion", self.criterion, CRITERIA)
        check.positive("penalty", self.penalty)
        for name in ("slack", "penalty", "threshold"):
            low = 0 if name == "slack" else -np.inf
            value = check.real(name, getattr(self, name), low=low)
            object.__setattr__(self, name, value)

    @classmethod
    def of(
        cls,
        federation: Federation,
        model: Any = None,
        *,
        group: int,
        criterion: str = "parity",
        slack: float = 0.0,
        penalty: float = 0.01,
        bound: float = 10.0,
        threshold: float = 0.5,
    ) -> "Fair":
        """The problem on this data: a linear scorer, groups counted over clients."""
        share_of_positives(federation)
        model = scorer_for(federation, model)
        data = federation.data
        width = data.features.shape[1]
        what = ", the features counted from 0"
        group = check.integer("group", group, low=0, high=width - 1, what=what)
        check.choice("criterion", criterion, CRITERIA)
        one = data.features[:, group] > threshold
        counted = (data.label > 0) | (criterion == "parity")
        shares = [float(federation.weight @ (counted & own)) for own in (one, ~one)]
        if min(shares) == 0:
            rows = "rows" if criterion == "parity" else "positive rows"
            side = "above" if shares[0] == 0 else "up to"
            raise BadValue(
                f"`group` must name a feature that tells two groups apart, but no "
                f"{rows} have feature {group} {side} {threshold:g}; choose another "
                "feature or `threshold`."
            )
        box = Box(0.0, check.positive("bound", bound))
        both = shares[0], shares[1]
        return cls(model, group, both, box, criterion, slack, penalty, threshold)

    def sets(self) -> tuple[ConvexSet | None, ConvexSet | None]:
        return None, self.box

    def concavity(self) -> float:
        return self.penalty

    def init(self, key: Key) -> Point:
        return Point(self.model.init(key), jnp.zeros(2))

    def contrast(self, rows: Any) -> jax.Array:
        """What a row counts in c, times its probability."""
        one = (rows.features[:, self.group] > self.threshold) * 1.0
        each = one / self.shares[0] - (1 - one) / self.shares[1]
        return each if self.criterion == "parity" else each * (rows.label > 0)

    def loss(self, z: Point, batch: Any, key: Key) -> jax.Array:
        c = sigmoid(self.score(z.x, batch)) * self.contrast(batch)
        V = self.penalty / 2 * (z.y**2).sum() + self.slack * z.y.sum()
        return self.logistic(z.x, batch) + (z.y[0] - z.y[1]) * c - V

    def inner_sums(self, x: PyTree, rows: Any, weight: jax.Array) -> jax.Array:
        """c(x)."""
        return weight @ (sigmoid(self.score(x, rows)) * self.contrast(rows))

    def y_from(self, sums: PyTree) -> jax.Array:
        free = jnp.stack([sums, -sums]) - self.slack
        return self.box.project(free / self.penalty)

    def metrics(self, z: Point, rows: Any, weight: jax.Array) -> dict[str, jax.Array]:
        """c(x), and the same of decisions, h > 0, in place of probabilities."""
        decided = (self.score(z.x, rows) > 0) * 1.0
        return {
            "difference": self.inner_sums(z.x, rows, weight),
            "disparity": (weight * decided * self.contrast(rows)).sum(),
        }
