"""The site's half of an evaluation: means over its own rows, and counts by score.

Everything is computed in double precision. Near a solution the gradients of sites
almost cancel, so their mean is small compared with each of them. The server's half is
in `server.evaluation`, and what both share in `federation.questions`.
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
    """The answer to a question at z, as parts by name."""
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
    """The compiled answer to a question."""
    return jax.jit(partial(ASKED[question], ops=Ops(jnp.stack, jax.value_and_grad)))


def at_point(problem: Problem, z: Point, rows: Any, weight: Any, ops: Any) -> Any:
    """f_i and its gradient at z: the question "point"."""
    f, grad = ops.value_and_grad(lambda z: mean_loss(problem, z, rows, weight))(z)
    return {"f": f, "grad": grad}


def along_y(problem: Problem, z: Point, rows: Any, weight: Any, ops: Any) -> Any:
    """f_i at the three `NODES`, its gradient in x at the last two: "quadratic"."""
    f = lambda x, y: mean_loss(problem, Point(x, y), rows, weight)
    both = lambda y: ops.value_and_grad(f)(z.x, zeros_like(z.y) + y)
    values, slopes = zip(*map(both, NODES), strict=True)
    stack = lambda *a: ops.stack(a)
    return {"f": ops.stack(values), "grad": jax.tree.map(stack, *slopes[1:])}


def with_sums(problem: Problem, z: Point, rows: Any, weight: Any, ops: Any) -> Any:
    """f_i, its gradient, and the sums from which the server computes y*: "sums"."""
    sums = problem.inner_sums(z.x, rows, weight)
    return at_point(problem, z, rows, weight, ops) | {"sums": sums}


ASKED = {"point": at_point, "quadratic": along_y, "sums": with_sums}


def counted(score: np.ndarray, label: np.ndarray, bits: int = BITS) -> Parcel:
    """How many rows of either class have each score, rounded to `bits` bits.

    A score becomes an integer that has the same order, so that the server can merge the
    counts of several sites. For negative floats the order of the bit patterns is the
    reverse, which the subtraction corrects.
    """
    word = np.asarray(score, np.float32).view(np.int32)
    ordered = np.where(word < 0, np.int32(-(2**31)) - word, word)
    value, place = np.unique(ordered >> (32 - bits), return_inverse=True)
    positive = label > 0
    count = lambda which: np.bincount(place[which], minlength=len(value))
    counts = ScoreCounts(value, count(positive), count(~positive))
    counts = jax.tree.map(np.int32, counts)
    return Spec.of(counts).pack(counts)
