"""`exchange_in`: computes one phase of a round for a cohort, in a compiled program.

`core.run_round` calls the function that `exchange_in` returns, once for each phase. The
function runs on every device and returns the mean of all replies. Cohorts are drawn in
`cohort.py`. The rounds are in `rounds.py`.

Shapes: M is the number of all clients, and m is the size of the cohort. Each device
computes c = ceil(m / devices) clients. On a device, arrays of the cohort have c on
axis 0.
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

# The memories of several clients: a table [clients, numbers] for every dtype. With one
# row per client, a memory is read by one access to RAM, not by one per leaf of a tree.
Tables: TypeAlias = dict[str, jax.Array]
# If clients have at most this number of rows, the rows of the cohort are first copied
# to one small table. For clients with more rows, the copy costs more than it saves.
NEAR = 64


class ClientTask(NamedTuple):
    """The input of one client in a phase. Tasks are stacked: each array is [c, ...]."""

    id: Any
    slot: Any  # the number of the client in the table with its rows
    counted: Any  # whether its reply arrives and the round is not lost
    memory: Any  # stored between rounds
    kept: Any  # from the previous phase of this round, see `core.Phase`


class DeviceShare(NamedTuple):
    """Selects the clients of this device, and combines results of all devices."""

    layout: Layout
    split: bool  # whether each device stores only the memories of its clients

    def mine(self, tree: PyTree) -> Any:
        """Cut arrays [m, ...] of the cohort to the slice [c, ...] of this device.

        The slice of the last device is padded with zeros. Their replies do not count.
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
        """Return the rows [c, numbers] of the clients `ids` of this device.

        `everyone` tells whether all clients take part in the round.
        """
        if not everyone:
            return jax.tree.map(lambda a: a[ids], tables)
        # If all clients take part, the rows are in the order of `ids` already.
        return tables if self.split else self.mine(tables)

    def meet(self, sums: PyTree, rows: Any, cohort: int) -> tuple[Any, Any]:
        """Add up `sums` over all devices, and collect `rows` of all as [m, numbers].

        An exchange between devices costs more than the bytes that it moves. So sums and
        rows are sent as one array. Rows of another dtype need a separate exchange.
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
        # [devices, c, numbers] -> [m, numbers]. The padding comes last and is cut off.
        whole = lambda a: a.reshape(-1, *a.shape[2:])[:cohort]
        return unflatten(both[:, : len(flat)].sum(0)), jax.tree.map(whole, rows)


def one_by_one(work: Callable, parts: PyTree, batch: int) -> tuple[Any, Any]:
    """Call `work(part) -> (added, kept)` for each part, `batch` parts at a time.

    Returns the sum of all `added`, and all `kept` stacked on axis 0. Each batch is
    added to the sum at once. So only `batch` replies are in memory at a time.
    """
    count = len(jax.tree.leaves(parts)[0])

    def together(block: PyTree) -> tuple[Any, Any]:
        added, kept = jax.vmap(work)(block)
        return jax.tree.map(lambda a: a.sum(0), added), kept

    if batch >= count:
        return together(parts)
    step = work
    if batch > 1:
        # [count, ...] -> [blocks, batch, ...]. The padding is zeros. Its `counted` is
        # False, so it adds nothing to the sums.
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
    """Return the `exchange` function of the simulator for round `t`.

    The carry of this function is a triple: the tables of memories, the values `kept` of
    the cohort, and the drift.

    Args:
        setup: the clients and their rows.
        share: selects the clients of this device.
        members: the cohort of each phase, by the name of the phase.
        lost: whether the round is lost, because a phase has no reply. Then no reply
            counts and no memory changes.
        key: the root key of the run.
        t: the number of the round.
        like: the memory of one client, or its shape.
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
            kept = memory  # in the first phase, and in the first phase of a new cohort

        def work(task: ClientTask) -> tuple[Any, Any]:
            # The random numbers of a client depend on run, round, phase and id only.
            # So they are the same in every layout.
            turn = Turn(t, key_of(key, t, phase.name, task.id))
            f = clients.objective(task.slot)
            reply, kept = phase.client(f, message, task.kept, turn)
            renewed = None
            if phase.renew is not keep:
                renewed = phase.renew(task.memory, reply)
                renewed = where(task.counted, renewed, task.memory)
            moved = None if phase.delta is None else norm_sq(phase.delta(reply))
            # Replies that do not arrive count as zero. `where` is necessary: a product
            # with `counted` would be NaN if the reply is NaN.
            added = where(
                task.counted,
                (reply, moved),
                jax.tree.map(jnp.zeros_like, (reply, moved)),
            )
            return added, (kept, renewed)

        clients, slots = setup.clients, my_ids
        if not everyone and clients.widest <= NEAR:
            # In the copied table, the clients of the cohort have the numbers 0 to c-1.
            clients = clients.near(my_ids)
            slots = jnp.arange(len(my_ids), dtype=jnp.int32)
        tasks = ClientTask(
            id=my_ids, slot=slots, counted=my_counted, memory=memory, kept=kept
        )
        sums, (kept, renewed) = one_by_one(work, tasks, share.layout.batch)
        rows = None if renewed is None else packed(renewed)
        if share.split:
            # The memories stay on their devices. Only the sums are exchanged.
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
    """Turn trees with clients on axis 0 into tables [clients, numbers] per dtype."""
    parts: dict[str, list[jax.Array]] = {}
    for a in jax.tree.leaves(memories):
        parts.setdefault(a.dtype.name, []).append(a.reshape(len(a), -1))
    return {kind: jnp.concatenate(some, axis=1) for kind, some in parts.items()}


def unpacked(tables: Tables, like: PyTree) -> Any:
    """Turn the rows of tables back into memories. This reverses `packed`.

    The tables have shape [..., numbers per client]. `like` is the memory of one client,
    or a tree of its shapes.
    """
    used, leaves = dict.fromkeys(tables, 0), []
    for a in jax.tree.leaves(like):
        kind, first = a.dtype.name, used[a.dtype.name]
        used[kind] = first + a.size
        part = tables[kind][..., first : used[kind]]
        leaves.append(part.reshape(*part.shape[:-1], *a.shape))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
