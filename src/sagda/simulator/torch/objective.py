"""`TorchObjective`: a client's objective f_i for PyTorch models, in eager mode.

Rows are drawn from the same keys as in compiled runs. The helpers below also serve
sites of a federation whose model is PyTorch's. Rounds are in `torch/loop.py`.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from sagda.core import Objective, Phase, Point, Turn
from sagda.data.federation import Federation, Table
from sagda.keys import Key
from sagda.models.torch import arrays, models_in, seeded, tensors
from sagda.problems.base import Problem
from sagda.simulator.objective import Xi, drawn
from sagda.simulator.setup import Ops, numbers

draw_rows = jax.jit(drawn, static_argnums=(2, 3))


class TorchRows(NamedTuple):
    """All clients' rows as tensors, and the problem whose loss takes them.

    A noisy loss gets no key: PyTorch's own generator is seeded for each sample.
    """

    problem: Any
    table: Any  # [rows, ...]
    start: np.ndarray
    size: np.ndarray
    batch_size: int | None

    @classmethod
    def of(
        cls,
        problem: Problem,
        federation: Federation,
        batch_size: int | None,
        dtype: Any,
    ) -> "TorchRows":
        columns = numbers(problem.columns(federation))
        if isinstance(columns, Table):  # whole numbers as features become floats
            features = np.asarray(columns.features).astype(dtype, copy=False)
            columns = columns._replace(features=features)
        data = tensors(columns, dtype)
        return cls(problem, data, federation.start, federation.size, batch_size)

    def cut(self, rows: Any, position: Any) -> Any:
        """A batch of `rows`, which have these numbers within their client."""
        batch = jax.tree.map(lambda column: column[rows], self.table)
        if isinstance(batch, Table):
            batch = batch._replace(position=position)
        return batch

    def objective(self, i: int) -> "TorchObjective":
        """f_i."""
        return TorchObjective(self, int(self.start[i]), int(self.size[i]))


class TorchObjective(Objective):
    """f_i, on the rows `start` to `start + size` of the clients' table."""

    def __init__(self, rows: TorchRows, start: int, size: int):
        self.rows, self.start, self.size = rows, start, size

    def draw(self, key: Key, count: int | None = None) -> Xi:
        xi = draw_rows(key, self.size, self.rows.batch_size, count)
        return jax.tree.map(np.asarray, xi)

    def whole(self, key: Key) -> Xi:
        return self.draw(key)._replace(position=None)

    def grad(self, z: Point, xi: Xi) -> Point:
        if xi.position is None:
            batch = self.rows.cut(
                slice(self.start, self.start + self.size), torch.arange(self.size)
            )
        else:
            position = torch.from_numpy(xi.position.astype(np.int64))
            batch = self.rows.cut(self.start + position, position)
        problem = self.rows.problem
        with seeded(*xi.seed.tolist()):
            grad = gradient(lambda z: problem.loss(z, batch, None).mean(), z)
        return problem.treat(grad)

    def project(self, z: Point) -> Point:
        return projected(self.rows.problem, z)


def gradient(value: Any, z: Any) -> Any:
    """The gradient of `value` at a tree of tensors."""
    leaves, structure = jax.tree.flatten(z)
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    with torch.enable_grad():
        total = value(jax.tree.unflatten(structure, leaves))
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
    grads = [
        torch.zeros_like(a) if g is None else g
        for a, g in zip(leaves, grads, strict=True)
    ]
    return jax.tree.unflatten(structure, grads)


def projected(problem: Problem, z: Point) -> Point:
    """The feasible point nearest to z.

    JAX projects the constrained parts, which are small. A half without a set, usually
    the model, is returned without a copy.
    """
    back = lambda a, b: torch.from_numpy(np.array(a)).to(b)
    near = lambda project, tree: jax.tree.map(back, project(arrays(tree)), tree)
    if problem.has("project"):
        return near(problem.project, z)
    x_in, y_in = problem.sets()
    return Point(
        z.x if x_in is None else near(x_in.project, z.x),
        z.y if y_in is None else near(y_in.project, z.y),
    )


@contextlib.contextmanager
def precision(float64: bool) -> Iterator[None]:
    """Set the precision of plain numbers, in PyTorch and in JAX."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if float64 else torch.float32)
    try:
        with jax.enable_x64(float64):
            yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def evaluating(problem: Any) -> Iterator[None]:
    """Evaluate models: no dropout, no gradients, and equal random numbers each time."""
    models = models_in(problem)
    for model in models:
        model.train(False)
    try:
        with torch.no_grad(), seeded(0):
            yield
    finally:
        for model in models:
            model.train(True)


def client_part(
    rows: TorchRows, phase: Phase, message: Any, kept: Any, memory: Any, turn: Turn
) -> tuple[Any, Any, Any]:
    """A site's part in a phase: the reply, what it keeps, and its renewed memory."""
    double = jax.tree.leaves(rows.table)[0].dtype == torch.float64
    with precision(double), torch.no_grad():
        memory = tensors(memory)
        reply, kept = phase.client(
            rows.objective(0), tensors(message), tensors(kept), turn
        )
        return arrays((reply, kept, phase.renew(memory, reply)))


def torch_scores(problem: Any, x: Any, features: Any, block: int) -> np.ndarray:
    """The scores [rows], computed in double precision."""
    x, parts = tensors(x, np.float64), [np.zeros(0)]
    with precision(True), evaluating(problem):
        for at in range(0, len(features), block):
            rows = tensors(np.asarray(features[at : at + block]), np.float64)
            parts.append(problem.score(x, Table(rows, None)).numpy())
    return np.concatenate(parts)


def value_and_grad(value: Any) -> Any:
    """Like `jax.value_and_grad`, for functions of tensors."""

    def both(first: Any, *others: Any) -> tuple[Any, Any]:
        return value(first, *others), gradient(lambda z: value(z, *others), first)

    return both


TORCH = Ops(torch.stack, value_and_grad)


def torch_sums(ask: Any, problem: Any, rows: Federation, z: Point) -> tuple[Any, Any]:
    """The sums that `ask` takes over a site's rows, and the scores of the rows."""
    table = tensors(numbers(rows.data), np.float64)
    if isinstance(table, Table):
        table = table._replace(position=torch.arange(len(rows.weight)))
    weight, z = tensors(rows.weight, np.float64), tensors(z, np.float64)
    with precision(True), evaluating(problem):
        sums = ask(problem, z, table, weight, TORCH)
        scores = problem.score(z.x, table)
        return arrays(sums), None if scores is None else scores.numpy()
