"""Convex sets for x and y, each with its Euclidean projection.

A problem returns its sets in `Problem.sets`. Every step of clients and of the server is
then projected. A constraint that depends on data, such as that of `fair.py`, is a term
of the objective and not a set.
"""

import abc
import math
import numbers
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sagda import check
from sagda.check import BadKind, BadValue
from sagda.core import PyTree, minus
from sagda.problems.inner import norm
from sagda.pytree import register

ROUNDING = 1e-5  # a point this close to a set counts as inside, relative to its norm


class ConvexSet(abc.ABC):
    """A closed convex set of arrays. A subclass must be a frozen dataclass."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register(cls)

    @abc.abstractmethod
    def project(self, tree: PyTree) -> PyTree:
        """Return the point of the set nearest to `tree`."""

    def fit(self, name: str, tree: PyTree) -> None:
        """Raise if the shapes of `tree` do not fit the set; `name` is x or y."""
        return None

    def holds(self, tree: PyTree) -> jax.Array:
        """Return whether `tree` lies in the set, up to rounding."""
        away = minus(self.project(tree), tree)
        return norm(away) <= ROUNDING * (1 + norm(tree))


@dataclass(frozen=True)
class Simplex(ConvexSet):
    """The set of vectors with non-negative entries that add up to `scale`.

    Examples:
        >>> Simplex().project(np.array([0.75, 0.75, -1.0])).tolist()
        [0.5, 0.5, 0.0]
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check.positive("scale", self.scale))

    def project(self, tree: PyTree) -> PyTree:
        from optax import projections

        return projections.projection_simplex(tree, self.scale)

    def fit(self, name: str, tree: PyTree) -> None:
        shapes = [np.shape(a) for a in jax.tree.leaves(tree)]
        if [len(shape) for shape in shapes] != [1]:
            raise BadValue(
                f"`{name}` must be one vector for a Simplex, got shapes "
                f"{', '.join(map(str, shapes))}; put all weights into one array."
            )


@dataclass(frozen=True)
class Box(ConvexSet):
    """The set of arrays whose entries are between `low` and `high`.

    Each bound is a number, or an array of the shape of x or y. A bound may be infinite.

    Examples:
        >>> Box(0.0, [1.0, 2.0]).project(np.array([-1.0, 5.0])).tolist()
        [0.0, 2.0]
    """

    low: Any
    high: Any

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, bound(name, getattr(self, name)))
        shapes = {np.shape(b) for b in (self.low, self.high)} - {()}
        if len(shapes) > 1:
            raise BadValue(
                "`low` and `high` must have the same shape, got "
                f"{np.shape(self.low)} and {np.shape(self.high)}."
            )
        if np.any(np.asarray(self.low) > self.high):
            raise BadValue(
                f"`low` must be at most `high`, got {self.low} and {self.high}."
            )

    def project(self, tree: PyTree) -> PyTree:
        from optax import projections

        all_at = lambda bound: jax.tree.map(lambda a: bound, tree)
        return projections.projection_box(tree, all_at(self.low), all_at(self.high))

    def fit(self, name: str, tree: PyTree) -> None:
        shapes = [np.shape(a) for a in jax.tree.leaves(tree)]
        for limit in (self.low, self.high):
            if np.shape(limit) and shapes != [np.shape(limit)]:
                raise BadValue(
                    f"`{name}` must be one array of shape {np.shape(limit)}, the shape "
                    f"of the bounds of its Box, got {', '.join(map(str, shapes))}; a "
                    "number as bound fits arrays of any shape."
                )


def bound(name: str, value: Any) -> Any:
    """Return the bound `value` as a float or an array of floats."""
    try:
        out = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        out = np.array(np.nan)
    if isinstance(value, bool) or np.isnan(out).any():
        raise BadKind(
            f"`{name}` must be a number or an array of numbers, got {value!r:.60} of "
            f"type {type(value).__name__}."
        )
    return out if out.ndim else float(out)


@dataclass(frozen=True)
class Ball(ConvexSet):
    """The set of points with a norm of at most `radius`.

    Several arrays count as one vector.

    Args:
        radius: the largest norm; zero allows the origin only.
        norm: 1, 2 or "inf".
        rows: apply the bound to every row of a matrix separately.

    Examples:
        >>> y = np.array([[0.0, 4.0], [0.0, 0.5]])
        >>> Ball(1.0, rows=True).project(y).tolist(), Ball(1.0, "inf").holds(y).item()
        ([[0.0, 1.0], [0.0, 0.5]], False)
    """

    radius: float
    norm: Any = 2
    rows: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", check.real("radius", self.radius, low=0))
        known = {1: 1, 2: 2, "inf": "inf", math.inf: "inf"}
        ok = isinstance(self.norm, numbers.Real | str) and self.norm in known
        if not ok or isinstance(self.norm, bool):
            raise BadValue(f"`norm` must be 1, 2 or 'inf', got {self.norm!r}.")
        object.__setattr__(self, "norm", known[self.norm])

    def project(self, tree: PyTree) -> PyTree:
        from optax import projections

        kinds = {
            1: projections.projection_l1_ball,
            2: projections.projection_l2_ball,
            "inf": projections.projection_linf_ball,
        }

        def nearest(tree: PyTree) -> PyTree:
            projected = kinds[self.norm](tree, self.radius)
            # Optax divides by the radius, which may be zero.
            return jax.tree.map(lambda a: jnp.where(self.radius > 0, a, 0), projected)

        return jax.tree.map(jax.vmap(nearest), tree) if self.rows else nearest(tree)

    def fit(self, name: str, tree: PyTree) -> None:
        flat = [np.shape(a) for a in jax.tree.leaves(tree) if np.ndim(a) < 2]
        if self.rows and flat:
            raise BadValue(
                f"`{name}` must be a matrix for a Ball with rows=True, got an array "
                f"of shape {flat[0]}; use rows=False for one ball."
            )


def check_set(name: str, given: Any) -> None:
    """Raise unless `given` is a `ConvexSet` or None; `name` is x_in or y_in."""
    if given is not None:
        check.kind(name, given, ConvexSet, "such as sagda.Ball(1.0), or None")
