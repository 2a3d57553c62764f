"""The columns of a history: how they are measured, labelled and compared.

A new optional metric is an entry of `OPTIONAL`, with its label in `METRICS`. Users can
also pass functions: `simulate(..., metrics={"name": function})`. Evaluators call these
formulas; the counts of bytes and gradients are in `algorithms.costs`.
"""

import numbers
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sagda import check
from sagda.check import BadValue
from sagda.core import Algorithm, Point, minus
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


def in_order(columns: Collection[str]) -> list[str]:
    """Names of columns in a history's order; those of a problem's own come last."""
    first = [name for name in COLUMNS if name in columns]
    return list(dict.fromkeys([*first, *columns]))


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
    metric = METRICS.get("share" if number else name, Metric(name))
    return metric._replace(
        short=metric.short or metric.label, symbol=metric.symbol or name
    )


def judged_by(columns: Collection[str]) -> str:
    """The column by which runs with these columns are compared."""
    return next(name for name, one in METRICS.items() if one.judged and name in columns)


class MetricInputs(NamedTuple):
    """What a metric can be computed from: one run at an evaluation.

    Arrays are JAX's inside a compiled program, or PyTorch's.
    """

    problem: Problem
    z: Point
    rows: Any  # all clients' rows, as `Problem.columns` gives them
    weight: Any  # [rows]; `weight @ values` is the clients' mean of values per row
    columns: Mapping[str, Any]  # the columns measured before
    drift: Any  # the mean over S_t of ||z_i^{K+1} - z_t||^2 in the last round
    mean_over_clients: Callable  # of function(f_i, v_i), with its memory v_i


@dataclass(frozen=True)
class OptionalMetric:
    """A column that is measured only if a user asks for it."""

    value: Callable[[MetricInputs], Any]  # one number
    condition: str = ""  # where it can be measured, for the message
    possible: Callable[[Problem, Algorithm], bool] | None = None
    needs: tuple[str, ...] = ()  # fields of the simulator's carry that it uses
    custom: bool = False


class CustomValue(NamedTuple):
    """A user's function as the value of an `OptionalMetric`; equal functions compare
    equal, so that they share a compiled program."""

    function: Callable

    def __call__(self, inputs: MetricInputs) -> Any:
        return self.function(inputs.problem, inputs.z, inputs.rows, inputs.weight)


def variate_lag(inputs: MetricInputs) -> Any:
    """The mean over clients of ||v_i - grad f_i(z)||^2."""
    z = inputs.z
    return inputs.mean_over_clients(
        lambda f, v_i: norm_sq(v_i - f.grad(z, f.whole(root_key(0))))
    )


def potential(inputs: MetricInputs) -> Any:
    """Phi - f/10."""
    columns = inputs.columns
    if "phi" not in columns:  # a PyTorch problem without a closed form for y*
        raise BadValue(
            "`metrics` may contain potential only where Phi is measured, which needs "
            "a closed form of the best y here."
        )
    return columns["phi"] - columns["f"] / 10


# One entry adds a metric that users can ask for by name.
OPTIONAL: dict[str, OptionalMetric] = {
    "drift": OptionalMetric(
        lambda inputs: inputs.drift,
        "clients report how far they moved",
        lambda problem, algorithm: any(p.delta is not None for p in algorithm.phases),
        needs=("drift",),
    ),
    "variate_lag": OptionalMetric(
        variate_lag,
        "clients keep control variates",
        lambda problem, algorithm: algorithm.mean is not None,
        needs=("memory",),
    ),
    "potential": OptionalMetric(
        potential,
        "Phi is measured",
        lambda problem, algorithm: problem.measures_phi,
    ),
}

# (name, metric) pairs: hashable, since they are part of what an evaluation compiles.
ChosenMetrics: TypeAlias = tuple[tuple[str, OptionalMetric], ...]
MetricFunction: TypeAlias = Callable[[Any, Point, Any, Any], Any]
MetricArgument: TypeAlias = (
    str | MetricFunction | Sequence[str | MetricFunction] | Mapping[str, MetricFunction]
)


def chosen_metrics(metrics: MetricArgument) -> ChosenMetrics:
    """Names of optional metrics, functions, or a mapping of names to functions."""
    if isinstance(metrics, str) or callable(metrics):
        metrics = (metrics,)
    if isinstance(metrics, Mapping):
        pairs = [(name, function) for name, function in metrics.items()]
    else:
        pairs = [(getattr(m, "__name__", "<lambda>"), m) for m in metrics]
        pairs = [(m, m) if isinstance(m, str) else (name, m) for name, m in pairs]
    return tuple({name: chosen_metric(name, value) for name, value in pairs}.items())


