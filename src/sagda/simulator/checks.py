"""Checks before a simulation compiles anything; each error is one sentence.

Checks of a single option are in `options.py`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from sagda import check
from sagda.check import BadValue, quoting
from sagda.core import Point
from sagda.data.federation import Federation, Table
from sagda.keys import root_key
from sagda.methods import Method
from sagda.problems.base import Problem
from sagda.problems.metrics import ChosenMetrics, in_order, measure
from sagda.problems.sets import check_set
from sagda.simulator.options import RunOptions
from sagda.simulator.setup import Setup, numbers


def check_run(
    methods: Sequence[Method],
    problem: Problem,
    federation: Federation,
    options: RunOptions,
) -> None:
    """Raise unless methods, problem, data and options fit each other."""
    for method in methods:
        check.kind("method", method, Method, "such as sagda.algorithm('sagda-i')")
    check.kind("problem", problem, Problem, "such as sagda.AUC.of(federation)")
    check.kind("federation", federation, Federation, "such as sagda.partition(table)")
    M, largest = federation.clients, int(federation.size.max())
    if options.cohort is not None:
        what = ", the clients"
        check.integer("cohort", options.cohort, low=1, high=M, what=what)
    if options.batch_size is not None:
        what = ", the rows of the largest client (None takes all)"
        check.integer("batch_size", options.batch_size, low=1, high=largest, what=what)
    for method in methods:
        check_algorithm(method, problem, options.chosen_metrics)
    problem.check(federation)
    if options.test is not None:
        check_test(options.test, federation)


def check_algorithm(method: Method, problem: Problem, metrics: ChosenMetrics) -> None:
    """Raise if two phases share a name, or a metric cannot be measured."""
    algorithm = method.build()
    names = [phase.name for phase in (*algorithm.opening, *algorithm.phases)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise BadValue(f"{method.name}: two phases are called {twice[0]!r}.")
    for name, metric in metrics:
        if metric.possible is not None and not metric.possible(problem, algorithm):
            raise BadValue(
                f"`metrics` may contain {name} only where {metric.condition}, which is "
                f"not so for {method.name} on {type(problem).__name__}."
            )


def check_test(test: Any, federation: Federation) -> None:
    """Raise unless test rows have the features and labels of the training rows."""
    check.kind("test", test, Table, "such as load(name).test")
    if not isinstance(federation.data, Table):
        raise BadValue("`test` may be given only with a federation of labelled rows.")
    width, expected = np.shape(test.features)[1:], federation.data.features.shape[1:]
    if width != expected or not np.isin(test.label, (-1, 1)).all():
        raise BadValue(
            f"`test` must have {expected[0]} features and labels -1 and +1 as the rows "
            f"trained on, got {width[0] if width else 'no'} features and labels from "
            f"{np.min(test.label)} to {np.max(test.label)}."
        )


def checked_starts(problem: Problem, starts: Any, given: Point | None) -> Point:
    """The starts of all runs: the problem's own, or the user's for every run.

    Raises unless they are feasible points of the right shapes.
    """
    if not isinstance(starts, Point) or not jax.tree.leaves(starts.y):
        raise BadValue(
            f"{type(problem).__name__}.init must return Point(x, y) with arrays in "
            f"both halves, got {type(starts).__name__}."
        )
    if given is not None:
        starts = given_starts(given, starts)
    check_feasible(problem, starts)
    return starts


def given_starts(start: Point, starts: Point) -> Point:
    """The user's start for every run, if it has the shapes of the problem's own."""
    shapes = lambda tree: jax.tree.map(np.shape, tree)
    expected = jax.tree.map(lambda a: a.shape[1:], starts)
    alike = jax.tree.structure(start) == jax.tree.structure(starts)
    if not alike or shapes(start) != expected:
        raise BadValue(
            f"`start` must have the shapes {expected} of the problem's own start, got "
            f"{shapes(start)}."
        )
    if not all(np.isfinite(a).all() for a in jax.tree.leaves(start)):
        raise BadValue("`start` must be finite.")
    return jax.tree.map(lambda a, b: np.broadcast_to(a, b.shape), start, starts)


def check_feasible(problem: Problem, starts: Point) -> None:
    """Raise unless every run's start lies in the problem's sets."""
    for name, convex_set, tree in zip(
        "xy", problem.sets(), (starts.x, starts.y), strict=True
    ):
        check_set(f"{name}_in", convex_set)
        if convex_set is None:
            continue
        convex_set.fit(name, jax.tree.map(lambda a: a[0], tree))
        if not np.all(jax.vmap(convex_set.holds)(tree)):
            raise BadValue(
                f"the start of `{name}` must lie in {convex_set}, and does not; its "
                "`project` gives the nearest point that does."
            )


def check_loss(setup: Setup, z: Point) -> None:
    """Raise unless the loss fits the data and gives one value per row."""
    problem, table = setup.clients.problem, setup.clients.table
    loss = partial(jax.eval_shape, problem.loss, z, table, root_key(0))
    rows = len(jax.tree.leaves(table)[0])
    check_losses(problem, loss, jax.ShapeDtypeStruct, rows)


def check_losses(
    problem: Problem, loss: Callable[[], Any], kind: type, rows: int
) -> None:
    """Raise unless `loss()` gives one value per row, in an array of this kind."""
    name = type(problem).__name__
    with quoting(f"the loss of {name} does not fit the data"):
        losses = loss()
    shape = tuple(losses.shape) if isinstance(losses, kind) else None
    if shape != (rows,):
        result = f"a {type(losses).__name__}" if shape is None else f"shape {shape}"
        raise BadValue(
            f"the loss of {name} must have one value per row, got {result} for {rows} "
            "rows; leave their mean to sagda."
        )


def columns_of(
    problem: Problem, federation: Federation, test: Table | None
) -> list[str]:
    """The names of the columns that evaluations measure. Nothing is computed."""

    def evaluated(key: Any, rows: Any, weight: Any, owner: Any) -> tuple[Any, Any]:
        z = problem.init(key)
        columns = measure(problem, z, rows, weight, owner, federation.clients)
        return columns, problem.score(z.x, rows)

    if problem.uses_torch:  # nothing can be traced
        from sagda.simulator.torch.evaluator import torch_columns

        columns, scores = torch_columns(problem, federation)
    else:
        rows = numbers(problem.columns(federation))
        given = rows, federation.weight, federation.owner
        columns, scores = jax.eval_shape(evaluated, root_key(0), *given)
    names = in_order(columns)
    if scores is not None:
        names += ["auc_train"] if test is None else ["auc_train", "auc_test"]
    return names
