"""The columns of a history: how they are measured, labelled and compared.

To add an optional metric, write one entry in `OPTIONAL` and its label in `LABELS`. For
a single run, pass a function: `simulate(..., metrics={"name": function})`. Counts of
bytes and gradients are not here: they are in `algorithms.costs`.
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

# The columns that `measure` computes, in the order in which a history has them.
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
    """Return the names in the order of a history. Columns of the problem come last."""
    first = [name for name in COLUMNS if name in columns]
    return list(dict.fromkeys([*first, *columns]))


class Metric(NamedTuple):
    """The presentation of one column of a history, in reports and in terminals."""

    label: str  # for legends, tables and axes
    short: str = ""  # for headings, if the label is too long
    symbol: str = ""  # in ASCII, for progress lines
    logarithmic: bool = False  # whether its axis is logarithmic
    judged: bool = False  # whether runs may be compared by it; smaller is better
    shown: bool = True  # whether reports show it


# One entry per column. Reports show metrics in this order. They compare runs by the
# first metric with `judged=True` that the runs have.
LABELS: dict[str, Metric] = {
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

# Measures of the cost of a run, each with the title of its axis in a chart.
AXES = {
    "round": "rounds",
    "samples": "samples per client",
    "bytes": "bytes",
    "megabytes": "megabytes, both directions",
    "seconds": "seconds in rounds",
}


def metric_of(name: str) -> Metric:
    """Return how to present the column `name`; for a custom metric, by its name."""
    number = re.fullmatch(r"share_\d+", name)
    metric = LABELS.get("share" if number else name, Metric(name))
    return metric._replace(
        short=metric.short or metric.label, symbol=metric.symbol or name
    )


def judged_by(columns: Collection[str]) -> str:
    """Return the column by which runs with these columns are compared."""
    return next(name for name, one in LABELS.items() if one.judged and name in columns)


class MetricInputs(NamedTuple):
    """The state of one run at an evaluation, from which metrics are computed.

    Arrays are JAX arrays inside a compiled program, or PyTorch tensors.
    """

    problem: Problem
    z: Point  # the iterate (x, y)
    rows: Any  # the rows of all clients, as `Problem.columns` returns them
    weight: Any  # [rows]; `weight @ values` is the mean over clients of client means
    columns: Mapping[str, Any]  # the columns measured before the optional metrics
    # The mean of ||z_i - z_t||^2 over the clients i of the last round. z_t is the
    # iterate at the start of the round, z_i that of client i after its local steps.
    drift: Any
    # `mean_over_clients(function)` is the mean of function(f_i, v_i) over all clients.
    # f_i is the objective of client i, and v_i is its memory.
    mean_over_clients: Callable


@dataclass(frozen=True)
class OptionalMetric:
    """A column that is measured only if a user asks for it."""

    value: Callable[[MetricInputs], Any]  # computes one number
    condition: str = ""  # when it can be measured, in words for an error message
    possible: Callable[[Problem, Algorithm], bool] | None = None  # checks `condition`
    needs: tuple[str, ...] = ()  # fields of the simulator's carry that it uses
    custom: bool = False  # whether a user wrote the function


class CustomValue(NamedTuple):
    """The function of a user, as the `value` of an `OptionalMetric`.

    Two objects with the same function are equal, and so share a compiled program.
    """

    function: Callable

    def __call__(self, inputs: MetricInputs) -> Any:
        return self.function(inputs.problem, inputs.z, inputs.rows, inputs.weight)


def variate_lag(inputs: MetricInputs) -> Any:
    """Return the mean over clients of ||v_i - grad f_i(z)||^2.

    v_i is the control variate of client i.
    """
    z = inputs.z
    return inputs.mean_over_clients(
        lambda f, v_i: norm_sq(v_i - f.grad(z, f.whole(root_key(0))))
    )


def potential(inputs: MetricInputs) -> Any:
    """Return Phi(x) - f(x, y)/10, the potential function of the convergence proofs."""
    columns = inputs.columns
    if "phi" not in columns:  # a PyTorch problem without a closed form of the best y
        raise BadValue(
            "`metrics` may contain potential only where Phi is measured, which needs "
            "a closed form of the best y here."
        )
    return columns["phi"] - columns["f"] / 10


# The optional metrics that users can ask for by name.
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

# Pairs (name, metric). They are hashable, because evaluation programs depend on them.
ChosenMetrics: TypeAlias = tuple[tuple[str, OptionalMetric], ...]
MetricFunction: TypeAlias = Callable[[Any, Point, Any, Any], Any]
MetricArgument: TypeAlias = (
    str | MetricFunction | Sequence[str | MetricFunction] | Mapping[str, MetricFunction]
)


def chosen_metrics(metrics: MetricArgument) -> ChosenMetrics:
    """Turn the metrics that a user chose into pairs (name, metric), without duplicates.

    Args:
        metrics: one name or function, a list of names and functions, or a dict from
            names to functions. A name in a list must be a key of `OPTIONAL`. A function
            in a list gets a column with its Python name.
    """
    if isinstance(metrics, str) or callable(metrics):
        metrics = (metrics,)
    if isinstance(metrics, Mapping):
        pairs = [(name, function) for name, function in metrics.items()]
    else:
        pairs = [(getattr(m, "__name__", "<lambda>"), m) for m in metrics]
        pairs = [(m, m) if isinstance(m, str) else (name, m) for name, m in pairs]
    return tuple({name: chosen_metric(name, value) for name, value in pairs}.items())


def chosen_metric(name: Any, metric: Any) -> OptionalMetric:
    """Return one optional metric.

    Args:
        name: the name of its column.
        metric: a key of `OPTIONAL`, or a function of the user.
    """
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
    """Return the values of the chosen metrics by name, each converted by `number`."""
    columns = {}
    for name, metric in metrics:
        if name in inputs.columns:
            raise BadValue(
                f"`metrics` must not define {name!r}, which is a column of "
                f"{type(inputs.problem).__name__}; choose another name."
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
    """Phi(x), the maximum of f(x, y) over y, with its gradient and the best y."""

    phi: jax.Array
    grad: Any  # the gradient of Phi at x: that of f in x, at the best y
    y: Any  # the best y
    residual: jax.Array | None  # see `maximise`; None for a closed form


def mean_loss(problem: Problem, z: Point, rows: Any, weight: jax.Array) -> jax.Array:
    """Return f(z), the mean of f_i(z) over clients.

    A noisy loss gets the same key, and so the same noise, in every call.
    """
    return weight @ problem.loss(z, rows, root_key(0))


def outer(problem: Problem, z: Point, rows: Any, weight: jax.Array) -> Outer:
    """Return Phi and its gradient at z.x. A solver for the best y starts at z.y."""
    f = lambda x, y: mean_loss(problem, Point(x, y), rows, weight)
    y, residual = problem.best_y(z.x, rows, weight), None
    if y is None:
        project = lambda y: problem.project(Point(z.x, y)).y
        y, residual = maximise(lambda y: f(z.x, y), project, z.y)
    phi, grad = jax.value_and_grad(f)(z.x, y)
    return Outer(phi, grad, y, residual)


def stationarity(problem: Problem, z: Point, grad: Any) -> jax.Array:
    """Return how far z.x is from a stationary point, given the gradient of Phi.

    It is ||grad Phi||^2 if x is free. If x must lie in a set, it is
    ||x - P(x - grad Phi)||^2, where P is the projection onto the set. Both are zero at
    a solution. On the boundary of a set, the gradient need not be zero at a solution.
    """
    leaves = jax.tree.leaves
    # If x is free, `project` returns the same array objects.
    pairs = zip(leaves(problem.project(z).x), leaves(z.x), strict=True)
    if all(a is b for a, b in pairs):
        return norm_sq(grad)
    return norm_sq(minus(z.x, problem.project(Point(minus(z.x, grad), z.y)).x))


def measure(
    problem: Problem, z: Point, rows: Any, weight: jax.Array, owner: jax.Array, M: int
) -> dict[str, jax.Array]:
    """Return the columns that every history has, by name.

    They contain Phi and the squared norm of its gradient. If the problem does not
    measure Phi, they contain the squared norms of both gradients of f instead.

    Args:
        problem: the problem.
        z: the iterate.
        rows: the rows of all clients.
        weight: one weight per row, as in `MetricInputs`.
        owner: the number of the client of each row.
        M: the number of clients.
    """
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
    """Return the AUC: the share of (positive, negative) pairs in the right order.

    A pair with equal scores counts half. The function runs at every evaluation. It
    sorts the two classes separately, because `roc_auc_score` takes more than ten times
    as long.

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
    """Return the AUC, from the number of positive and negative rows with each score.

    Entry k of both arrays belongs to the k-th lowest score.

    Examples:
        >>> auc_of_counts(np.array([0, 1, 1]), np.array([1, 1, 0]))
        0.875
    """
    upto = np.cumsum(negative)
    return share_of_pairs(positive, upto - negative, upto, negative.sum())


def share_of_pairs(positive: Any, below: Any, upto: Any, negatives: Any) -> float:
    """Return the weighted AUC, or NaN if one of the classes has no rows.

    Args:
        positive: the weight of each positive row, or counts of rows with equal scores.
        below: for each entry of `positive`, the weight of the negative rows with a
            lower score.
        upto: the same for negative rows with a lower or equal score.
        negatives: the weight of all negative rows.
    """
    pairs = positive.sum() * negatives
    # Integers below 2^53 are exact in double precision, so the sum of counts is exact.
    return float(positive @ (below + upto) / (2 * pairs)) if pairs else float("nan")
