"""Logistic regression that treats two groups alike, by a Lagrangian.

y holds the two prices of the constraint, one for each sign of the difference. The
groups' shares of the rows must be known, so it is built from data, not from `Facts`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sagda import check
from sagda.check import BadValue
from sagda.core import Point, PyTree
from sagda.data.federation import Facts, Federation
from sagda.data.recipe import Recipe
from sagda.keys import Key
from sagda.models import as_model
from sagda.problems.logistic import Logistic
from sagda.problems.losses import sigmoid
from sagda.problems.sets import Box, ConvexSet

CRITERIA = ("parity", "opportunity")
COUNTED = ", the features counted from 0"


@dataclass(frozen=True)
class Fair(Logistic):
    """A classifier that gives two groups the same chances.

    x scores rows, and y prices a difference between the groups above a slack.

    f(x, y) = mean l + y_1 (c(x) - slack) + y_2 (-c(x) - slack) - penalty/2 ||y||^2,
    y in [0, bound]^2. c(x) is the mean probability sigmoid(h) in the first group minus
    that in the second: over all rows (demographic parity), or over the positive rows
    (equal opportunity). With the groups' shares known, f is a mean over rows:

    l + (y_1 - y_2) sigmoid(h) (1_one / share_one - 1_other / share_other)
    - slack (y_1 + y_2) - penalty/2 ||y||^2

    y* = (c - slack, -c - slack) / penalty, clipped to the box. At a solution the
    difference exceeds the slack by penalty times y*.

    Args:
        model: h_x; see `sagda.models`.
        group: the number of the feature that decides a row's group.
        shares: the share of rows in each group, a mean over clients; the group above
            the threshold is first.
        box: the set of y.
        criterion: `parity` or `opportunity`.
        slack: the difference that costs nothing.
        penalty: the modulus of concavity.
        threshold: rows with a larger value of the feature are in the first group.
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
        data: Federation | Facts,
        model: Any = None,
        *,
        group: int | None = None,
        criterion: str = "parity",
        slack: float = 0.0,
        penalty: float = 0.01,
        bound: float = 10.0,
        threshold: float = 0.5,
    ) -> "Fair":
        """The problem for this data, with a linear model by default.

        The groups' shares are counted in a federation. From `Facts`, as for a stored
        model, they are taken as equal: scores do not depend on them.

        Args:
            data: the federation, or facts about it.
            model: see `sagda.models`.
            group: the number of the feature that decides a row's group; required.
            criterion: `parity` or `opportunity`.
            slack: the difference that costs nothing.
            penalty: the modulus of concavity.
            bound: the largest price.
            threshold: rows with a larger value of the feature are in the first group.
        """
        width = Facts.of(data).width
        group = feature_number(group, [], width)
        shares = (0.5, 0.5)
        if isinstance(data, Federation):
            shares = shares_of(data, group, criterion, threshold)
        return cls(
            model=as_model(model, width),
            group=group,
            shares=shares,
            box=Box(0.0, check.positive("bound", bound)),
            criterion=criterion,
            slack=slack,
            penalty=penalty,
            threshold=threshold,
        )

    @classmethod
    def resolved(cls, options: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
        """A group by its number and a threshold in the feature's scaled unit.

        A configuration may name a column of a file, or one value of a category as in
        `sex=female`. Its threshold is in the unit of the file.
        """
        names = [] if recipe.encoding is None else recipe.encoding.names
        group = feature_number(options.get("group"), names, recipe.width)
        threshold = check.real("threshold", options.get("threshold", 0.5))
        scaling = recipe.scaling
        scaled = float((threshold - scaling.mean[group]) / scaling.scale[group])
        return dict(options) | {"group": group, "threshold": scaled}

    def sets(self) -> tuple[ConvexSet | None, ConvexSet | None]:
        return None, self.box

    def concavity(self) -> float:
        return self.penalty

    def init(self, key: Key) -> Point:
        return Point(self.model.init(key), jnp.zeros(2))

    def contrast(self, rows: Any) -> jax.Array:
        """Each row's factor in c, which is the mean of contrast * sigmoid(h)."""
        one = (rows.features[:, self.group] > self.threshold) * 1.0
        factor = one / self.shares[0] - (1 - one) / self.shares[1]
        return factor if self.criterion == "parity" else factor * (rows.label > 0)

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
        """c(x) as `difference`; as `disparity`, c for decisions h > 0 in place of h."""
        decided = (self.score(z.x, rows) > 0) * 1.0
        return {
            "difference": self.inner_sums(z.x, rows, weight),
            "disparity": (weight * decided * self.contrast(rows)).sum(),
        }


def feature_number(group: Any, names: list[str], width: int) -> int:
    """The number of the feature that `group` names, or is."""
    if group is None:
        raise BadValue(
            "`group` must name the feature that decides a row's group for problem "
            "fair, such as --set group=3, got none."
        )
    if isinstance(group, str) and names:
        group = names.index(check.choice("group", group, names))
    return check.integer("group", group, low=0, high=width - 1, what=COUNTED)


def shares_of(
    federation: Federation, group: int, criterion: str, threshold: float
) -> tuple[float, float]:
    """Each group's share of the rows that count, a mean over clients."""
    data = federation.data
    first = data.features[:, group] > threshold
    counted = (data.label > 0) | (criterion == "parity")
    above = float(federation.weight @ (counted & first))
    below = float(federation.weight @ (counted & ~first))
    if min(above, below) == 0:
        rows = "rows" if criterion == "parity" else "positive rows"
        side = "above" if above == 0 else "up to"
        raise BadValue(
            f"`group` must name a feature that splits the rows into two groups, but no "
            f"{rows} have feature {group} {side} {threshold:g}; choose another "
            "feature or `threshold`."
        )
    return above, below
