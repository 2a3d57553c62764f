"""The columns of a history: how they are measured, labelled and compared."""

import re
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sagda.core import Point, minus
from sagda.keys import root_key
from sagda.problems.base import Problem
from sagda.problems.inner import maximise, norm_sq

# The columns that every problem measures, in the order of a history's columns.
COLUMNS = (
    "grad_phi_sq",
    "phi",
    "grad_x_sq",
    "grad_y_sq",
    "f",
    "gap",
    "worst_client_loss",
)
OPTIONAL = ("drift", "variate_lag", "potential")


class Metric(NamedTuple):
    """How reports, charts and terminals present a column of a history."""

    label: str  # in legends, tables and on axes
    short: str = ""  # in headings, where the label is too long
    symbol: str = ""  # the same in ASCII, for progress lines
    logarithmic: bool = False  # drawn on a logarithmic axis
    judged: bool = False  # runs may be compared by it; smaller is better
    shown: bool = True  # in reports


# One entry per column. Reports show metrics in this order, and compare runs by the
# first `judged` one that they have.
METRICS: dict[str, Metric] = {
    "grad_phi_sq": Metric(
        "‖∇Φ(x)‖²", "‖∇Φ‖²", "||grad Phi||^2", logarithmic=True, judged=True
    ),
    "grad_x_sq": Metric(
        "‖∇ₓf(x, y)‖²", "‖∇ₓf‖²", "||grad_x f||^2", logarithmic=True, judged=True
    ),
    "grad_y_sq": Metric(
        "‖∇ᵧf(x, y)‖²", "‖∇ᵧf‖²", "||grad_y f||^2", logarithmic=True, judged=True
    ),
    "frechet": Metric(
        "Fréchet distance", "Fréchet", "Frechet", logarithmic=True, judged=True
    ),
    "f": Metric("f(x, y)", "f", judged=True),
    "gap": Metric("Φ(x) − f(x, y)", logarithmic=True),
    "phi": Metric("Φ(x)"),
    "worst_client_loss": Metric("worst client"),
    "auc_test": Metric("test AUC"),
    "auc_train": Metric("training AUC"),
    "distance_sq": Metric("squared distance", logarithmic=True),
    "worst_loss": Metric("largest loss of a client"),
    "mean_loss": Metric("mean loss of the clients"),
    "difference": Metric("difference between groups, of probabilities"),
    "disparity": Metric("difference between groups, of decisions"),
    "drift": Metric("client drift", logarithmic=True),
    "variate_lag": Metric("error of the control variates", logarithmic=True),
    "potential": Metric("Φ(x) − f(x, y)/10"),
    "inner_residual": Metric("residual of the inner maximum", shown=False),
    "share": Metric("share of a class", shown=False),  # share_0, share_1, ...
}

# What a run spends, and the title of an axis that shows it.
AXES = {
    "round": "rounds",
    "samples": "samples per client",
    "bytes": "bytes",
    "megabytes": "megabytes, both directions",
    "seconds": "seconds in rounds",
}


def metric_of(name: str) -> Metric:
    """How to present the column `name`; a custom metric is labelled by its name."""
    number = re.fullmatch(r"share_\d+", name)
    found = METRICS.get("share" if number else name, Metric(name))
    return found._replace(short=found.short or found.label, symbol=found.symbol or name)


def judged_by(columns: Collection[str]) -> str:
    """The column by which runs with these columns are compared."""
    return next(name for name, one in METRICS.items() if one.judged and name in columns)


class Outer(NamedTuple):
    """Phi(x) = max over y of f(x, y), and what it was computed from."""

    phi: jax.Array
    grad: Any  # grad Phi(x) = grad_x f(x, y*)
    y: Any  # y*(x)
    residual: jax.Array | None  # how far y* is from a maximum; None in closed form


def mean_loss(problem: Problem, z: Point, rows: Any, weight: jax.Array) -> jax.Array:
    """f(z), the clients' mean of f_i; a noisy loss always sees the same noise."""
    return weight @ problem.loss(z, rows, root_key(0))


def outer(problem: Problem, z: Point, rows: Any, weight: jax.Array) -> Outer:
    """Phi and its gradient at z.x; z.y is where a solver starts."""
    f = lambda x, y: mean_loss(problem, Point(x, y), rows, weight)
    y, residual = problem.best_y(z.x, rows, weight), None
    if y is None:
        project = lambda y: problem.project(Point(z.x, y)).y
        y, residual = maximise(lambda y: f(z.x, y), project, z.y)
    phi, grad = jax.value_and_grad(f)(z.x, y)
    return Outer(phi, grad, y, residual)


def stationarity(problem: Problem, z: Point, grad: Any) -> jax.Array:
    """||grad Phi||^2; where x is held in a set, ||x - P(x - grad Phi)||^2.

    Both vanish at a solution, the gradient itself not where the solution lies on the
    set's boundary.
    """
    leaves = jax.tree.leaves
    # An x that projecting hands back as it came is free.
    kept = zip(leaves(problem.project(z).x), leaves(z.x), strict=True)
    if all(a is b for a, b in kept):
        return norm_sq(grad)
    return norm_sq(minus(z.x, problem.project(Point(minus(z.x, grad), z.y)).x))


def measure(
    problem: Problem, z: Point, rows: Any, weight: jax.Array, owner: jax.Array, M: int
) -> dict[str, jax.Array]:
    """The columns of a problem: those of Phi, or without it both gradients of f."""
    losses = problem.loss(z, rows, root_key(0))
    per_client = jnp.zeros(M, losses.dtype).at[owner].add(M * weight * losses)
    f = weight @ losses
    columns = {"f": f, "worst_client_loss": per_client.max()}
    if problem.measures_phi:
        best = outer(problem, z, rows, weight)
        columns |= {
            "grad_phi_sq": stationarity(problem, z, best.grad),
            "phi": best.phi,
            "gap": best.phi - f,
        }
        if best.residual is not None:
            columns["inner_residual"] = best.residual
    else:
        grad = jax.grad(lambda z: mean_loss(problem, z, rows, weight))(z)
        columns |= {"grad_x_sq": norm_sq(grad.x), "grad_y_sq": norm_sq(grad.y)}
    return columns | problem.metrics(z, rows, weight)


def auc(score: np.ndarray, label: np.ndarray) -> float:
    """The share of (positive, negative) pairs ranked rightly; a tie counts a half.

    By sorting the negatives only: this runs at every evaluation, and `roc_auc_score`
    takes more than ten times as long.

    Examples:
        >>> auc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([-1, -1, 1, 1]))
        0.875
    """
    if not np.isfinite(score).all():
        return float("nan")
    positive, negative = score[label > 0], np.sort(score[label <= 0])
    if len(positive) == 0 or len(negative) == 0:
        return float("nan")
    positive = np.sort(positive)
    below = np.searchsorted(negative, positive, "left").sum()
    not_above = np.searchsorted(negative, positive, "right").sum()
    return float((below + not_above) / (2 * len(positive) * len(negative)))
