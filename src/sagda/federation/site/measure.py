"""The site's part of an evaluation: means over its rows, and counts of rows by score.

The server sends a question and a point z = (x, y). `measured` computes the answer. Here
f_i is the mean loss over the rows of this site.

All numbers are computed in double precision. Near a solution the gradients of the sites
almost cancel, so their mean is much smaller than each of them. The questions are
explained in `federation.questions`. The server's part is in `server.evaluation`.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sagda.core import Point, zeros_like
from sagda.data.federation import Federation
from sagda.federation.plan import Plan, on_host
from sagda.federation.protocol.wire import Parcel, Spec
from sagda.federation.questions import BITS, NODES, ScoreCounts
from sagda.problems.base import Problem
from sagda.problems.metrics import mean_loss
from sagda.simulator.setup import Ops, numbers, on_device


def measured(plan: Plan, rows: Federation, z: Point, question: str) -> Parcel:
    """Return the answer to `question` at the point z, as named arrays."""
    if plan.problem.uses_torch:
        from sagda.simulator.torch.objective import torch_sums

        tree, scores = torch_sums(ASKED[question], plan.problem, rows, z)
    else:
        with jax.enable_x64(True):
            wide = lambda tree: jax.tree.map(lambda a: on_device(a, np.float64), tree)
            table, weight = wide(numbers(rows.data)), wide(rows.weight)
            z, problem = wide(z), plan.problem
            tree = on_host(program(question)(problem, z, table, weight))
            scores = problem.score(z.x, table)
    parcel = Spec.of(tree).pack(tree)
    if scores is None:
        return parcel
    return parcel | counted(np.asarray(scores), np.asarray(rows.data.label))


@cache
def program(question: str) -> Callable:
    """Return the compiled function that answers `question`."""
    return jax.jit(partial(ASKED[question], ops=Ops(jnp.stack, jax.value_and_grad)))


def at_point(problem: Problem, z: Point, rows: Any, weight: Any, ops: Any) -> Any:
    """Compute f_i, the mean loss of this site, and its gradient at z = (x, y).

    This is the answer to the question "point" of `federation.questions`.
    """
    f, grad = ops.value_and_grad(lambda z: mean_loss(problem, z, rows, weight))(z)
    return {"f": f, "grad": grad}


def along_y(problem: Problem, z: Point, rows: Any, weight: Any, ops: Any) -> Any:
    """Compute f_i, the mean loss of this site, at the three values `NODES` of y.

    This is the answer to the question "quadratic" of `federation.questions`. It also
    has the gradient in x at the last two values. That is enough, because f_i is
    quadratic in y and its gradient in x is linear in y.
    """
    f = lambda x, y: mean_loss(problem, Point(x, y), rows, weight)
    both = lambda y: ops.value_and_grad(f)(z.x, zeros_like(z.y) + y)
    values, slopes = zip(*map(both, NODES), strict=True)
    stack = lambda *a: ops.stack(a)
    return {"f": ops.stack(values), "grad": jax.tree.map(stack, *slopes[1:])}


def with_sums(problem: Problem, z: Point, rows: Any, weight: Any, ops: Any) -> Any:
    """Compute the answer of `at_point`, and sums over the rows of this site.

    This is the answer to the question "sums" of `federation.questions`. From the sums
    of all sites, the server computes y*, the maximiser of f over y.
    """
    sums = problem.inner_sums(z.x, rows, weight)
    return at_point(problem, z, rows, weight, ops) | {"sums": sums}


ASKED = {"point": at_point, "quadratic": along_y, "sums": with_sums}


def counted(score: np.ndarray, label: np.ndarray, bits: int = BITS) -> Parcel:
    """Count the rows of each class by score, with scores rounded to `bits` bits.

    Each score becomes an integer, and the integers have the same order as the scores.
    So the server can merge the counts of several sites. The bit patterns of negative
    floats have the reverse order, which the subtraction corrects.
    """
    word = np.asarray(score, np.float32).view(np.int32)
    ordered = np.where(word < 0, np.int32(-(2**31)) - word, word)
    value, place = np.unique(ordered >> (32 - bits), return_inverse=True)
    positive = label > 0
    count = lambda which: np.bincount(place[which], minlength=len(value))
    counts = ScoreCounts(value, count(positive), count(~positive))
    counts = jax.tree.map(np.int32, counts)
    return Spec.of(counts).pack(counts)
