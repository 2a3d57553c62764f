"""The compiled programs of a run: its start, and any number of rounds.

`advance` is one program whose first and last round are arguments. Whole runs, chunks
and resumed runs all use it, so none of them can change a result. What the clients do
within a round is in `exchange.py`; evaluations and callbacks between rounds in
`loop.py`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as Spec

from sagda.core import Algorithm, Phase, Point, PyTree, run_round
from sagda.keys import Key
from sagda.methods import Method
from sagda.simulator.cohort import draw_members
from sagda.simulator.devices import SPARED
from sagda.simulator.exchange import DeviceShare, Tables, exchange_in, packed, unpacked
from sagda.simulator.layout import Layout
from sagda.simulator.setup import Setup

# Rounds between fresh means of all memories. The server's mean is updated by changes
# only, so that rounding errors would add up.
REFRESH = 1000


class Carry(NamedTuple):
    """What passes from round to round; a run can be resumed from it."""

    state: Any  # the server's
    memory: Any  # the clients': tables [M, numbers], or trees [M, ...] with PyTorch
    drift: Any  # mean over S_t of ||z_i^{K+1} - z_t||^2 in the last round
    broken: Any  # the first round whose iterate was not finite, or -1


class Tally(NamedTuple):
    """Counts over some rounds, [phases] each but for `lost`."""

    sent: Any  # messages from the server
    replied: Any  # replies to the server
    rows: Any  # local rows of the clients that got a message, added up
    lost: Any  # rounds in which some phase had no reply at all


def one_round(
    setup: Setup,
    share: DeviceShare,
    algorithm: Algorithm,
    phases: tuple[Phase, ...],
    key: Key,
    carry: Carry,
    t: Any,
) -> tuple[Carry, Tally]:
    """Round t through `phases`, with its counts."""
    # Cohorts and drop-outs of all phases are drawn first: whether the round is lost
    # must be known before any client's memory changes.
    members = draw_members(
        phases, key, t, setup.clients.count, setup.cohort, setup.dropout
    )
    answered = jnp.stack([member.answered.sum() for member in members.values()])
    lost = (answered == 0).any()
    like = jax.eval_shape(algorithm.memory, carry.state.z)
    exchange = exchange_in(setup, share, members, lost, key, t, like)
    state, (memory, _, drift) = run_round(
        phases,
        carry.state,
        exchange,
        (carry.memory, None, carry.drift),
        setup.clients.problem.project,
        t,
    )
    if setup.dropout is not None:
        # A lost round changes nothing. The exchange has left the memories alone.
        stay = lambda old, new: jnp.where(lost, old, new)
        state = jax.tree.map(stay, carry.state, state)
        drift = stay(carry.drift, drift)
    if algorithm.mean is not None:
        current = lambda: getattr(state, str(algorithm.mean))
        mean = jax.lax.cond(
            (t + 1) % REFRESH == 0, lambda: mean_of(memory, share, like), current
        )
        state = state._replace(**{algorithm.mean: mean})
    finite = [jnp.isfinite(a).all() for a in jax.tree.leaves(state.z)]
    diverges = ~jnp.stack(finite).all() & (carry.broken < 0)
    broken = jnp.where(diverges, t + 1, carry.broken)
    rows_of = setup.clients.rows_of
    rows = [
        jnp.where(member.asked, rows_of(member.ids), 0).sum()
        for member in members.values()
    ]
    asked = [member.asked.sum() for member in members.values()]
    tally = Tally(
        sent=jnp.stack(asked), replied=answered, rows=jnp.stack(rows), lost=lost
    )
    tally = jax.tree.map(lambda a: a.astype(jnp.int32), tally)
    after = Carry(state=state, memory=memory, drift=drift, broken=broken)
    return after, tally


def mean_of(memory: Tables, share: DeviceShare, like: PyTree) -> PyTree:
    """The mean of all clients' memories, the same on every device."""
    mean = unpacked(jax.tree.map(lambda a: a.mean(0), memory), like)
    return jax.lax.pmean(mean, "clients") if share.split else mean


