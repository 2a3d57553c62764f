"""The simulator's programs: rounds as a loop, clients and runs as the layout says.

`advance` is one program with dynamic bounds. Whole runs, chunks and resumed runs all go
through it, so none of them can change a result.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as Spec

from sagda.core import Algorithm, Phase, Point, PyTree, run_round
from sagda.keys import Key
from sagda.methods import Method
from sagda.simulator.cohort import draw_members
from sagda.simulator.devices import SPARED
from sagda.simulator.exchange import DeviceShare, Tables, exchange_in, packed, unpacked
from sagda.simulator.layout import Layout
from sagda.simulator.setup import Setup

# Rounds between fresh means of all memories: sums of changes drift by rounding.
REFRESH = 1000


class Carry(NamedTuple):
    """What passes from round to round; a run can go on from it."""

    state: Any
    memory: Any  # tables of [M, numbers]; with PyTorch trees of [M, ...]
    drift: Any  # mean over S_t of ||z_i^{K+1} - z_t||^2 in the last round
    broken: Any  # the first round whose iterate was not finite, or -1


class Tally(NamedTuple):
    """Counts over the rounds of a call, by phase."""

    sent: Any  # messages that went down
    replied: Any  # replies that came up
    rows: Any  # local rows of those who got a message, added up
    lost: Any  # rounds in which some phase had no reply at all


def one_round(
    setup: Setup,
    place: DeviceShare,
    algorithm: Algorithm,
    phases: tuple[Phase, ...],
    key: Key,
    carry: Carry,
    t: Any,
) -> tuple[Carry, Tally]:
    """Round t through `phases`, with its counts."""
    members = draw_members(
        phases, key, t, setup.clients.count, setup.cohort, setup.dropout
    )
    answered = jnp.stack([member.answered.sum() for member in members.values()])
    lost = (answered == 0).any()
    like = jax.eval_shape(algorithm.memory, carry.state.z)
    exchange = exchange_in(setup, place, members, lost, key, t, like)
    state, (memory, _, drift) = run_round(
        phases,
        carry.state,
        exchange,
        (carry.memory, None, carry.drift),
        setup.clients.problem.project,
        t,
    )
    if setup.dropout is not None:
        stay = lambda old, new: jnp.where(lost, old, new)
        state = jax.tree.map(stay, carry.state, state)
        drift = stay(carry.drift, drift)
    if algorithm.mean is not None:
        kept = lambda: getattr(state, str(algorithm.mean))
        mean = jax.lax.cond(
            (t + 1) % REFRESH == 0, lambda: mean_of(memory, place, like), kept
        )
        state = state._replace(**{algorithm.mean: mean})
    whole = [jnp.isfinite(a).all() for a in jax.tree.leaves(state.z)]
    breaks = ~jnp.stack(whole).all() & (carry.broken < 0)
    broken = jnp.where(breaks, t + 1, carry.broken)
    rows_of = setup.clients.rows_of
    rows = [
        jnp.where(member.asked, rows_of(member.ids), 0).sum()
        for member in members.values()
    ]
    asked = [member.asked.sum() for member in members.values()]
    tally = Tally(jnp.stack(asked), answered, jnp.stack(rows), lost)
    tally = jax.tree.map(lambda a: a.astype(jnp.int32), tally)
    return Carry(state, memory, drift, broken), tally


def mean_of(memory: Tables, place: DeviceShare, like: PyTree) -> PyTree:
    """The mean of all memories."""
    mean = unpacked(jax.tree.map(lambda a: a.mean(0), memory), like)
    return jax.lax.pmean(mean, "clients") if place.split else mean


def first_carry(
    setup: Setup, place: DeviceShare, method: Method, key: Key, z: Point
) -> tuple[Carry, Tally]:
    """A run at its start, after the opening phases with every client."""
    algorithm = method.build()
    z = setup.clients.problem.project(z)
    held = setup.clients.count // (place.layout.clients if place.split else 1)
    first = packed(jax.tree.map(lambda a: a[None], algorithm.memory(z)))
    spread = lambda a: jnp.broadcast_to(a, (held, a.size))
    memory = jax.tree.map(spread, first)
    dtype = jnp.result_type(*jax.tree.leaves(z))
    none = jnp.full((), jnp.nan, dtype)
    carry = Carry(algorithm.init(z), memory, none, jnp.full((), -1, jnp.int32))
    if not algorithm.opening:
        return carry, no_counts(0)
    everyone = replace(setup, cohort=setup.clients.count, dropout=None)
    now = jnp.zeros((), jnp.int32)
    return one_round(everyone, place, algorithm, algorithm.opening, key, carry, now)


def rounds_of(
    setup: Setup,
    place: DeviceShare,
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
            setup, place, algorithm, algorithm.phases, key, carry, t
        )
        return carry, jax.tree.map(jnp.add, total, tally)

    start = carry, no_counts(len(algorithm.phases))
    return jax.lax.fori_loop(first, last, body, start)


def no_counts(phases: int) -> Tally:
    none = jnp.zeros(phases, jnp.int32)
    return Tally(none, none, none, jnp.zeros((), jnp.int32))


class Programs(NamedTuple):
    """The compiled programs of a layout; methods, keys and carries have runs first."""

    begin: Callable  # (setup, methods, keys, starts) -> carry, tally
    advance: Callable  # (setup, methods, keys, carry, first, last) -> carry, tally


def is_split(layout: Layout, cohort: int, clients: int) -> bool:
    """Where all clients take part, each device can hold the memories of its own."""
    return cohort == clients and layout.clients > 1 and clients % layout.clients == 0


def carry_specs(layout: Layout, split: bool) -> Carry:
    """Which axes of a carry lie over which devices."""
    runs = Spec("runs")
    return Carry(runs, Spec("runs", "clients") if split else runs, runs, runs)


@cache
def programs(layout: Layout, split: bool) -> Programs:
    """The programs that lay runs and clients out as `layout` says."""
    place = DeviceShare(layout, split)

    def each_run(one: Callable, *over: PyTree) -> Any:
        if len(jax.tree.leaves(over)[0]) == 1:
            # Without a loop over runs the memories stay where they are.
            out = one(*jax.tree.map(lambda a: a[0], over))
            return jax.tree.map(lambda a: a[None], out)
        if layout.batch == 1:
            return jax.lax.map(lambda run: one(*run), over)
        return jax.vmap(one)(*over)

    def begin(setup, methods, keys, starts):
        return each_run(partial(first_carry, setup, place), methods, keys, starts)

    def advance(setup, methods, keys, carry, first, last):
        one = lambda method, key, carry: rounds_of(
            setup, place, method, key, carry, first, last
        )
        return each_run(one, methods, keys, carry)

    if layout.devices > 1:
        runs, carry = Spec("runs"), carry_specs(layout, split)
        share = partial(
            jax.shard_map, mesh=layout.mesh, out_specs=(carry, runs), check_vma=False
        )
        begin = share(begin, in_specs=(Spec(), runs, runs, runs))
        inputs = Spec(), runs, runs, carry, Spec(), Spec()
        advance = share(advance, in_specs=inputs)
    compiled = partial(jax.jit, compiler_options={} if layout.kernel else SPARED)
    return Programs(compiled(begin), compiled(advance, donate_argnums=3))