def chosen_metric(name: Any, metric: Any) -> OptionalMetric:
    """The optional metric of that name, or a custom one."""
    if isinstance(metric, str):
        return OPTIONAL[check.choice("metrics", metric, OPTIONAL)]
    if not callable(metric):
        expected = "names, or functions (problem, z, rows, weight)"
        raise check.wrong_kind("metrics", expected, metric)
    if not isinstance(name, str) or not name.isidentifier():
        raise BadValue(
            f"`metrics` must give each function a name, got {name!r}; write "
            'metrics={"x_norm": function}.'
        )
    return OptionalMetric(CustomValue(metric), custom=True)


def optional_columns(
    inputs: MetricInputs, metrics: ChosenMetrics, number: Callable[[Any], Any]
) -> dict[str, Any]:
    """The values of the chosen metrics, each passed through `number`."""
    columns = {}
    for name, metric in metrics:
        if name in inputs.columns:
            raise BadValue(
                f"`metrics` may not define {name!r}, which is a column that "
                f"{type(inputs.problem).__name__} measures; choose another name."
            )
        value = metric.value(inputs)
        if not isinstance(value, numbers.Number) and np.shape(value) != ():
            raise BadValue(
                f"metric {name!r} must be one number, got shape "
                f"{tuple(np.shape(value))}."
            )
        columns[name] = number(value)
    return columns


class Outer(NamedTuple):
    """Phi(x) = max over y of f(x, y), its gradient, and the best y."""

    phi: jax.Array
    grad: Any  # grad Phi(x) = grad_x f(x, y*)
    y: Any  # y*(x)
    residual: jax.Array | None  # of the solver for y*; None for a closed form


def mean_loss(problem: Problem, z: Point, rows: Any, weight: jax.Array) -> jax.Array:
    """f(z), the clients' mean of f_i. A noisy loss gets the same noise every time."""
    return weight @ problem.loss(z, rows, root_key(0))


def outer(problem: Problem, z: Point, rows: Any, weight: jax.Array) -> Outer:
    """Phi and its gradient at z.x. A solver for y* starts at z.y."""
    f = lambda x, y: mean_loss(problem, Point(x, y), rows, weight)
    y, residual = problem.best_y(z.x, rows, weight), None
    if y is None:
        project = lambda y: problem.project(Point(z.x, y)).y
        y, residual = maximise(lambda y: f(z.x, y), project, z.y)
    phi, grad = jax.value_and_grad(f)(z.x, y)
    return Outer(phi, grad, y, residual)


def stationarity(problem: Problem, z: Point, grad: Any) -> jax.Array:
    """||grad Phi||^2, or ||x - P(x - grad Phi)||^2 where x is constrained to a set.

    Both are zero at a solution. At a solution on the boundary of a set, the gradient
    alone is not.
    """
    leaves = jax.tree.leaves
    # Without a set for x, `project` returns the same arrays.
    pairs = zip(leaves(problem.project(z).x), leaves(z.x), strict=True)
    if all(a is b for a, b in pairs):
        return norm_sq(grad)
    return norm_sq(minus(z.x, problem.project(Point(minus(z.x, grad), z.y)).x))


def measure(
    problem: Problem, z: Point, rows: Any, weight: jax.Array, owner: jax.Array, M: int
) -> dict[str, jax.Array]:
    """The columns that a problem measures: those of Phi, or both gradients of f."""
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
    """The share of (positive, negative) pairs in the right order; a tie counts half.

    It sorts the two classes separately: this runs at every evaluation, and
    `roc_auc_score` takes more than ten times as long.

    Examples:
        >>> auc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([-1, -1, 1, 1]))
        0.875
    """
    if not np.isfinite(score).all():
        return float("nan")
    positive, negative = np.sort(score[label > 0]), np.sort(score[label <= 0])
    below = np.searchsorted(negative, positive, "left")
    upto = np.searchsorted(negative, positive, "right")
    return share_of_pairs(np.ones(len(positive)), below, upto, len(negative))


def auc_of_counts(positive: np.ndarray, negative: np.ndarray) -> float:
    """The AUC from how many rows of each class have each score, in ascending order.

    Examples:
        >>> auc_of_counts(np.array([0, 1, 1]), np.array([1, 1, 0]))
        0.875
    """
    upto = np.cumsum(negative)
    return share_of_pairs(positive, upto - negative, upto, negative.sum())


def share_of_pairs(positive: Any, below: Any, upto: Any, negatives: Any) -> float:
    """The weighted AUC; NaN without a pair.

    Args:
        positive: weights of the positive rows, or counts of equal ones.
        below: for each of them, the weight of negatives with a lower score.
        upto: likewise, with a lower or the same score.
        negatives: the weight of all negatives.
    """
    pairs = positive.sum() * negatives
    # Integers below 2^53 are exact in double precision, and so is this sum of them.
    return float(positive @ (below + upto) / (2 * pairs)) if pairs else float("nan")
