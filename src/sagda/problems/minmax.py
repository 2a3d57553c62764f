"""`MinMax`: a problem from one function of x, y and rows.

Use `MinMax` for a problem in a script. The command, federations and stored models find
problems by name. For those, add a class to `PROBLEMS`: see `base.py`.
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
    """A problem with your own loss: min over x, max over y, of its mean over clients.

    Args:
        loss: a function. `loss(x, y, batch)` returns one value per row of `batch`.
        x: the starting value of x: float arrays in any structure, or a function that
            makes them from a key.
        y: the starting value of y, in the same form.
        x_in: the set that x must lie in, such as `sagda.Box(0, 1)`; None for no set.
        y_in: the set that y must lie in. Without a set, f may have no maximum over y.
        score: a function. `score(x, rows)` returns one score per row. The history then
            has AUC columns.
        best_y: a function. `best_y(x, rows, weight)` returns the y that maximises f, in
            closed form. For values per row, `weight @ values` is their mean over
            clients. If None, a solver searches for the best y.
        concavity: the modulus of concavity of f in y, if known, for the theory.

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
    """Return whether `start` is a function. A callable pytree of arrays is not one."""
    return callable(start) and jax.tree_util.all_leaves([start])


def start_of(name: str, start: Any, feasible: ConvexSet | None) -> Any:
    """Return `start` as float arrays or as the function that makes them, after checks.

    Args:
        name: x or y, for error messages.
        start: the starting value, or a function of a key.
        feasible: the set that the starting value must fit into, if any.
    """
    check_set(f"{name}_in", feasible)
    if is_maker(start):
        made = jax.eval_shape(start, root_key(0))
    else:
        start = made = jax.tree.map(np.asarray, start)
    leaves = jax.tree.leaves(made)
    wrong = [a for a in leaves if not jnp.issubdtype(a.dtype, jnp.floating)]
    if wrong or not leaves:
        got = f"{wrong[0].dtype} of shape {wrong[0].shape}" if wrong else "none"
        raise BadKind(
            f"`{name}` must be float arrays, such as np.zeros(3), or a function that "
            f"makes them from a key, got {got}."
        )
    if feasible is not None:
        feasible.fit(name, made)
    return start
