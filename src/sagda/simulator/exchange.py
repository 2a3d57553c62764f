"""One exchange of a round in JAX: the work of a cohort, and its mean reply.

`exchange_in` gives the function that `core.run_round` calls for each phase. It runs
inside a compiled program, once per device. Who takes part is in `cohort.py`; how the
rounds follow each other is in `rounds.py`.

Shapes: M is the number of clients, m of the cohort, and c = ceil(m / devices) the
clients of one device. Arrays of the cohort have c on axis 0 on every device.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from sagda.core import Phase, PyTree, Turn, keep
from sagda.keys import Key, key_of
from sagda.problems.inner import norm_sq
from sagda.simulator.cohort import Members
from sagda.simulator.layout import Layout
from sagda.simulator.setup import Setup

# Memories of several clients: a table [clients, numbers] for every dtype. With one row
# per client, reading a memory is one access to RAM, not one per leaf of the tree.
Tables: TypeAlias = dict[str, jax.Array]
# Up to this number of rows per client, a cohort's rows are copied together before it
# works. For longer clients the copy costs more than it saves.
NEAR = 64


class ClientTask(NamedTuple):
    """One client's part in a phase, before its work. Stacked, [c, ...] each."""

    id: Any
    slot: Any  # the client's number in the table that holds its rows
    counted: Any  # its reply arrives, in a round that is not lost
    memory: Any  # what it keeps between rounds
    kept: Any  # what it has kept from the phases before, in this round


class DeviceShare(NamedTuple):
    """This device's slice of the round's clients, and how its partial results are
    combined with the other devices'."""

    layout: Layout
    split: bool  # each device holds only the memories of its own clients

    def mine(self, tree: PyTree) -> Any:
        """This device's slice, [c, ...], of arrays [m, ...] of the whole cohort.

        The last device's slice is padded with zeros, whose replies are not counted.
        """
        devices = self.layout.clients
        if devices == 1:
            return tree

        def cut(a: jax.Array) -> jax.Array:
            each = -(-len(a) // devices)
            padding = [(0, devices * each - len(a)), *[(0, 0)] * (a.ndim - 1)]
            a = jnp.pad(a, padding)
            first = jax.lax.axis_index("clients") * each
            return jax.lax.dynamic_slice_in_dim(a, first, each)

        return jax.tree.map(cut, tree)

    def rows(self, tables: Tables, ids: jax.Array, everyone: bool) -> Tables:
        """The rows [c, numbers] of the clients `ids`, which this device works on."""
        if not everyone:
            return jax.tree.map(lambda a: a[ids], tables)
        # With all clients in the round, rows lie in the order of `ids`.
        return tables if self.split else self.mine(tables)

    def meet(self, sums: PyTree, rows: Any, cohort: int) -> tuple[Any, Any]:
        """Sums over all devices, and the rows of all devices as [m, numbers].

        Meetings of devices cost more than the bytes they move. So sums and rows travel
        as one array; only rows of another dtype need a meeting of their own.
        """
        if self.layout.clients == 1:
            return sums, rows
        flat, unflatten = ravel_pytree(sums)
        if rows is None:
            return unflatten(jax.lax.psum(flat, "clients")), None
        gather = lambda a: jax.lax.all_gather(a, "clients")  # [devices, ...]
        alike = {kind: a for kind, a in rows.items() if a.dtype == flat.dtype}
        others = {kind: gather(a) for kind, a in rows.items() if kind not in alike}
        flat_rows, unflatten_rows = ravel_pytree(alike)
        both = gather(jnp.concatenate([flat, flat_rows.astype(flat.dtype)]))
        rows = jax.vmap(unflatten_rows)(both[:, len(flat) :]) | others
        # [devices, c, numbers] -> [m, numbers]: the padding comes last and is cut off.
        whole = lambda a: a.reshape(-1, *a.shape[2:])[:cohort]
        return unflatten(both[:, : len(flat)].sum(0)), jax.tree.map(whole, rows)


def one_by_one(work: Callable, parts: PyTree, batch: int) -> tuple[Any, Any]:
    """Call `work(part) -> (added, kept)` for each part, `batch` parts at a time.

    Returns the sum of all `added`, and all `kept` stacked on axis 0. The sum is made
    on the way, so that only `batch` replies exist at a time.
    """
    count = len(jax.tree.leaves(parts)[0])

    def together(block: PyTree) -> tuple[Any, Any]:
        added, kept = jax.vmap(work)(block)
        return jax.tree.map(lambda a: a.sum(0), added), kept

    if batch >= count:
        return together(parts)
    step = work
    if batch > 1:
        # [count, ...] -> [blocks, batch, ...]. Padding parts are all zeros; their
        # `counted` is False, so that they add nothing.
        step, blocks = together, -(-count // batch)
        fill = lambda a: jnp.pad(
            a, [(0, blocks * batch - count), *[(0, 0)] * (a.ndim - 1)]
        ).reshape(blocks, batch, *a.shape[1:])
        parts = jax.tree.map(fill, parts)
    first = jax.tree.map(lambda a: a[0], parts)
    nothing = jax.tree.map(
        lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(step, first)[0]
    )

    def body(total: PyTree, part: PyTree) -> tuple[Any, Any]:
        added, kept = step(part)
        return jax.tree.map(jnp.add, total, added), kept

    total, kept = jax.lax.scan(body, nothing, parts)
    if batch > 1:
        kept = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:count], kept)
    return total, kept


