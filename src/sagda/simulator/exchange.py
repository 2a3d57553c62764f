"""The simulator's exchange: a cohort's work, on the devices that share it."""

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

# Memories of several clients: a table [clients, numbers] for every dtype.
Tables: TypeAlias = dict[str, jax.Array]
# Rows per client up to which a part of many clients is copied together to work on.
NEAR = 64


class ClientTask(NamedTuple):
    """A client's part in a phase, before and after its work."""

    id: Any
    slot: Any  # where its rows are
    counted: Any  # whether its reply arrives, in a round that is not lost
    own: Any  # its memory
    kept: Any


class DeviceShare(NamedTuple):
    """Where a device stands among those that share a round's clients."""

    layout: Layout
    split: bool  # whether each holds the memories of its own clients only

    def mine(self, tree: PyTree) -> Any:
        """This device's share of what is known for the whole cohort, padded."""
        many = self.layout.clients
        if many == 1:
            return tree

        def cut(a: jax.Array) -> jax.Array:
            each = -(-len(a) // many)
            a = jnp.pad(a, [(0, many * each - len(a)), *[(0, 0)] * (a.ndim - 1)])
            return jax.lax.dynamic_slice_in_dim(
                a, jax.lax.axis_index("clients") * each, each
            )

        return jax.tree.map(cut, tree)

    def meet(self, sums: PyTree, rows: Any, cohort: int) -> tuple[Any, Any]:
        """Sums over all devices, and every device's rows of the tables.

        One meeting for both, but for tables of another type than the sums'.
        """
        if self.layout.clients == 1:
            return sums, rows
        flat, back = ravel_pytree(sums)
        if rows is None:
            return back(jax.lax.psum(flat, "clients")), None
        gather = lambda a: jax.lax.all_gather(a, "clients")
        alike = {kind: a for kind, a in rows.items() if a.dtype == flat.dtype}
        others = {kind: gather(a) for kind, a in rows.items() if kind not in alike}
        flat_rows, back_rows = ravel_pytree(alike)
        both = gather(jnp.concatenate([flat, flat_rows.astype(flat.dtype)]))
        rows = jax.vmap(back_rows)(both[:, len(flat) :]) | others
        whole = lambda a: a.reshape(-1, *a.shape[2:])[:cohort]
        return back(both[:, : len(flat)].sum(0)), jax.tree.map(whole, rows)


def one_by_one(work: Callable, parts: PyTree, batch: int) -> tuple[Any, Any]:
    """`work(part) -> (to be summed, to be kept)` for each part, `batch` at a time."""
    count = len(jax.tree.leaves(parts)[0])

    def together(some: PyTree) -> tuple[Any, Any]:
        added, kept = jax.vmap(work)(some)
        return jax.tree.map(lambda a: a.sum(0), added), kept

    if batch >= count:
        return together(parts)
    step = work
    if batch > 1:
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
    place: DeviceShare,
    members: dict[str, Members],
    lost: Any,
    key: Key,
    t: Any,
    like: PyTree,
) -> Callable:
    """The simulator's `exchange`: each device works through its part of the cohort.

    `like` is the memory of one client, or its shape.
    """
    everyone = setup.cohort == setup.clients.count
    where = lambda counted, a, b: jax.tree.map(partial(jnp.where, counted), a, b)

    def exchange(phase: Phase, message: Any, carry: Any) -> Any:
        memory, kept, drift = carry
        ids, _, answered = members[phase.name]
        counted = answered & ~lost
        mine = place.mine((ids, counted))
        own = memory
        if not everyone:
            own = jax.tree.map(lambda a: a[mine[0]], memory)
        elif not place.split:
            own = place.mine(memory)
        own = unpacked(own, like)
        if kept is None or phase.resample:
            kept = own

        def work(part: ClientTask) -> tuple[Any, Any]:
            turn = Turn(t, key_of(key, t, phase.name, part.id))
            f = clients.objective(part.slot)
            reply, kept = phase.client(f, message, part.kept, turn)
            renewed = None
            if phase.renew is not keep:
                renewed = where(part.counted, phase.renew(part.own, reply), part.own)
            moved = None if phase.delta is None else norm_sq(phase.delta(reply))
            added = where(
                part.counted,
                (reply, moved),
                jax.tree.map(jnp.zeros_like, (reply, moved)),
            )
            return added, (kept, renewed)

        slots = jnp.arange(len(mine[0]), dtype=jnp.int32)
        clients = setup.clients
        if close := gathers(setup):
            clients = clients.near(mine[0])
        parts = ClientTask(mine[0], slots if close else mine[0], mine[1], own, kept)
        sums, (kept, renewed) = one_by_one(work, parts, place.layout.batch)
        rows = None if renewed is None else packed(renewed)
        if place.split:
            sums, _ = place.meet(sums, None, setup.cohort)
        else:
            sums, rows = place.meet(sums, rows, setup.cohort)
        if rows is not None:
            put = lambda table, new: new if everyone else table.at[ids].set(new)
            memory = jax.tree.map(put, memory, rows)
        count = counted.sum()
        reply, moved = jax.tree.map(lambda a: a / jnp.maximum(count, 1), sums)
        drift = drift if moved is None else moved
        return reply, count / setup.clients.count, (memory, kept, drift)

    return exchange


def gathers(setup: Setup) -> bool:
    """Whether a cohort's rows are brought together before it works."""
    clients = setup.clients
    return setup.cohort < clients.count and clients.widest <= NEAR


def packed(memories: PyTree) -> Tables:
    """Trees of [clients, ...] as tables."""
    parts: dict[str, list[jax.Array]] = {}
    for a in jax.tree.leaves(memories):
        parts.setdefault(a.dtype.name, []).append(a.reshape(len(a), -1))
    return {kind: jnp.concatenate(some, axis=1) for kind, some in parts.items()}


def unpacked(tables: Tables, like: PyTree) -> Any:
    """Rows of the tables, [..., numbers], as trees of memories like this one."""
    used, leaves = dict.fromkeys(tables, 0), []
    for a in jax.tree.leaves(like):
        kind, first = a.dtype.name, used[a.dtype.name]
        used[kind] = first + a.size
        part = tables[kind][..., first : used[kind]]
        leaves.append(part.reshape(*part.shape[:-1], *a.shape))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
