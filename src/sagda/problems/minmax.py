"""`MinMax`: a problem from one function of x, y and rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sagda import check
from sagda.check import BadKind
from sagda.core import Point, PyTree
from sagda.keys import Key, key_of, root_key
from sagda.problems.base import Problem
from sagda.problems.sets import ConvexSet, check_set


@dataclass(frozen=True, init=False)
class MinMax(Problem):
    """min over x, max over y, of the clients' mean of a function of yours.

    Args:
        loss: `loss(x, y, batch)`, one value per row of `batch`.
        x: the start: float arrays in any structure, or a function of a key.
        y: likewise.
        x_in: the set that x is held in, such as `sagda.Box(0, 1)`; None for none.
        y_in: likewise. Without bound and without concavity there may be no maximum.
        score: `score(x, rows)`, for AUC columns.
        best_y: `best_y(x, rows, weight)`, the maximiser in closed form, where
            `weight @ values` is a mean over clients; None has it solved.
        concavity: the modulus of f in y, where it is known; for the theory.

    Examples:
        >>> from sagda import Ball, parallel_sgda, partition, load, simulate, softplus
        >>> def loss(x, y, batch):
        ...     return softplus(-batch.label * (batch.features @ x + y @ x))
        >>> rows = load("digits", positive=1).train
        >>> clients = partition(rows, clients=4, samples=20)
        >>> problem = MinMax(loss, x=np.zeros(64), y=np.zeros(64), y_in=Ball(0.5))
        >>> run = simulate(parallel_sgda(local_lr=0.1), problem, clients, rounds=20)
        >>> bool(np.linalg.norm(run.z.y[0]) < 0.5001)
        True
    """

    function: Callable
    x_0: Any
    y_0: Any
    x_in: ConvexSet | None
    y_in: ConvexSet | None
    scores: Callable | None
    maximiser: Callable | None
    modulus: float | None

    def __init__(
        self,
        loss: Callable[[Any, Any, Any], jax.Array],
        *,
        x: Any,
        y: Any,
        x_in: ConvexSet | None = None,
        y_in: ConvexSet | None = None,
        score: Callable[[Any, Any], jax.Array] | None = None,
        best_y: Callable[[Any, Any, jax.Array], Any] | None = None,
        concavity: float | None = None,
    ) -> None:
        for name, own in (("loss", loss), ("score", score), ("best_y", best_y)):
            if not (callable(own) or (own is None and name != "loss")):
                raise BadKind(
                    f"`{name}` must be a function, got {own!r:.60} of type "
                    f"{type(own).__name__}."
                )
        if concavity is not None:
            concavity = check.positive("concavity", concavity)
        fields = {
            "function": loss,
            "x_0": start_of("x", x, x_in),
            "y_0": start_of("y", y, y_in),
            "x_in": x_in,
            "y_in": y_in,
            "scores": score,
            "maximiser": best_y,
            "modulus": concavity,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def init(self, key: Key) -> Point:
        made = lambda name, own: own(key_of(key, name)) if is_maker(own) else own
        point = Point(made("x", self.x_0), made("y", self.y_0))
        return jax.tree.map(jnp.asarray, point)

    def loss(self, z: Point, batch: Any, key: Key) -> jax.Array:
        return self.function(z.x, z.y, batch)

    def sets(self) -> tuple[ConvexSet | None, ConvexSet | None]:
        return self.x_in, self.y_in

    def best_y(self, x: PyTree, rows: Any, weight: jax.Array) -> PyTree | None:
        return None if self.maximiser is None else self.maximiser(x, rows, weight)

    def concavity(self) -> float | None:
        return self.modulus

    def score(self, x: PyTree, rows: Any) -> jax.Array | None:
        return None if self.scores is None else self.scores(x, rows)


def is_maker(start: Any) -> bool:
    """A function, and not a structure of arrays that can be called, too."""
    return callable(start) and jax.tree_util.all_leaves([start])


def start_of(name: str, start: Any, own: ConvexSet | None) -> Any:
    """Float arrays, or the function that makes them, that fit their set."""
    check_set(f"{name}_in", own)
    made = start
    if is_maker(start):
        made = jax.eval_shape(start, root_key(0))
    else:
        start = made = jax.tree.map(np.asarray, start)
    leaves = jax.tree.leaves(made)
    wrong = [a for a in leaves if not jnp.issubdtype(a.dtype, jnp.floating)]
    if wrong or not leaves:
        found = "none"
        if wrong:
            found = f"one of {wrong[0].dtype} and shape {wrong[0].shape}"
        raise BadKind(
            f"`{name}` must be float arrays, such as np.zeros(3), or a function of a "
            f"key that makes them, got {found}."
        )
    if own is not None:
        own.fit(name, made)
    return start
