"""What stays the same over a run, as compiled programs take it."""

from dataclasses import dataclass, replace
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
    """The clients, and how many of them take part."""

    clients: Clients
    dropout: float | None  # None compiles no drop-outs at all
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
        mesh: Mesh | None = None,
        held: int | None = None,
    ) -> "Setup":
        """On the devices of `mesh`, floats as `dtype`; `held` rows if not all."""
        put = lambda tree: jax.tree.map(lambda a: on_device(a, dtype, mesh), tree)
        size = federation.size
        even = bool(size.min() == size.max()) and not federation.room
        clients = Clients(
            put(problem),
            put(first_rows(problem.columns(federation), held)),
            None if even and held is None else put(federation.start),
            None if even else put(size),
            count=federation.clients,
            widest=federation.widest,
            batch_size=batch_size,
        )
        return cls(clients, dropout or None, cohort)

    def objective(self, i: Any) -> Sampled:
        """f_i."""
        return self.clients.objective(i)


@register
@dataclass(frozen=True)
class View:
    """What an evaluation looks at: all rows, with the weight of each in f."""

    clients: Clients
    weight: jax.Array  # [rows], 1 / (M n_i)
    owner: jax.Array  # [rows]

    @classmethod
    def of(
        cls, setup: Setup, federation: Federation, dtype: Any, held: int | None = None
    ) -> "View":
        """One device looks; rows that are not all there are looked at by the host."""
        device = None if held is None else jax.local_devices(backend="cpu")[0]
        put = lambda a: on_device(a, dtype, device=device)
        if held is None:
            # The copy that the programs use there will do.
            near = jax.tree.map(lambda a: a.addressable_shards[0].data, setup.clients)
        else:
            data = setup.clients.problem.columns(federation)
            table, start = numbers(data), federation.start
            near = replace(setup.clients, table=table, start=start)
            near = jax.tree.map(put, jax.device_get(near))
        return cls(near, put(federation.weight), put(federation.owner))


class Ops(NamedTuple):
    """What a formula needs beyond plain operators: JAX's, or PyTorch's."""

    stack: Any
    value_and_grad: Any


def numbers(data: PyTree) -> PyTree:
    """The columns that a loss may look at: names of clients and classes stay behind."""
    return data._replace(origin=None, client=None) if isinstance(data, Table) else data


def first_rows(data: PyTree, count: int | None) -> PyTree:
    return jax.tree.map(lambda column: column[:count], numbers(data))


def on_device(
    array: Any, dtype: Any, mesh: Mesh | None = None, device: Any = None
) -> jax.Array:
    """Floats in the run's precision, whole numbers in 32 bits, truth values as such.

    A memory-mapped column of the right type is not copied: processors read the file.
    """
    array = np.asarray(array)
    kinds = {"f": dtype, "i": np.int32, "u": np.int32, "b": np.bool_}
    if array.dtype.kind not in kinds:
        raise BadKind(
            f"columns and fields must be numbers, got an array of {array.dtype}."
        )
    array = array.astype(kinds[array.dtype.kind], copy=False)
    if mesh is None:
        return jax.device_put(array, device or jax.local_devices()[0])
    return placed(array, NamedSharding(mesh, PartitionSpec()))


def placed(array: Any, sharding: NamedSharding) -> jax.Array:
    """Values that every process has, on the devices of all of them."""
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    # JAX would send all of them around to see that they are equal.
    return jax.make_array_from_callback(array.shape, sharding, lambda i: array[i])


def fetch(tree: PyTree) -> Any:
    """Arrays on the host, whole, wherever their parts lie."""

    def one(a: Any) -> np.ndarray:
        if isinstance(a, jax.Array) and not (
            a.is_fully_addressable or a.is_fully_replicated
        ):
            return np.asarray(multihost_utils.process_allgather(a, tiled=True))
        return np.asarray(a)

    return jax.tree.map(one, tree)