def exchange_in(
    setup: Setup,
    share: DeviceShare,
    members: dict[str, Members],
    lost: Any,
    key: Key,
    t: Any,
    like: PyTree,
) -> Callable:
    """The simulator's `exchange` for round t.

    Args:
        setup: the clients and their rows.
        share: this device's slice of the cohort.
        members: the cohort of each phase, by the phase's name.
        lost: whether some phase of the round has no reply at all. Then nothing counts.
        key: the run's root key.
        t: the round.
        like: the memory of one client, or its shape.

    The carry of `run_round` is (tables of memories, what the cohort has kept, drift).
    """
    everyone = setup.cohort == setup.clients.count
    where = lambda counted, a, b: jax.tree.map(partial(jnp.where, counted), a, b)

    def exchange(phase: Phase, message: Any, carry: Any) -> Any:
        tables, kept, drift = carry
        ids, _, answered = members[phase.name]  # [m]
        counted = answered & ~lost
        my_ids, my_counted = share.mine((ids, counted))  # [c]
        memory = unpacked(share.rows(tables, my_ids, everyone), like)
        if kept is None or phase.resample:
            kept = memory  # the first phase, or a cohort that has kept nothing yet

        def work(task: ClientTask) -> tuple[Any, Any]:
            # The address (run, round, phase, client) decides all of a client's random
            # numbers, whatever the layout.
            turn = Turn(t, key_of(key, t, phase.name, task.id))
            f = clients.objective(task.slot)
            reply, kept = phase.client(f, message, task.kept, turn)
            renewed = None
            if phase.renew is not keep:
                renewed = phase.renew(task.memory, reply)
                renewed = where(task.counted, renewed, task.memory)
            moved = None if phase.delta is None else norm_sq(phase.delta(reply))
            # Replies that do not arrive count as zero. A plain product with `counted`
            # would let their NaN through.
            added = where(
                task.counted,
                (reply, moved),
                jax.tree.map(jnp.zeros_like, (reply, moved)),
            )
            return added, (kept, renewed)

        clients, slots = setup.clients, my_ids
        if not everyone and clients.widest <= NEAR:
            # In the copied table the cohort's clients are numbered from 0.
            clients = clients.near(my_ids)
            slots = jnp.arange(len(my_ids), dtype=jnp.int32)
        tasks = ClientTask(
            id=my_ids, slot=slots, counted=my_counted, memory=memory, kept=kept
        )
        sums, (kept, renewed) = one_by_one(work, tasks, share.layout.batch)
        rows = None if renewed is None else packed(renewed)
        if share.split:
            # The memories stay on their devices; only sums meet.
            sums, _ = share.meet(sums, None, setup.cohort)
        else:
            sums, rows = share.meet(sums, rows, setup.cohort)
        if rows is not None:
            put = lambda table, new: new if everyone else table.at[ids].set(new)
            tables = jax.tree.map(put, tables, rows)
        count = counted.sum()
        reply, moved = jax.tree.map(lambda a: a / jnp.maximum(count, 1), sums)
        drift = drift if moved is None else moved
        return reply, count / setup.clients.count, (tables, kept, drift)

    return exchange


def packed(memories: PyTree) -> Tables:
    """Trees with clients on axis 0 as tables [clients, numbers], one per dtype."""
    parts: dict[str, list[jax.Array]] = {}
    for a in jax.tree.leaves(memories):
        parts.setdefault(a.dtype.name, []).append(a.reshape(len(a), -1))
    return {kind: jnp.concatenate(some, axis=1) for kind, some in parts.items()}


def unpacked(tables: Tables, like: PyTree) -> Any:
    """Rows of tables, [..., numbers], as trees; `like` is the memory of one client."""
    used, leaves = dict.fromkeys(tables, 0), []
    for a in jax.tree.leaves(like):
        kind, first = a.dtype.name, used[a.dtype.name]
        used[kind] = first + a.size
        part = tables[kind][..., first : used[kind]]
        leaves.append(part.reshape(*part.shape[:-1], *a.shape))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
