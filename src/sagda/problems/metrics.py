"""The measures of progress: stationarity of Phi, gaps, AUC, and the clients' spread."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sagda.core import Point
from sagda.keys import root_key
from sagda.problems.base import Problem
from sagda.problems.inner import maximise, norm_sq

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
    minus = lambda a, b: jax.tree.map(lambda p, q: p - q, a, b)
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
