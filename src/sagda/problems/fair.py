"""Logistic regression with a fairness constraint between two groups, by a Lagrangian.

y holds the two multipliers of the constraint: the first group may not be favoured, nor
the second. Training needs the share of rows in each group, which `Facts` do not have.
So this problem runs in the simulator and not in real federations.
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
COUNTED = " (features are counted from 0)"


@dataclass(frozen=True)
class Fair(Logistic):
    """A classifier with similar positive rates in two groups of rows.

    x holds the parameters of the model h. y holds two multipliers in [0, bound]. They
    penalise a difference c(x) between the groups that is larger than `slack`.

    f(x, y) = mean(l) + y_1 (c(x) - slack) + y_2 (-c(x) - slack) - penalty/2 ||y||^2

    l is the logistic loss of a row. c(x) is the mean probability sigmoid(h) of the
    first group minus that of the second group. The criterion `parity` takes the mean
    over all rows of a group, `opportunity` over its positive rows.

    Let 1_first be 1 for rows in the first group and 0 for others, and share_first the
    share of these rows; likewise for the second group. Then f is a mean over rows of:

    l + (y_1 - y_2) sigmoid(h) (1_first / share_first - 1_second / share_second)
    - slack (y_1 + y_2) - penalty/2 ||y||^2

    The best y is (c - slack, -c - slack) / penalty, clipped to [0, bound]. At a
    solution, the difference exceeds the slack by the penalty times the best y.

    Args:
        model: the model h; see `sagda.models`.
        group: the number of the feature that decides the group of a row.
        shares: the shares of rows in the first and second group, means over clients.
        box: the set that y must lie in.
        criterion: `parity` or `opportunity`.
        slack: the difference between the groups that is not penalised.
        penalty: the modulus of concavity in y.
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
        """Return the problem for `data`, with a linear model by default.

        A federation determines the shares of the groups. A stored model is built from
        `Facts`, with shares of 0.5: its scores do not depend on the shares.

        Args:
            data: the federation, or facts about it.
            model: the model h; see `sagda.models`.
            group: the number of the feature that decides the group of a row. Required.
            criterion: `parity` or `opportunity`.
            slack: the difference between the groups that is not penalised.
            penalty: the modulus of concavity in y.
            bound: the largest multiplier.
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
        """Return `options`, with `group` as a number and `threshold` after scaling.

        A configuration may give `group` as the name of a column, or as one value of a
        category, such as `sex=female`. It gives `threshold` in the unit of the file.
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
        """Return one factor per row: c(x) is the mean of factor * sigmoid(h)."""
        one = (rows.features[:, self.group] > self.threshold) * 1.0
        factor = one / self.shares[0] - (1 - one) / self.shares[1]
        return factor if self.criterion == "parity" else factor * (rows.label > 0)

    def loss(self, z: Point, batch: Any, key: Key) -> jax.Array:
        c = sigmoid(self.score(z.x, batch)) * self.contrast(batch)
        V = self.penalty / 2 * (z.y**2).sum() + self.slack * z.y.sum()
        return self.logistic(z.x, batch) + (z.y[0] - z.y[1]) * c - V

    def inner_sums(self, x: PyTree, rows: Any, weight: jax.Array) -> jax.Array:
        """Return c(x), the difference between the groups."""
        return weight @ (sigmoid(self.score(x, rows)) * self.contrast(rows))

    def y_from(self, sums: PyTree) -> jax.Array:
        free = jnp.stack([sums, -sums]) - self.slack
        return self.box.project(free / self.penalty)

    def metrics(self, z: Point, rows: Any, weight: jax.Array) -> dict[str, jax.Array]:
        """Return the difference between the groups: of probabilities and of decisions.

        `difference` is c(x). `disparity` has the decision h > 0 in place of sigmoid(h).
        """
        decided = (self.score(z.x, rows) > 0) * 1.0
        return {
            "difference": self.inner_sums(z.x, rows, weight),
            "disparity": (weight * decided * self.contrast(rows)).sum(),
        }


def feature_number(group: Any, names: list[str], width: int) -> int:
    """Return `group` as the number of a feature. It may be a name in `names`."""
    if group is None:
        raise BadValue(
            "`group` must name the feature that decides the group of a row, got none; "
            "give it, such as --set group=3."
        )
    if isinstance(group, str) and names:
        group = names.index(check.choice("group", group, names))
    return check.integer("group", group, low=0, high=width - 1, what=COUNTED)


def shares_of(
    federation: Federation, group: int, criterion: str, threshold: float
) -> tuple[float, float]:
    """Return the shares of rows in the first and second group, means over clients.

    For `opportunity`, they are the shares of positive rows in each group.
    """
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
