"""Who takes part in a round: cohorts and drop-outs, drawn from keys.

Compiled runs, PyTorch runs and federations draw them here, so equal seeds give equal
cohorts everywhere.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sagda.core import Phase
from sagda.keys import Key, below, bits, bits_at, key_of


def cohort_of(key: Key, t: Any, phase: Phase, clients: int, cohort: int) -> jax.Array:
    """S_t as sorted ids: the round's draw, or a fresh one if the phase resamples."""
    if cohort == clients:
        return jnp.arange(clients, dtype=jnp.int32)
    key = key_of(key, t, f"cohort {phase.name}" if phase.resample else "cohort")
    return choose(key, clients, cohort)


def choose(key: Key, clients: int, cohort: int) -> jax.Array:
    """`cohort` of `clients`, uniformly without replacement, sorted."""
    if 8 * cohort > clients:
        everyone = jnp.arange(clients, dtype=jnp.int32)
        return jnp.sort(jax.random.permutation(key, everyone)[:cohort])

    # A permutation costs O(clients). The first `cohort` distinct ids of an endless
    # sequence of draws are as uniform: replace each id that occurs twice by the next
    # draw, until none does.
    again = lambda ids: jnp.concatenate([ids[1:] == ids[:-1], jnp.zeros(1, bool)])

    def redraw(now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        ids, used = now
        twice = again(ids)
        number = jnp.cumsum(twice, dtype=jnp.int32)  # also in double precision
        fresh = below(bits_at(key, used + number - 1), clients)
        return jnp.sort(jnp.where(twice, fresh, ids)), used + number[-1]

    start = jnp.sort(below(bits(key, (cohort,)), clients)), jnp.int32(cohort)
    return jax.lax.while_loop(lambda now: again(now[0]).any(), redraw, start)[0]


def answers(key: Key, t: Any, phase: Phase, ids: jax.Array, dropout: Any) -> jax.Array:
    """Which of `ids` reply in this phase. Each fails with probability `dropout`."""
    words = bits_at(key_of(key, t, f"dropout {phase.name}"), ids)
    return words >= jnp.asarray(dropout * 2.0**32).astype(jnp.uint32)


class Members(NamedTuple):
    """The cohort of one phase."""

    ids: jax.Array  # [m], sorted
    asked: jax.Array  # [m], whether it gets the phase's message
    answered: jax.Array  # [m], whether its reply arrives


def draw_members(
    phases: tuple[Phase, ...],
    key: Key,
    t: Any,
    clients: int,
    cohort: int,
    dropout: Any,
) -> dict[str, Members]:
    """The cohort of every phase. It stays the same until a phase draws a fresh one.

    A client that fails in an exchange is out until then. `dropout` None leaves
    drop-outs out of the compiled program.
    """
    members = {}
    everyone = jnp.ones(cohort, bool)
    ids, asked = cohort_of(key, t, phases[0], clients, cohort), everyone
    for phase in phases:
        if phase.resample:
            ids, asked = cohort_of(key, t, phase, clients, cohort), everyone
        answered = asked
        if dropout is not None:
            answered = asked & answers(key, t, phase, ids, dropout)
        members[phase.name] = Members(ids, asked, answered)
        asked = answered
    return members
