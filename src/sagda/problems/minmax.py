"""`MinMax`: a problem from one function of x, y and rows.

It is for a problem in a script. A problem that the command, federations and stored
models should know by name is a class in `PROBLEMS`: see `base.py`.
"""

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
    """min over x, max over y, of the clients' mean of your own loss.

    Args:
        loss: `loss(x, y, batch)`, one value per row of `batch`.
        x: the start: float arrays in any structure, or a function of a key.
        y: the start of y, in the same form.
        x_in: the set that x must lie in, such as `sagda.Box(0, 1)`; None for no set.
        y_in: the set of y. Without a set and without concavity, f may have no maximum.
        score: `score(x, rows)`, one score per row, for AUC columns.
        best_y: `best_y(x, rows, weight)`, the maximiser in closed form, where
            `weight @ values` is a mean over clients. If None, it is solved for.
        concavity: the modulus of f in y, if known; the theory uses it.

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
        functions = {"loss": loss, "score": score, "best_y": best_y}
        for name, function in functions.items():
            if not (callable(function) or (function is None and name != "loss")):
                raise check.wrong_kind(name, "a function", function)
        if concavity is not None:
            concavity = check.positive("concavity", concavity)
        # Fields have other names than the hooks of `Problem`, which are methods.
        vars(self).update(
            function=loss,
            x_0=start_of("x", x, x_in),
            y_0=start_of("y", y, y_in),
            x_in=x_in,
            y_in=y_in,
            scores=score,
            maximiser=best_y,
            modulus=concavity,
        )

    def init(self, key: Key) -> Point:
        made = lambda name, start: (
            start(key_of(key, name)) if is_maker(start) else start
        )
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
    """Whether it is a function. A pytree of arrays may be callable but is not one."""
    return callable(start) and jax.tree_util.all_leaves([start])


def start_of(name: str, start: Any, feasible: ConvexSet | None) -> Any:
    """The start as float arrays, or as the function that makes them, after checks."""
    check_set(f"{name}_in", feasible)
    if is_maker(start):
        made = jax.eval_shape(start, root_key(0))
    else:
        start = made = jax.tree.map(np.asarray, start)
    leaves = jax.tree.leaves(made)
    wrong = [a for a in leaves if not jnp.issubdtype(a.dtype, jnp.floating)]
    if wrong or not leaves:
        got = f"one of {wrong[0].dtype} and shape {wrong[0].shape}" if wrong else "none"
        raise BadKind(
            f"`{name}` must be float arrays, such as np.zeros(3), or a function of a "
            f"key that makes them, got {got}."
        )
    if feasible is not None:
        feasible.fit(name, made)
    return start
