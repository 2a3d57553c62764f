"""`TorchObjective`: the objective f_i of one client, for PyTorch models.

Rows are drawn with the same random keys as in compiled runs. The sites of a federation
with a PyTorch model also use the functions below. The rounds are in `torch/loop.py`.
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

# JAX draws the rows of PyTorch models also, so that both engines draw the same rows.
draw_rows = jax.jit(drawn, static_argnums=(2, 3))


class TorchRows(NamedTuple):
    """The rows of all clients as tensors, and the problem.

    The loss receives no random key. Instead, the generator of PyTorch is seeded for
    each sample.
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
        """Return the batch of `rows`. `position` has their numbers in the client."""
        batch = jax.tree.map(lambda column: column[rows], self.table)
        if isinstance(batch, Table):
            batch = batch._replace(position=position)
        return batch

    def objective(self, i: int) -> "TorchObjective":
        """Return f_i, the objective of client `i`."""
        return TorchObjective(self, int(self.start[i]), int(self.size[i]))


class TorchObjective(Objective):
    """The objective f_i of the client with `size` rows of the table from `start` on."""

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
        # Equal samples have equal random numbers in dropout layers.
        with seeded(*xi.seed.tolist()):
            grad = gradient(lambda z: problem.loss(z, batch, None).mean(), z)
        return problem.treat(grad)

    def project(self, z: Point) -> Point:
        return projected(self.rows.problem, z)


def gradient(value: Any, z: Any) -> Any:
    """Return the gradient of `value` at `z`, a tree of tensors."""
    leaves, structure = jax.tree.flatten(z)
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    with torch.enable_grad():
        total = value(jax.tree.unflatten(structure, leaves))
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
    grads = [
        # `grad` returns None for a tensor that `value` does not depend on.
        torch.zeros_like(a) if g is None else g
        for a, g in zip(leaves, grads, strict=True)
    ]
    return jax.tree.unflatten(structure, grads)


def projected(problem: Problem, z: Point) -> Point:
    """Return the feasible point nearest to `z`.

    Projections run in JAX, since x or y with a constraint is usually small. x or y
    without a constraint, usually the model, is returned without a copy.
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
    """Set the default precision of PyTorch and JAX: double or single."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if float64 else torch.float32)
    try:
        with jax.enable_x64(float64):
            yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def evaluating(problem: Any) -> Iterator[None]:
    """Prepare PyTorch models for evaluation, and restore them afterwards.

    Within the `with` block there are no dropout layers and no gradients, and random
    numbers are the same each time.
    """
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
    """Compute the client function of a phase at a site of a federation.

    Returns the reply, the value `kept` for the next phase, and the new memory.
    """
    # The precision of the run is that of the rows.
    double = jax.tree.leaves(rows.table)[0].dtype == torch.float64
    with precision(double), torch.no_grad():
        memory = tensors(memory)
        reply, kept = phase.client(
            rows.objective(0), tensors(message), tensors(kept), turn
        )
        return arrays((reply, kept, phase.renew(memory, reply)))


def torch_scores(problem: Any, x: Any, features: Any, block: int) -> np.ndarray:
    """Return the scores [rows] of `features`, in blocks and in double precision."""
    x, parts = tensors(x, np.float64), [np.zeros(0)]
    with precision(True), evaluating(problem):
        for at in range(0, len(features), block):
            rows = tensors(np.asarray(features[at : at + block]), np.float64)
            parts.append(problem.score(x, Table(rows, None)).numpy())
    return np.concatenate(parts)


def value_and_grad(value: Any) -> Any:
    """Return a function like `jax.value_and_grad(value)`, for tensors."""

    def both(first: Any, *others: Any) -> tuple[Any, Any]:
        return value(first, *others), gradient(lambda z: value(z, *others), first)

    return both


TORCH = Ops(torch.stack, value_and_grad)


def torch_sums(ask: Any, problem: Any, rows: Federation, z: Point) -> tuple[Any, Any]:
    """Return the sums that `ask` computes over the rows of a site, and the scores."""
    table = tensors(numbers(rows.data), np.float64)
    if isinstance(table, Table):
        table = table._replace(position=torch.arange(len(rows.weight)))
    weight, z = tensors(rows.weight, np.float64), tensors(z, np.float64)
    with precision(True), evaluating(problem):
        sums = ask(problem, z, table, weight, TORCH)
        scores = problem.score(z.x, table)
        return arrays(sums), None if scores is None else scores.numpy()
