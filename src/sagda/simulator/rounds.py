"""The two compiled programs of a run: `begin` makes its start, `advance` its rounds.

The first and the last round are arguments of `advance`. Whole runs, chunks of rounds
and resumed runs all use this one program. So they have bit-for-bit the same results.
The work of the clients in a round is in `exchange.py`. Evaluations and callbacks
between rounds are in `loop.py`.
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

# After this number of rounds, the server's mean of all memories is computed from the
# memories again. In other rounds only changes are added, so rounding errors add up.
REFRESH = 1000


class Carry(NamedTuple):
    """All data that pass from one round to the next. A run can be resumed from them."""

    state: Any  # of the server
    memory: Any  # of all clients: tables [M, numbers], or trees [M, ...] with PyTorch
    drift: Any  # mean over S_t of ||z_i^{K+1} - z_t||^2 in the last round
    broken: Any  # the number of rounds after which z was not finite first, or -1


class Tally(NamedTuple):
    """Counts over a number of rounds. All but `lost` have shape [phases]."""

    sent: Any  # messages from the server
    replied: Any  # replies to the server
    rows: Any  # sum of n_i over the clients that received a message
    lost: Any  # rounds in which a phase had no reply


def one_round(
    setup: Setup,
    share: DeviceShare,
    algorithm: Algorithm,
    phases: tuple[Phase, ...],
    key: Key,
    carry: Carry,
    t: Any,
) -> tuple[Carry, Tally]:
    """Compute round `t` with the given phases. Returns the new carry and the counts."""
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
        # A lost round changes nothing. `exchange` has not changed the memories either.
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
    """Return the mean of the memories of all clients, the same on every device."""
    mean = unpacked(jax.tree.map(lambda a: a.mean(0), memory), like)
    return jax.lax.pmean(mean, "clients") if share.split else mean


def first_carry(
    setup: Setup, share: DeviceShare, method: Method, key: Key, z: Point
) -> tuple[Carry, Tally]:
    """Return the carry of a run before round 0, and the counts of the opening phases.

    All clients take part in the opening phases.
    """
    algorithm = method.build()
    z = setup.clients.problem.project(z)
    # If the memories are split, each device has the table of its clients only.
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
    """Compute rounds `first` to `last` - 1 of one run, and count them."""
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
    """Return counts that are all zero. `shape` is [..., phases]."""
    none, lost = np.zeros(shape, dtype), np.zeros(shape[:-1], dtype)
    return Tally(sent=none, replied=none, rows=none, lost=lost)


class RoundPrograms(NamedTuple):
    """The compiled programs of a layout.

    Axis 0 of every array in methods, keys, start points and carries is the run.
    """

    begin: Callable  # (setup, methods, keys, starts) -> carry, tally
    advance: Callable  # (setup, methods, keys, carry, first, last) -> carry, tally


def is_split(layout: Layout, cohort: int, clients: int) -> bool:
    """Return whether the memories of the clients are split over the devices.

    This needs two conditions: all clients take part in every round, and their number is
    a multiple of the number of devices.
    """
    return cohort == clients and layout.clients > 1 and clients % layout.clients == 0


def carry_specs(layout: Layout, split: bool) -> Carry:
    """Return which axes of the arrays of a carry are divided over the devices."""
    runs = Spec("runs")
    memory = Spec("runs", "clients") if split else runs
    return Carry(state=runs, memory=memory, drift=runs, broken=runs)


@cache
def programs(layout: Layout, split: bool) -> RoundPrograms:
    """Return the programs of a layout. The cache makes equal layouts compile once."""
    share = DeviceShare(layout, split)

    def each_run(one: Callable, *over: PyTree) -> Any:
        if len(jax.tree.leaves(over)[0]) == 1:
            # A single run needs no loop. Then its memories are updated in place. In a
            # loop, XLA would copy them.
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
        # Every device has all data. The runs are divided, and the memories if split.
        on_mesh = partial(
            jax.shard_map, mesh=layout.mesh, out_specs=(carry, runs), check_vma=False
        )
        begin = on_mesh(begin, in_specs=(Spec(), runs, runs, runs))
        inputs = Spec(), runs, runs, carry, Spec(), Spec()
        advance = on_mesh(advance, in_specs=inputs)
    compiled = partial(jax.jit, compiler_options={} if layout.kernel else SPARED)
    # `advance` overwrites the carry (argument 3), which may fill most of the memory.
    return RoundPrograms(compiled(begin), compiled(advance, donate_argnums=3))
