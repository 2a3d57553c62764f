"""The simulator's programs: clients as a batch axis, rounds as a loop, seeds on top.

`advance` is one program with dynamic bounds. Whole runs, chunks and resumed runs all go
through it, so none of them can change a result.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sagda.core import Algorithm, Phase, Point, Turn, keep, run_round
from sagda.engines.cohort import answers, cohort_of
from sagda.engines.setup import Setup
from sagda.inner import norm_sq
from sagda.keys import Key, key_of, root_key
from sagda.metrics import measure

# Rounds between fresh means of all memories: sums of changes drift by rounding.
REFRESH = 1000


class Carry(NamedTuple):
    """What passes from round to round; a run can go on from it."""

    state: Any
    memory: Any  # [M, ...]
    drift: Any  # mean over S_t of ||z_i^{K+1} - z_t||^2 in the last round
    broken: Any  # the first round whose iterate was not finite, or -1


class Tally(NamedTuple):
    """Counts over the rounds of a call, by phase."""

    sent: Any  # messages that went down
    replied: Any  # replies that came up
    rows: Any  # local rows of those who got a message, added up
    lost: Any  # rounds in which some phase had no reply at all


class Members(NamedTuple):
    """The cohort of one phase."""

    ids: jax.Array  # [m]
    asked: jax.Array  # [m], still in the round
    answered: jax.Array  # [m], and the reply arrived


def draw_members(
    setup: Setup, phases: tuple[Phase, ...], key: Key, t: Any
) -> dict[str, Members]:
    """Every phase's cohort, which lasts until a phase draws a fresh one.

    Who misses an exchange is out until then.
    """
    members = {}
    everyone = jnp.ones(setup.cohort, bool)
    ids, asked = cohort_of(key, t, phases[0], setup.clients, setup.cohort), everyone
    for phase in phases:
        if phase.resample:
            ids = cohort_of(key, t, phase, setup.clients, setup.cohort)
            asked = everyone
        answered = asked
        if setup.dropout is not None:
            answered = asked & answers(key, t, phase, ids, setup.dropout)
        members[phase.name] = Members(ids, asked, answered)
        asked = answered
    return members


def exchange_in(setup: Setup, members: dict[str, Members], lost: Any, key: Key, t: Any):
    """The simulator's `exchange`: the cohort works side by side."""
    everyone = setup.cohort == setup.clients

    def exchange(phase, message, carry):
        memory, kept, drift = carry
        ids, _, answered = members[phase.name]
        counted = answered & ~lost
        own = memory if everyone else jax.tree.map(lambda a: a[ids], memory)
        if kept is None or phase.resample:
            kept = own

        def work(i, kept):
            turn = Turn(t, key_of(key, t, phase.name, i))
            return phase.client(setup.objective(i), message, kept, turn)

        replies, kept = jax.vmap(work)(ids, kept)
        count = counted.sum()
        mean = lambda a: masked(counted, a, 0).sum(0) / jnp.maximum(count, 1)
        if phase.renew is not keep:
            renewed = jax.tree.map(
                partial(masked, counted), jax.vmap(phase.renew)(own, replies), own
            )
            put = lambda table, rows: rows if everyone else table.at[ids].set(rows)
            memory = jax.tree.map(put, memory, renewed)
        if phase.delta is not None:
            drift = mean(jax.vmap(norm_sq)(jax.vmap(phase.delta)(replies)))
        mean_reply = jax.tree.map(mean, replies)
        return mean_reply, count / setup.clients, (memory, kept, drift)

    return exchange


def masked(mask: jax.Array, a: jax.Array, b: Any) -> jax.Array:
    """Rows of `a` where the mask holds, else of `b`."""
    return jnp.where(mask.reshape(-1, *(1,) * (a.ndim - 1)), a, b)


