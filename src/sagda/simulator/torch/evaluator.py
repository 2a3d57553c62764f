"""`TorchEvaluator`: measures the columns of a history row for PyTorch models.

The rows are evaluated in blocks, to limit memory. The columns are the same as those of
JAX models, see `simulator/evaluator.py`. The formulas of the optional columns are in
`problems/metrics.py`.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import numpy as np
import torch

from sagda.core import Point, PyTree
from sagda.data.federation import Federation, Table
from sagda.keys import root_key
from sagda.models.torch import arrays, tensors
from sagda.problems.base import Problem
from sagda.problems.inner import norm_sq
from sagda.problems.metrics import MetricInputs, optional_columns
from sagda.simulator.evaluator import EvaluatedState, Measurements
from sagda.simulator.options import RunOptions
from sagda.simulator.torch.objective import TorchRows, evaluating, gradient

BLOCK = 4096  # rows evaluated at a time


class TorchEvaluator:
    """Evaluates the runs one after the other, each in blocks of rows."""

    def __init__(self, rows: TorchRows, federation: Federation, options: RunOptions):
        self.rows, self.metrics, test = rows, options.chosen_metrics, options.test
        self.batch_size, self.owner = rows.batch_size, federation.owner
        self.clients = federation.clients
        feature = jax.tree.leaves(rows.table)[0]
        self.weight = torch.from_numpy(federation.weight).to(feature.dtype)
        self.label = getattr(federation.data, "label", None)
        columns = None if test is None else Table(test.features, test.label)
        self.test = tensors(columns, feature.numpy().dtype)
        self.test_label = None if test is None else test.label

    def blocks(self) -> Any:
        """Yield the rows and the weights of each block."""
        count = len(self.weight)
        for at in range(0, count, BLOCK):
            part = slice(at, min(at + BLOCK, count))
            position = torch.from_numpy(self.position[part])
            yield self.rows.cut(part, position), self.weight[part]

    @property
    def position(self) -> np.ndarray:
        """The number of each row within its client, as an array [rows]."""
        return np.arange(len(self.weight)) - self.rows.start[self.owner]

    def __call__(self, state: EvaluatedState) -> Measurements:
        measured = []
        with evaluating(self.rows.problem):
            for s in range(len(jax.tree.leaves(state)[0])):
                run = jax.tree.map(lambda a, s=s: a[s, ...], state)
                measured.append(self.one(run._replace(z=tensors(run.z))))
        columns, scores, tests = zip(*measured, strict=True)
        stacked = {name: np.array([c[name] for c in columns]) for name in columns[0]}
        some = lambda values: None if values[0] is None else list(values)
        return Measurements(stacked, some(scores), some(tests))

    def one(self, state: EvaluatedState) -> Measurements:
        """Evaluate one run: the columns of its history row, and its scores."""
        problem, z = self.rows.problem, state.z
        values = [problem.loss(z, rows, None) for rows, _ in self.blocks()]
        losses = torch.cat(values).double().numpy()
        weight = self.weight.double().numpy()
        M = self.clients
        # The weight of a row is 1 / (M n_i), so this is the mean loss of each client.
        each = np.bincount(self.owner, M * weight * losses, minlength=M)
        columns = {"f": weight @ losses, "worst_client_loss": each.max()}
        # With the maximiser y of f(x, .), Phi and its gradient can be measured. Without
        # it, only the gradients of f can.
        y = self.best_y(z.x) if problem.measures_phi else None
        if y is None:
            grad = self.grad(z)
            columns |= {"grad_x_sq": float(norm_sq(grad.x))}
            columns |= {"grad_y_sq": float(norm_sq(grad.y))}
        else:
            best = Point(z.x, y)
            phi = sum(float(w @ problem.loss(best, r, None)) for r, w in self.blocks())
            columns |= {"grad_phi_sq": float(norm_sq(self.grad(best).x)), "phi": phi}
            columns["gap"] = phi - columns["f"]
        # Metrics of the problem and custom metrics need all rows at the same time.
        whole = self.rows.cut(slice(None), torch.from_numpy(self.position))
        if problem.has("metrics"):
            more = problem.metrics(z, whole, self.weight)
            columns |= {name: float(value) for name, value in more.items()}
        inputs = MetricInputs(
            problem=problem,
            z=z,
            rows=whole,
            weight=self.weight,
            columns=columns,
            drift=state.drift,
            mean_over_clients=partial(self.mean_over_clients, state.memory),
        )
        columns |= optional_columns(inputs, self.metrics, float)
        score = lambda rows: problem.score(z.x, rows)
        scores = [score(rows) for rows, _ in self.blocks()]
        whole = None if scores[0] is None else torch.cat(scores).numpy()
        tests = None if self.test is None else score(self.test)
        return Measurements(columns, whole, None if tests is None else tests.numpy())

    def grad(self, z: Point) -> Point:
        """Return the gradient of f at `z`, a sum over the blocks."""
        problem = self.rows.problem
        parts = [
            gradient(lambda z, r=r, w=w: w @ problem.loss(z, r, None), z)
            for r, w in self.blocks()
        ]
        return reduce(Point.__add__, parts)

    def best_y(self, x: PyTree) -> PyTree | None:
        """Return the y that maximises f(x, y), computed from sums over the blocks.

        Returns None if the problem has no closed form for it.
        """
        problem = self.rows.problem
        parts = [problem.inner_sums(x, r, w) for r, w in self.blocks()]
        if parts[0] is None:
            return None
        sums = jax.tree.map(lambda *a: sum(a), *parts)
        like = jax.tree.leaves(x)[0].dtype
        y = tensors(problem.y_from(arrays(sums)))
        return jax.tree.map(lambda a: a.to(like), y)

    def mean_over_clients(self, memory: PyTree, function: Callable) -> float:
        """Return the mean of `function(f_i, v_i)` over clients. v_i is the memory."""
        total = 0.0
        for i in range(self.clients):
            v_i = jax.tree.map(lambda a, i=i: torch.from_numpy(a[i, ...]), memory)
            total += float(function(self.rows.objective(i), v_i))
        return total / self.clients


def torch_columns(problem: Problem, federation: Federation) -> tuple[list[str], Any]:
    """Return the names of the columns that evaluations measure, and scores or None.

    Two rows are evaluated to find the names.
    """
    rows = TorchRows.of(problem, federation, None, np.float32)
    two: Any = rows.cut(slice(0, 2), torch.arange(2))
    weight: Any = torch.full((2,), 0.5)
    z = tensors(problem.init(root_key(0)), np.float32)
    names = ["f", "worst_client_loss"]
    with evaluating(problem):
        sums = problem.inner_sums(z.x, two, weight) if problem.measures_phi else None
        phi = ["grad_phi_sq", "phi", "gap"]
        names += ["grad_x_sq", "grad_y_sq"] if sums is None else phi
        names += list(problem.metrics(z, two, weight))
        return names, problem.score(z.x, two)
