"""`Evaluator`: measures the columns of one history row on the rows of all clients.

One compiled program evaluates all stacked runs. The formulas are in
`problems/metrics.py`. The rows of the history are collected in `recorder.py`. PyTorch
models have `torch/evaluator.py`.
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
    """The results of one evaluation. `Evaluator` returns arrays with runs on axis 0."""

    columns: dict[str, Any]
    scores: Any  # [rows], the scores of the training rows, or None
    test_scores: Any  # [rows], the scores of the test rows, or None


class EvaluatedState(NamedTuple):
    """The part of a `Carry` that an evaluation uses.

    `memory` and `drift` are None unless a metric needs them.
    """

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
            # A federation may have spare rows. They have weight zero and come last.
            scores = measured.scores[:, : np.count_nonzero(self.view.weight)]
            measured = measured._replace(scores=scores)
        return measured

    def groups(self, state: EvaluatedState) -> list[EvaluatedState]:
        """Split the runs into groups of equal size that fit in memory.

        The last run is repeated until the last group is full.
        """
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
    """Evaluate one run: the columns of its history row, and its scores."""
    clients, z = view.clients, state.z
    problem, table, M = clients.problem, clients.table, clients.count

    def mean_over_clients(function: Callable) -> jax.Array:
        # A loop, since the gradients of all clients together may not fit in memory.
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
    """Call `evaluate_run` for stacked runs. One program serves all methods."""
    return jax.vmap(lambda state: evaluate_run(view, state, test, metrics))(state)
