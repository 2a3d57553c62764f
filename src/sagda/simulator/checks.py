"""Checks before a simulation starts: what does not fit is said in one sentence."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from sagda import check
from sagda.check import BadKind, BadValue, first_line
from sagda.core import Point
from sagda.data.federation import Federation, Table
from sagda.keys import root_key
from sagda.methods import Method
from sagda.problems.base import Problem
from sagda.problems.metrics import COLUMNS, OPTIONAL, measure
from sagda.problems.sets import check_set
from sagda.simulator.layout import parse
from sagda.simulator.run import Callback
from sagda.simulator.setup import Setup, numbers


def check_run(
    method: Method,
    problem: Problem,
    federation: Federation,
    *,
    rounds: int = 1,
    cohort: int | None = None,
    batch_size: int | None = None,
    dropout: float = 0.0,
    seeds: int | Sequence[int] = 0,
    eval_every: int = 1,
    chunk: int | None = None,
    metrics: str | Sequence[str] = (),
    test: Table | None = None,
    layout: str = "auto",
    stream: int | None = None,
) -> tuple[int, tuple[int, ...], tuple[str, ...]]:
    """Look at what `simulate` is given; cohort, seeds and metrics in plain form."""
    check.kind("method", method, Method, "such as sagda.algorithm('sagda-i')")
    check.kind("problem", problem, Problem, "such as sagda.AUC.of(federation)")
    check.kind("federation", federation, Federation, "such as sagda.partition(table)")
    M, largest = federation.clients, int(federation.size.max())
    check.integer("rounds", rounds, low=1)
    cohort = M if cohort is None else cohort
    cohort = check.integer("cohort", cohort, low=1, high=M, what=", the clients")
    if batch_size is not None:
        what = ", the rows of the largest client (None takes all)"
        check.integer("batch_size", batch_size, low=1, high=largest, what=what)
    check.real("dropout", dropout, low=0, high=1)
    given = tuple(seeds) if isinstance(seeds, Iterable) else (seeds,)
    if not given:
        raise BadValue("`seeds` must hold at least one seed, got none.")
    seeds = tuple(check.integer("seeds", s, low=0, high=2**32 - 1) for s in given)
    check.integer("eval_every", eval_every, low=1)
    if chunk is not None:
        check.integer("chunk", chunk, low=1)
    metrics = (metrics,) if isinstance(metrics, str) else tuple(dict.fromkeys(metrics))
    check.kind("layout", layout, str, "such as 'auto'")
    parse(layout)
    if stream is not None:
        check.integer("stream", stream, low=1)
    check_algorithm(method, metrics)
    if "potential" in metrics and not problem.measures_phi:
        raise BadValue(
            "`metrics` may hold potential only where Phi is measured, which "
            f"{type(problem).__name__} does not."
        )
    problem.check(federation)
    if test is not None:
        check_test(test, federation)
    return cohort, seeds, metrics


def check_callbacks(progress: Any) -> tuple[Callback, ...]:
    """One callable or several as several."""
    if progress is None:
        return ()
    several = isinstance(progress, Iterable) and not callable(progress)
    given: tuple[Any, ...] = tuple(progress) if several else (progress,)
    for callback in given:
        if not callable(callback):
            raise BadKind(
                "`progress` must be a callable or a sequence of them, got "
                f"{callback!r:.60} of type {type(callback).__name__}."
            )
    return given


def check_algorithm(method: Method, metrics: tuple[str, ...]) -> None:
    """Phases with names of their own, and metrics that the method has."""
    algorithm = method.build()
    names = [phase.name for phase in (*algorithm.opening, *algorithm.phases)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise BadValue(f"{method.name}: two phases are called {twice[0]!r}.")
    for name in metrics:
        check.choice("metrics", name, OPTIONAL)
    if "variate_lag" in metrics and algorithm.mean is None:
        raise BadValue(
            "`metrics` may hold variate_lag only where clients keep variates, which "
            f"those of {method.name} do not."
        )
    if "drift" in metrics and all(p.delta is None for p in algorithm.phases):
        raise BadValue(
            "`metrics` may hold drift only where clients tell how far they moved, "
            f"which those of {method.name} do not."
        )


def check_test(test: Any, federation: Federation) -> None:
    """Rows like those that are trained on."""
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


def check_starts(problem: Problem, starts: Any) -> None:
    kind = type(problem)
    if not isinstance(starts, Point) or not jax.tree.leaves(starts.y):
        raise BadValue(
            f"{kind.__name__}.init must return Point(x, y) with arrays in both halves, "
            f"got {type(starts).__name__}."
        )


def given_starts(start: Point, starts: Point) -> Point:
    """The user's start for every seed, after a look at its shapes."""
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
    """Every run's start lies in the problem's sets."""
    for name, own, tree in zip("xy", problem.sets(), (starts.x, starts.y), strict=True):
        check_set(f"{name}_in", own)
        if own is None:
            continue
        own.fit(name, jax.tree.map(lambda a: a[0], tree))
        if not np.all(jax.vmap(own.holds)(tree)):
            raise BadValue(
                f"the start of `{name}` must lie in {own}, and does not; its "
                "`project` gives the nearest point that does."
            )


def check_loss(setup: Setup, z: Point) -> None:
    """A loss must fit the data and give one value per row."""
    problem, table = setup.clients.problem, setup.clients.table
    kind, rows = type(problem).__name__, len(jax.tree.leaves(table)[0])
    try:
        losses = jax.eval_shape(problem.loss, z, table, root_key(0))
    except (TypeError, IndexError, RuntimeError, ValueError) as error:
        if isinstance(error, BadValue | BadKind):
            raise
        raise BadValue(
            f"the loss of {kind} does not fit the data: {first_line(error)}."
        ) from error
    shape = getattr(losses, "shape", None)
    if shape != (rows,):
        found = f"a {type(losses).__name__}" if shape is None else f"shape {shape}"
        raise BadValue(
            f"the loss of {kind} must have one value per row, got "
            f"{found} for {rows} rows; leave their mean to sagda."
        )


def columns_of(
    problem: Problem, federation: Federation, test: Table | None
) -> list[str]:
    """What an evaluation measures, found without computing anything."""

    def look(key: Any, rows: Any, weight: Any, owner: Any) -> tuple[Any, Any]:
        z = problem.init(key)
        columns = measure(problem, z, rows, weight, owner, federation.clients)
        return columns, problem.score(z.x, rows)

    if problem.uses_torch:  # nothing can be traced
        from sagda.simulator.torch.evaluator import torch_columns

        return torch_columns(problem, federation, test)
    rows = numbers(problem.columns(federation))
    given = rows, federation.weight, federation.owner
    columns, scores = jax.eval_shape(look, root_key(0), *given)
    names = [name for name in COLUMNS if name in columns]
    names = list(dict.fromkeys([*names, *columns]))
    if scores is not None:
        names += ["auc_train"] if test is None else ["auc_train", "auc_test"]
    return names