def one_round(
    setup: Setup,
    algorithm: Algorithm,
    phases: tuple[Phase, ...],
    key: Key,
    carry: Carry,
    t: Any,
) -> tuple[Carry, Tally]:
    """Round t through `phases`, with its counts."""
    members = draw_members(setup, phases, key, t)
    answered = jnp.stack([member.answered.sum() for member in members.values()])
    lost = (answered == 0).any()
    exchange = exchange_in(setup, members, lost, key, t)
    state, (memory, _, drift) = run_round(
        phases,
        carry.state,
        exchange,
        (carry.memory, None, carry.drift),
        setup.problem.project,
        t,
    )
    if setup.dropout is not None:
        stay = lambda old, new: jnp.where(lost, old, new)
        state = jax.tree.map(stay, carry.state, state)
        drift = stay(carry.drift, drift)
    if algorithm.mean is not None:
        fresh = lambda: jax.tree.map(lambda a: a.mean(0), memory)
        kept = lambda: getattr(state, str(algorithm.mean))
        mean = jax.lax.cond((t + 1) % REFRESH == 0, fresh, kept)
        state = state._replace(**{algorithm.mean: mean})
    whole = [jnp.isfinite(a).all() for a in jax.tree.leaves(state.z)]
    breaks = ~jnp.stack(whole).all() & (carry.broken < 0)
    broken = jnp.where(breaks, t + 1, carry.broken)
    rows = [
        jnp.where(member.asked, setup.size[member.ids], 0).sum()
        for member in members.values()
    ]
    asked = [member.asked.sum() for member in members.values()]
    tally = Tally(jnp.stack(asked), answered, jnp.stack(rows), lost)
    tally = jax.tree.map(lambda a: a.astype(jnp.int32), tally)
    return Carry(state, memory, drift, broken), tally


@jax.jit
def begin(setup: Setup, keys: Key, starts: Point) -> tuple[Carry, Tally]:
    """Each seed at its start, after the opening phases with every client."""

    def one(key: Key, z: Point) -> tuple[Carry, Tally]:
        algorithm = setup.method.build()
        z = setup.problem.project(z)
        spread = lambda a: jnp.broadcast_to(a, (setup.clients, *a.shape))
        memory = jax.tree.map(spread, algorithm.memory(z))
        none = jnp.full((), jnp.nan, setup.weight.dtype)
        carry = Carry(algorithm.init(z), memory, none, jnp.full((), -1, jnp.int32))
        if not algorithm.opening:
            return carry, no_counts(0)
        everyone = replace(setup, cohort=setup.clients, dropout=None)
        now = jnp.zeros((), jnp.int32)
        return one_round(everyone, algorithm, algorithm.opening, key, carry, now)

    return jax.vmap(one)(keys, starts)


@partial(jax.jit, donate_argnames="carry")
def advance(
    setup: Setup, carry: Carry, keys: Key, first: Any, last: Any
) -> tuple[Carry, Tally]:
    """Rounds `first` to `last` - 1 of each seed."""

    def one(carry: Carry, key: Key) -> tuple[Carry, Tally]:
        algorithm = setup.method.build()

        def body(t, loop):
            carry, total = loop
            carry, tally = one_round(setup, algorithm, algorithm.phases, key, carry, t)
            return carry, jax.tree.map(lambda a, b: a + b, total, tally)

        start = carry, no_counts(len(algorithm.phases))
        return jax.lax.fori_loop(first, last, body, start)

    return jax.vmap(one)(carry, keys)


def no_counts(phases: int) -> Tally:
    none = jnp.zeros(phases, jnp.int32)
    return Tally(none, none, none, jnp.zeros((), jnp.int32))


class Evaluation(NamedTuple):
    columns: dict[str, jax.Array]
    scores: Any  # [rows] of the training table, or None
    test_scores: Any  # [rows] of the test table, or None


class Seen(NamedTuple):
    """What an evaluation looks at, the optional parts where they are asked for."""

    z: Point
    memory: Any = None  # for variate_lag
    drift: Any = None


@partial(jax.jit, static_argnames="metrics")
def evaluate(
    setup: Setup, seen: Seen, test: Any, metrics: tuple[str, ...]
) -> Evaluation:
    """The columns of each seed's history at this moment.

    `setup` comes without its method, so that all methods share one program.
    """

    def variate_lag(seen: Seen) -> jax.Array:
        def one(client):
            i, v_i = client
            f = setup.objective(i)
            return norm_sq(v_i - f.grad(seen.z, f.whole(root_key(0))))

        return jax.lax.map(one, (jnp.arange(setup.clients), seen.memory)).mean()

    def one(seen: Seen) -> Evaluation:
        z = seen.z
        columns = measure(
            setup.problem, z, setup.table, setup.weight, setup.owner, setup.clients
        )
        extra = {
            "drift": lambda: seen.drift,
            "variate_lag": lambda: variate_lag(seen),
            "potential": lambda: columns["phi"] - columns["f"] / 10,
        }
        columns |= {name: extra[name]() for name in metrics}
        score = setup.problem.score
        test_scores = None if test is None else score(z.x, test)
        return Evaluation(columns, score(z.x, setup.table), test_scores)

    return jax.vmap(one)(seen)
