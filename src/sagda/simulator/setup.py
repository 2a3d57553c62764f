"""`Setup` and `View`: a run's constant data on the devices, for rounds and evaluations.

What changes from round to round is `rounds.Carry`.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sagda.check import BadKind
from sagda.core import PyTree
from sagda.data.federation import Federation, Table
from sagda.problems.base import Problem
from sagda.pytree import register
from sagda.simulator.objective import Clients, Sampled


@register
@dataclass(frozen=True)
class Setup:
    """The clients, and the number of them that take part in a round."""

    clients: Clients
    dropout: float | None  # None leaves drop-outs out of the compiled program
    cohort: int  # m

    @classmethod
    def of(
        cls,
        problem: Problem,
        federation: Federation,
        dtype: Any,
        *,
        cohort: int,
        batch_size: int | None,
        dropout: float = 0.0,
    ) -> "Setup":
        """The setup of a run, on the first device. Floats become `dtype`."""
        put = lambda tree: jax.tree.map(lambda a: on_device(a, dtype), tree)
        size = federation.size
        even = bool(size.min() == size.max()) and not federation.room
        clients = Clients(
            problem=put(problem),
            table=put(numbers(problem.columns(federation))),
            start=None if even else put(federation.start),
            size=None if even else put(size),
            count=federation.clients,
            widest=federation.widest,
            batch_size=batch_size,
        )
        return cls(clients, dropout or None, cohort)

    def over(self, mesh: Mesh) -> "Setup":
        """The same setup on every device of `mesh`."""
        everywhere = NamedSharding(mesh, PartitionSpec())
        put = lambda a: placed(np.asarray(a), everywhere)
        return replace(self, clients=jax.tree.map(put, self.clients))

    def objective(self, i: Any) -> Sampled:
        """f_i."""
        return self.clients.objective(i)


@register
@dataclass(frozen=True)
class View:
    """What an evaluation sees: all rows, with the weight of each in f."""

    clients: Clients
    weight: jax.Array  # [rows], 1 / (M n_i)
    owner: jax.Array  # [rows], the client that has the row

    @classmethod
    def of(cls, setup: Setup, federation: Federation, dtype: Any) -> "View":
        """The view of the first device, which shares its copy of the setup."""
        put = partial(on_device, dtype=dtype)
        clients = jax.tree.map(lambda a: a.addressable_shards[0].data, setup.clients)
        return cls(clients, put(federation.weight), put(federation.owner))


class Ops(NamedTuple):
    """The few array functions that differ between JAX and PyTorch."""

    stack: Any
    value_and_grad: Any


def numbers(data: PyTree) -> PyTree:
    """The columns that a loss may use: all but the names of clients and classes."""
    return data._replace(origin=None, client=None) if isinstance(data, Table) else data


def on_device(array: Any, dtype: Any) -> jax.Array:
    """An array on the first device.

    Floats become `dtype`, whole numbers have 32 bits. A memory-mapped column of the
    right type is not copied: processors read it from the file.
    """
    array = np.asarray(array)
    kinds = {"f": dtype, "i": np.int32, "u": np.int32, "b": np.bool_}
    if array.dtype.kind not in kinds:
        raise BadKind(
            f"columns and fields must be numbers, got an array of {array.dtype}."
        )
    array = array.astype(kinds[array.dtype.kind], copy=False)
    return jax.device_put(array, jax.local_devices()[0])


def placed(array: Any, sharding: NamedSharding) -> jax.Array:
    """An array that every process has, on the devices of all processes."""
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    # `device_put` would send the array to all processes to compare it.
    return jax.make_array_from_callback(array.shape, sharding, lambda i: array[i])


def fetch(tree: PyTree) -> Any:
    """Whole arrays on the host, also of those that are divided over processes."""

    def one(a: Any) -> np.ndarray:
        if isinstance(a, jax.Array) and not (
            a.is_fully_addressable or a.is_fully_replicated
        ):
            return np.asarray(multihost_utils.process_allgather(a, tiled=True))
        return np.asarray(a)

    return jax.tree.map(one, tree)
