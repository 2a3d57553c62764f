"""Checks of a simulation before it compiles anything.

They find out whether methods, problem, data and options fit each other. A single option
is checked in `options.py`, and a plain value in `sagda/check.py`.
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
    """Raise unless the methods, the problem, the data and the options fit together."""
    for method in methods:
        check.kind("method", method, Method, "such as sagda.algorithm('sagda-i')")
    check.kind("problem", problem, Problem, "such as sagda.AUC.of(federation)")
    check.kind("federation", federation, Federation, "such as sagda.partition(table)")
    M, largest = federation.clients, int(federation.size.max())
    if options.cohort is not None:
        what = ", the number of clients"
        check.integer("cohort", options.cohort, low=1, high=M, what=what)
    if options.batch_size is not None:
        what = ", the rows of the largest client, or None for all rows"
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
        raise BadValue(
            f"the phases of {method.name} must have different names, got "
            f"{twice[0]!r} twice."
        )
    for name, metric in metrics:
        if metric.possible is not None and not metric.possible(problem, algorithm):
            raise BadValue(
                f"`metrics` can contain {name} only if {metric.condition}; remove it "
                f"for {method.name} on {type(problem).__name__}."
            )


def check_test(test: Any, federation: Federation) -> None:
    """Raise unless the test rows have the same kind of columns as the training rows."""
    check.kind("test", test, Table, "such as load(name).test")
    if not isinstance(federation.data, Table):
        raise BadValue(
            "`test` needs a federation of rows with labels, such as "
            "`sagda.partition(table)`."
        )
    width, expected = np.shape(test.features)[1:], federation.data.features.shape[1:]
    if width != expected or not np.isin(test.label, (-1, 1)).all():
        raise BadValue(
            f"`test` must have {expected[0]} features and labels -1 and +1, like the "
            f"training rows, got {width[0] if width else 'no'} features and labels "
            f"from {np.min(test.label)} to {np.max(test.label)}."
        )


def checked_starts(problem: Problem, starts: Any, given: Point | None) -> Point:
    """Return the starts of all runs. `given` is the start that the user chose, or None.

    `starts` are the starts that the problem has drawn, with runs on axis 0. Raises
    unless the starts are feasible points of the right shapes.
    """
    if not isinstance(starts, Point) or not jax.tree.leaves(starts.y):
        raise BadValue(
            f"{type(problem).__name__}.init must return `Point(x, y)` with arrays in x "
            f"and y, got a value of type {type(starts).__name__}."
        )
    if given is not None:
        starts = given_starts(given, starts)
    check_feasible(problem, starts)
    return starts


def given_starts(start: Point, starts: Point) -> Point:
    """Return `start` repeated for every run. Raises unless it has the right shapes."""
    shapes = lambda tree: jax.tree.map(np.shape, tree)
    # `starts` has the runs on axis 0, and `start` is the start of one run.
    expected = jax.tree.map(lambda a: a.shape[1:], starts)
    alike = jax.tree.structure(start) == jax.tree.structure(starts)
    if not alike or shapes(start) != expected:
        raise BadValue(
            f"`start` must have the shapes {expected}, as the problem draws it, got "
            f"{shapes(start)}."
        )
    if not all(np.isfinite(a).all() for a in jax.tree.leaves(start)):
        raise BadValue("`start` must be finite, got NaN or infinity.")
    return jax.tree.map(lambda a, b: np.broadcast_to(a, b.shape), start, starts)


def check_feasible(problem: Problem, starts: Point) -> None:
    """Raise unless the start of every run lies in the sets of the problem."""
    for name, convex_set, tree in zip(
        "xy", problem.sets(), (starts.x, starts.y), strict=True
    ):
        check_set(f"{name}_in", convex_set)
        if convex_set is None:
            continue
        # All starts have the same shapes, so the first one shows whether the set fits.
        convex_set.fit(name, jax.tree.map(lambda a: a[0], tree))
        if not np.all(jax.vmap(convex_set.holds)(tree)):
            raise BadValue(
                f"the start of `{name}` must lie in {convex_set}, but does not; use "
                "the method `project` of the set to get the nearest point in it."
            )


def check_loss(setup: Setup, z: Point) -> None:
    """Raise unless the loss fits the data and returns one value per row."""
    problem, table = setup.clients.problem, setup.clients.table
    loss = partial(jax.eval_shape, problem.loss, z, table, root_key(0))
    rows = len(jax.tree.leaves(table)[0])
    check_losses(problem, loss, jax.ShapeDtypeStruct, rows)


def check_losses(
    problem: Problem, loss: Callable[[], Any], kind: type, rows: int
) -> None:
    """Raise unless `loss()` returns an array of type `kind` with one value per row."""
    name = type(problem).__name__
    with quoting(f"the loss of {name} does not fit the data"):
        losses = loss()
    shape = tuple(losses.shape) if isinstance(losses, kind) else None
    if shape != (rows,):
        result = f"a {type(losses).__name__}" if shape is None else f"shape {shape}"
        raise BadValue(
            f"the loss of {name} must return one value per row, got {result} for "
            f"{rows} rows; do not take the mean, since sagda does that."
        )


def columns_of(
    problem: Problem, federation: Federation, test: Table | None
) -> list[str]:
    """Return the names of the columns that evaluations measure.

    JAX problems are traced only. PyTorch problems are evaluated on two rows.
    """

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
