"""`Evaluator`: the columns of a history row, measured on all clients' rows.

One compiled program measures all runs. The formulas are in `problems.metrics`; the rows
of the history are collected in `recorder.py`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sagda.algorithms.trace import batch_that_fits
from sagda.core import Point
from sagda.data.federation import Table
from sagda.problems.metrics import (
    ChosenMetrics,
    MetricInputs,
    measure,
    optional_columns,
)
from sagda.simulator.devices import SPARED
from sagda.simulator.exchange import unpacked
from sagda.simulator.setup import View, on_device


class Measurements(NamedTuple):
    """What an evaluation gives; with runs on axis 0 after `Evaluator`."""

    columns: dict[str, Any]
    scores: Any  # [rows] of the training table, or None
    test_scores: Any  # [rows] of the test table, or None


class EvaluatedState(NamedTuple):
    """What an evaluation reads of a carry; metrics say which parts they need."""

    z: Point
    memory: Any = None
    drift: Any = None


class Evaluator:
    """Evaluates all stacked runs with one compiled program."""

    def __init__(self, view: View, test: Table | None, metrics: ChosenMetrics):
        self.view, self.metrics, self.test = view, metrics, None
        self.together: int | None = None  # the number of runs evaluated at a time
        self.batch_size = view.clients.batch_size
        self.label = getattr(view.clients.table, "label", None)
        self.test_label = None if test is None else test.label
        if test is not None:
            columns = Table(test.features, test.label)
            put = partial(on_device, dtype=view.weight.dtype)
            self.test = jax.tree.map(put, columns)

    def __call__(self, state: EvaluatedState) -> Measurements:
        parts = [
            jax.device_get(evaluate(self.view, some, self.test, self.metrics))
            for some in self.groups(state)
        ]
        runs = len(jax.tree.leaves(state)[0])
        join = lambda *arrays: np.concatenate(arrays)[:runs]
        measured: Measurements = jax.tree.map(join, *parts)
        if measured.scores is not None:
            # Spare rows, with weight zero, come last.
            scores = measured.scores[:, : np.count_nonzero(self.view.weight)]
            measured = measured._replace(scores=scores)
        return measured

    def groups(self, state: EvaluatedState) -> list[EvaluatedState]:
        """Groups of as many runs as fit in memory. The last run fills up the last."""
        runs = len(jax.tree.leaves(state)[0])
        if runs > 1 and self.together is None:
            one = partial(evaluate_run, self.view, test=self.test, metrics=self.metrics)
            self.together = batch_that_fits(one, jax.tree.map(lambda a: a[0], state))
        if self.together is None or self.together >= runs:
            return [state]
        count = -(-runs // self.together)
        size = -(-runs // count)
        chosen = np.minimum(np.arange(count * size), runs - 1).reshape(count, size)
        return [jax.tree.map(lambda a, some=some: a[some], state) for some in chosen]


def evaluate_run(
    view: View, state: EvaluatedState, test: Any, metrics: ChosenMetrics
) -> Measurements:
    """The columns of one run's history row."""
    clients, z = view.clients, state.z
    problem, table, M = clients.problem, clients.table, clients.count

    def mean_over_clients(function: Callable) -> jax.Array:
        # A loop, since gradients of all clients at a time may not fit in memory.
        def one(client: tuple[Any, Any]) -> jax.Array:
            i, row = client
            return function(clients.objective(i), unpacked(row, z))

        return jax.lax.map(one, (jnp.arange(M), state.memory)).mean()

    columns = measure(problem, z, table, view.weight, view.owner, M)
    inputs = MetricInputs(
        problem=problem,
        z=z,
        rows=table,
        weight=view.weight,
        columns=columns,
        drift=state.drift,
        mean_over_clients=mean_over_clients,
    )
    number = partial(jnp.asarray, dtype=columns["f"].dtype)
    columns |= optional_columns(inputs, metrics, number)
    test_scores = None if test is None else problem.score(z.x, test)
    return Measurements(columns, problem.score(z.x, table), test_scores)


@partial(jax.jit, static_argnames="metrics", compiler_options=SPARED)
def evaluate(
    view: View, state: EvaluatedState, test: Any, metrics: ChosenMetrics
) -> Measurements:
    """`evaluate_run` for stacked runs. All methods share the compiled program."""
    return jax.vmap(lambda state: evaluate_run(view, state, test, metrics))(state)
