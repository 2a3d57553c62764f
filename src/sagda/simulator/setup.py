"""`Setup` and `View`: the constant data of a run, on the devices.

Rounds use a `Setup`, and evaluations use a `View`. The data that change from round to
round are in `rounds.Carry`. Files and partitions are read in `data`.
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
    """The constant data of rounds: clients, drop-out probability and cohort size."""

    clients: Clients
    dropout: float | None  # None: the compiled program contains no drop-outs
    cohort: int  # m, the clients per round

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
        """Make the setup of a run on the first device. Floats are cast to `dtype`."""
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
        """Return the same setup with a copy of all data on every device of `mesh`."""
        everywhere = NamedSharding(mesh, PartitionSpec())
        put = lambda a: placed(np.asarray(a), everywhere)
        return replace(self, clients=jax.tree.map(put, self.clients))

    def objective(self, i: Any) -> Sampled:
        """Return f_i, the objective of client `i`."""
        return self.clients.objective(i)


@register
@dataclass(frozen=True)
class View:
    """The data of an evaluation: the rows of all clients, with their weights in f."""

    clients: Clients
    weight: jax.Array  # [rows], 1 / (M n_i) for a row of client i
    owner: jax.Array  # [rows], the client that the row belongs to

    @classmethod
    def of(cls, setup: Setup, federation: Federation, dtype: Any) -> "View":
        """Make a view on the first device. It uses the rows of `setup`, not a copy."""
        put = partial(on_device, dtype=dtype)
        clients = jax.tree.map(lambda a: a.addressable_shards[0].data, setup.clients)
        return cls(clients, put(federation.weight), put(federation.owner))


class Ops(NamedTuple):
    """Two functions that differ between JAX and PyTorch, used in sums over rows."""

    stack: Any
    value_and_grad: Any


def numbers(data: PyTree) -> PyTree:
    """Return `data` without names of clients and classes, which a loss cannot use."""
    return data._replace(origin=None, client=None) if isinstance(data, Table) else data


def on_device(array: Any, dtype: Any) -> jax.Array:
    """Put an array on the first device.

    Floats are cast to `dtype`, and whole numbers to 32 bits. A memory-mapped column
    that already has the right type is not copied: CPUs read it from the file.
    """
    array = np.asarray(array)
    kinds = {"f": dtype, "i": np.int32, "u": np.int32, "b": np.bool_}
    if array.dtype.kind not in kinds:
        raise BadKind(
            "columns of data and fields of problems must be numbers, got an array of "
            f"type {array.dtype}."
        )
    array = array.astype(kinds[array.dtype.kind], copy=False)
    return jax.device_put(array, jax.local_devices()[0])


def placed(array: Any, sharding: NamedSharding) -> jax.Array:
    """Put an array that every process has on the devices of all processes."""
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    # `device_put` would send the array to all processes, to compare their copies.
    return jax.make_array_from_callback(array.shape, sharding, lambda i: array[i])


def fetch(tree: PyTree) -> Any:
    """Copy arrays to the host. Arrays divided over processes are put together."""

    def one(a: Any) -> np.ndarray:
        if isinstance(a, jax.Array) and not (
            a.is_fully_addressable or a.is_fully_replicated
        ):
            return np.asarray(multihost_utils.process_allgather(a, tiled=True))
        return np.asarray(a)

    return jax.tree.map(one, tree)
