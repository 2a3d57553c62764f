"""`Setup`: a method, a problem and a federation as a compiled program takes them."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sagda.check import BadKind
from sagda.core import PyTree
from sagda.data.federation import Federation, Table
from sagda.data.objective import Sampled
from sagda.methods import Method
from sagda.problems.base import Problem
from sagda.pytree import register


@register
@dataclass(frozen=True)
class Setup:
    """All that stays the same over a run, as arguments of its programs."""

    method: Any  # a Method, or None where only data are looked at
    problem: Problem
    table: PyTree  # [rows + padding, ...], sorted by client
    weight: jax.Array  # [rows + padding], 1 / (M n_i), 0 for padding
    owner: jax.Array  # [rows + padding]
    start: jax.Array  # [M]
    size: jax.Array  # [M]
    dropout: float | None  # None compiles no drop-outs at all
    clients: int  # M
    cohort: int  # m
    widest: int  # max n_i
    batch_size: int | None

    @classmethod
    def of(
        cls,
        method: Method,
        problem: Problem,
        federation: Federation,
        dtype: Any,
        dropout: float = 0.0,
        **shape: Any,
    ) -> "Setup":
        """On the device, floats as `dtype`, the table padded for its last clients."""
        widest = int(federation.size.max())
        rows = len(federation.order)
        padding = max(0, int(federation.start.max()) + widest - rows)
        fill = np.concatenate([np.arange(rows), np.zeros(padding, np.int64)])
        put = lambda tree: jax.tree.map(lambda a: on_device(a, dtype), tree)
        return cls(
            method,
            put(problem),
            put(jax.tree.map(lambda column: column[fill], numbers(federation.data))),
            put(np.concatenate([federation.weight, np.zeros(padding)])),
            put(federation.owner[fill]),
            put(federation.start),
            put(federation.size),
            dropout or None,
            federation.clients,
            widest=widest,
            **shape,
        )

    def objective(self, i: Any) -> Sampled:
        """f_i."""
        return Sampled(
            self.problem,
            self.table,
            self.start[i],
            self.size[i],
            self.widest,
            self.batch_size,
        )


def numbers(data: PyTree) -> PyTree:
    """The columns that a loss may look at: names of clients and classes stay behind."""
    return data._replace(origin=None, client=None) if isinstance(data, Table) else data


def on_device(array: Any, dtype: Any) -> jax.Array:
    """Floats in the run's precision, whole numbers in 32 bits, truth values as such."""
    array = np.asarray(array)
    kinds = {"f": dtype, "i": np.int32, "u": np.int32, "b": np.bool_}
    if array.dtype.kind not in kinds:
        raise BadKind(
            f"columns and fields must be numbers, got an array of {array.dtype}."
        )
    return jnp.asarray(array, kinds[array.dtype.kind])
