"""Federated evaluation: sums that clients send, and the columns made of them.

Everything is measured in double precision: differences of clients' gradients near a
solution are small against the gradients themselves.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sagda.core import Point, zeros_like
from sagda.data.federation import Federation, Table
from sagda.federation.plan import Plan, on_host
from sagda.federation.protocol.wire import Parcel, Part, Refused, Spec
from sagda.problems.base import Problem
from sagda.problems.inner import norm_sq
from sagda.problems.metrics import COLUMNS, mean_loss
from sagda.scoring.calibration import calibrated
from sagda.simulator.setup import Ops, numbers, on_device

NODES = (-1.0, 0.0, 1.0)  # values of a scalar y at which f is told
SCORES = ("score", "positives", "negatives")
BITS = 24  # of a score in single precision: sign, exponent and fifteen more


def question_of(problem: Problem, share_losses: bool) -> str:
    """What an evaluation asks first.

    quadratic  Phi in one exchange, for y a single number in which f is quadratic
    sums       Phi in two: what decides y*, then f at y*
    point      f and its gradients only
    """
    if problem.quadratic_in_y:
        return "quadratic"
    return "sums" if share_losses and problem.has("inner_sums") else "point"


# A client's side.


def measured(plan: Plan, rows: Federation, z: Point, question: str) -> Parcel:
    """What this client sends back: means over its own rows."""
    if plan.problem.uses_torch:
        from sagda.simulator.torch.objective import torch_sums

        tree, scores = torch_sums(ASKED[question], plan.problem, rows, z)
        parcel = Spec.of(tree).pack(tree)
        return parcel | counted(scores, np.asarray(rows.data.label))
    with jax.enable_x64(True):
        wide = lambda tree: jax.tree.map(lambda a: on_device(a, np.float64), tree)
        table, weight = wide(numbers(rows.data)), wide(rows.weight)
        z, problem = wide(z), plan.problem
        tree = on_host(program(question)(problem, z, table, weight))
        parcel = Spec.of(tree).pack(tree)
        scores = problem.score(z.x, table)
    if scores is not None:
        parcel |= counted(np.asarray(scores), np.asarray(rows.data.label))
    return parcel


@cache
def program(question: str) -> Callable:
    return jax.jit(partial(ASKED[question], ops=Ops(jnp.stack, jax.value_and_grad)))


def at_point(problem: Problem, z: Point, rows: Any, weight: Any, ops: Any) -> Any:
    """f_i and its gradient at z."""
    f, grad = ops.value_and_grad(lambda z: mean_loss(problem, z, rows, weight))(z)
    return {"f": f, "grad": grad}


def along_y(problem: Problem, z: Point, rows: Any, weight: Any, ops: Any) -> Any:
    """f_i at three values of y, and its gradient in x at two: y is one number."""
    f = lambda x, y: mean_loss(problem, Point(x, y), rows, weight)
    both = lambda y: ops.value_and_grad(f)(z.x, zeros_like(z.y) + y)
    values, slopes = zip(*map(both, NODES), strict=True)
    stack = lambda *a: ops.stack(a)
    return {"f": ops.stack(values), "grad": jax.tree.map(stack, *slopes[1:])}


def with_sums(problem: Problem, z: Point, rows: Any, weight: Any, ops: Any) -> Any:
    """f_i and its gradient, and what the server needs of this client to have y*."""
    sums = problem.inner_sums(z.x, rows, weight)
    return at_point(problem, z, rows, weight, ops) | {"sums": sums}


ASKED = {"point": at_point, "quadratic": along_y, "sums": with_sums}


def one_row(width: int) -> tuple[Any, Any]:
    """The shapes of a row and of its weight, to trace with."""
    column = lambda dtype, *shape: jax.ShapeDtypeStruct((1, *shape), dtype)
    number = column(np.float64)
    rows = Table(column(np.float64, width), number, position=column(np.int32))
    return rows, number


def counted(score: np.ndarray, label: np.ndarray, bits: int = BITS) -> Parcel:
    """How many rows of either class have each score, rounded to so many bits.

    Scores as whole numbers in the order of the scores themselves, so that counts of
    several clients can be added up.
    """
    word = np.asarray(score, np.float32).view(np.int32)
    ordered = np.where(word < 0, np.int32(-(2**31)) - word, word)
    value, place = np.unique(ordered >> (32 - bits), return_inverse=True)
    positive = label > 0
    count = lambda which: np.bincount(place[which], minlength=len(value))
    columns = value, count(positive), count(~positive)
    return {
        name: Part("<i4", value.shape, np.ascontiguousarray(c, "<i4").tobytes())
        for name, c in zip(SCORES, columns, strict=True)
    }


# The server's side.


def expected(plan: Plan, z: Point, question: str) -> Spec:
    """What a client must send, but for the counts of scores."""
    problem = plan.problem
    with jax.enable_x64(True):
        wide = lambda a: jax.ShapeDtypeStruct(np.shape(a), np.float64)
        z = jax.tree.map(wide, z)
        if question == "quadratic":
            two = lambda a: jax.ShapeDtypeStruct((2, *a.shape), a.dtype)
            values = jax.ShapeDtypeStruct((len(NODES),), np.float64)
            return Spec.of({"f": values, "grad": jax.tree.map(two, z.x)})
        tree = {"f": wide(0.0), "grad": z}
        if question == "sums":
            # As the rows of one client would give them, whatever their number.
            tree["sums"] = jax.eval_shape(problem.inner_sums, z.x, *one_row(plan.width))
        return Spec.of(tree)


def opened(spec: Spec, parcel: Any, rows: int | None) -> tuple[Any, Any]:
    """A client's means and its counts of scores, or `Refused`."""
    if not isinstance(parcel, dict):
        raise Refused("format", "a parcel must hold parts by name.")
    own = {name: part for name, part in parcel.items() if name not in SCORES}
    tree = spec.unpack(own)
    if len(own) == len(parcel):
        return tree, None
    columns = []
    for name in SCORES:
        part = parcel.get(name)
        if not isinstance(part, Part) or part.dtype != "<i4" or len(part.shape) != 1:
            raise Refused("format", f"{name} must be a row of whole numbers.")
        size = part.shape[0]
        if size < 1 or len(part.data) != 4 * size or (rows and size > rows):
            raise Refused("size", f"{name} must have up to {rows} entries.")
        columns.append(np.frombuffer(part.data, "<i4").astype(np.int64))
    if len({len(column) for column in columns}) != 1:
        raise Refused("shape", "counts of scores must be of one length.")
    total = int(columns[1].sum() + columns[2].sum())
    if min(columns[1].min(), columns[2].min()) < 0 or (rows and total != rows):
        raise Refused("counts", f"counts of scores must add up to {rows} rows.")
    return tree, columns