def first_carry(
    setup: Setup, share: DeviceShare, method: Method, key: Key, z: Point
) -> tuple[Carry, Tally]:
    """A run at its start, after the opening phases with every client."""
    algorithm = method.build()
    z = setup.clients.problem.project(z)
    # A device that shares the memories has a table of its own clients only.
    clients = setup.clients.count // (share.layout.clients if share.split else 1)
    first = packed(jax.tree.map(lambda a: a[None], algorithm.memory(z)))
    spread = lambda a: jnp.broadcast_to(a, (clients, a.size))
    memory = jax.tree.map(spread, first)
    dtype = jnp.result_type(*jax.tree.leaves(z))
    carry = Carry(
        state=algorithm.init(z),
        memory=memory,
        drift=jnp.full((), jnp.nan, dtype),
        broken=jnp.full((), -1, jnp.int32),
    )
    if not algorithm.opening:
        return carry, no_counts(0)
    everyone = replace(setup, cohort=setup.clients.count, dropout=None)
    now = jnp.zeros((), jnp.int32)
    return one_round(everyone, share, algorithm, algorithm.opening, key, carry, now)


def rounds_of(
    setup: Setup,
    share: DeviceShare,
    method: Method,
    key: Key,
    carry: Carry,
    first: Any,
    last: Any,
) -> tuple[Carry, Tally]:
    """Rounds `first` to `last` - 1 of a run."""
    algorithm = method.build()

    def body(t: Any, now: Any) -> Any:
        carry, total = now
        carry, tally = one_round(
            setup, share, algorithm, algorithm.phases, key, carry, t
        )
        return carry, jax.tree.map(jnp.add, total, tally)

    start = carry, no_counts(len(algorithm.phases))
    return jax.lax.fori_loop(first, last, body, start)


def no_counts(*shape: int, dtype: Any = np.int32) -> Tally:
    """The counts of no rounds; `shape` is [..., phases]."""
    none, lost = np.zeros(shape, dtype), np.zeros(shape[:-1], dtype)
    return Tally(sent=none, replied=none, rows=none, lost=lost)


class RoundPrograms(NamedTuple):
    """The compiled programs of a layout. Methods, keys, starts and carries have the
    runs on axis 0."""

    begin: Callable  # (setup, methods, keys, starts) -> carry, tally
    advance: Callable  # (setup, methods, keys, carry, first, last) -> carry, tally


def is_split(layout: Layout, cohort: int, clients: int) -> bool:
    """Whether each device holds the memories of its own clients only.

    It can if all clients take part in every round and divide evenly by the devices.
    """
    return cohort == clients and layout.clients > 1 and clients % layout.clients == 0


def carry_specs(layout: Layout, split: bool) -> Carry:
    """How the axes of a carry's arrays are divided over the mesh of devices."""
    runs = Spec("runs")
    memory = Spec("runs", "clients") if split else runs
    return Carry(state=runs, memory=memory, drift=runs, broken=runs)


@cache
def programs(layout: Layout, split: bool) -> RoundPrograms:
    """The programs of a layout. Cached, so that equal layouts compile once."""
    share = DeviceShare(layout, split)

    def each_run(one: Callable, *over: PyTree) -> Any:
        if len(jax.tree.leaves(over)[0]) == 1:
            # Without a loop over runs, memories are updated in place, not copied.
            out = one(*jax.tree.map(lambda a: a[0], over))
            return jax.tree.map(lambda a: a[None], out)
        if layout.batch == 1:
            return jax.lax.map(lambda run: one(*run), over)
        return jax.vmap(one)(*over)

    def begin(setup, methods, keys, starts):
        return each_run(partial(first_carry, setup, share), methods, keys, starts)

    def advance(setup, methods, keys, carry, first, last):
        one = lambda method, key, carry: rounds_of(
            setup, share, method, key, carry, first, last
        )
        return each_run(one, methods, keys, carry)

    if layout.devices > 1:
        runs, carry = Spec("runs"), carry_specs(layout, split)
        # Data are on every device; runs, and memories if split, are divided.
        on_mesh = partial(
            jax.shard_map, mesh=layout.mesh, out_specs=(carry, runs), check_vma=False
        )
        begin = on_mesh(begin, in_specs=(Spec(), runs, runs, runs))
        inputs = Spec(), runs, runs, carry, Spec(), Spec()
        advance = on_mesh(advance, in_specs=inputs)
    compiled = partial(jax.jit, compiler_options={} if layout.kernel else SPARED)
    # The carry is donated: its memories may be most of a device's memory.
    return RoundPrograms(compiled(begin), compiled(advance, donate_argnums=3))