def mean_of(replies: Mapping[str, tuple[Any, Any]]) -> Any:
    """The mean of what clients sent, in the order of their names."""
    trees = [replies[name][0] for name in sorted(replies)]
    return jax.tree.map(lambda *a: np.mean(a, axis=0), *trees)


def columns_of(
    z: Point,
    question: str,
    replies: Mapping[str, tuple[Any, Any]],
    outer: Mapping[str, tuple[Any, Any]] | None = None,
) -> dict[str, float]:
    """The columns of a history row, from the clients that answered.

    `outer`: what they said of (x, y*), after "sums".
    """
    mean = mean_of(replies)
    own = lambda tree: float(tree["f"])
    if question == "quadratic":
        own = lambda tree: polynomial(tree["f"])(float(z.y))
    columns = {
        "f": own(mean),
        "worst_client_loss": max(own(tree) for tree, _ in replies.values()),
    }
    with jax.enable_x64(True):
        if question == "quadratic":
            columns |= at_best(mean)
        elif outer is not None:
            best = mean_of(outer)
            columns["phi"] = own(best)
            columns["grad_phi_sq"] = float(norm_sq(best["grad"].x))
        else:
            columns["grad_x_sq"] = float(norm_sq(mean["grad"].x))
            columns["grad_y_sq"] = float(norm_sq(mean["grad"].y))
    if "phi" in columns:
        columns["gap"] = columns["phi"] - columns["f"]
    columns = {name: columns[name] for name in COLUMNS if name in columns}
    counts = [counts for _, counts in replies.values()]
    if all(c is not None for c in counts):
        columns["auc_train"] = pooled_auc(counts)
    return columns | {"evaluated": len(replies)}


def polynomial(f: np.ndarray) -> Callable[[float], float]:
    """The quadratic through f(-1), f(0) and f(1)."""
    below, at, above = map(float, f)
    slope, bend = (above - below) / 2, (above + below) / 2 - at
    return lambda y: at + slope * y + bend * y * y


def at_best(mean: Any) -> dict[str, float]:
    """Phi and its gradient: f is a quadratic in y, its gradient in x a line."""
    below, at, above = map(float, mean["f"])
    bend = above + below - 2 * at
    if not bend < 0:  # some client sent numbers that no such function has
        return {"phi": float("nan"), "grad_phi_sq": float("nan")}
    y = (below - above) / (2 * bend)
    grad = jax.tree.map(lambda g: g[0] + y * (g[1] - g[0]), mean["grad"])
    return {"phi": polynomial(mean["f"])(y), "grad_phi_sq": float(norm_sq(grad))}


def calibration_of(counts: list[list[np.ndarray]]) -> list[float] | None:
    """Slope and offset, from the clients' counts by score; none if scores are not."""
    parts = []
    for score, positive, negative in counts:
        ordered = (score << (32 - BITS)).astype(np.int32)
        word = np.where(ordered < 0, np.int32(-(2**31)) - ordered, ordered)
        value = word.view(np.float32).astype(np.float64)
        if not np.isfinite(value).all():
            return None
        parts.append((np.repeat(value, positive), np.ones(positive.sum(), bool)))
        parts.append((np.repeat(value, negative), np.zeros(negative.sum(), bool)))
    return list(calibrated(parts))


def pooled_auc(counts: list[list[np.ndarray]]) -> float:
    """The AUC over all clients' rows, from their counts by score; ties count a half."""
    score, positive, negative = (
        np.concatenate([c[i] for c in counts]) for i in range(3)
    )
    _, place = np.unique(score, return_inverse=True)
    positive = np.bincount(place, positive)
    negative = np.bincount(place, negative)
    if not positive.sum() or not negative.sum():
        return float("nan")
    below = np.cumsum(negative) - negative
    won = positive @ (below + negative / 2)
    return float(won / (positive.sum() * negative.sum()))
