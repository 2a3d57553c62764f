"""Random cohorts and drop-outs: which clients take part in a round.

Compiled runs, PyTorch runs and federations all use these functions. So equal seeds give
equal cohorts everywhere. The samples of a client are drawn in `objective.py`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sagda.core import Phase
from sagda.keys import Key, below, bits, bits_at, key_of


def cohort_of(key: Key, t: Any, phase: Phase, clients: int, cohort: int) -> jax.Array:
    """Return the cohort S_t as sorted ids.

    All phases of a round have the same cohort, except phases with `resample`.
    """
    if cohort == clients:
        return jnp.arange(clients, dtype=jnp.int32)
    key = key_of(key, t, f"cohort {phase.name}" if phase.resample else "cohort")
    return choose(key, clients, cohort)


def choose(key: Key, clients: int, cohort: int) -> jax.Array:
    """Draw `cohort` of `clients` ids, uniformly without replacement, and sort them."""
    if 8 * cohort > clients:
        everyone = jnp.arange(clients, dtype=jnp.int32)
        return jnp.sort(jax.random.permutation(key, everyone)[:cohort])

    # A permutation would cost O(clients). Instead, draw ids with replacement, and
    # replace repeated ids by new draws until all ids differ. The result is the first
    # `cohort` distinct ids of a sequence of uniform draws, which is uniform as well.
    again = lambda ids: jnp.concatenate([ids[1:] == ids[:-1], jnp.zeros(1, bool)])

    def redraw(now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        ids, used = now
        twice = again(ids)
        # 32 bits in runs of double precision also, so that they draw the same ids.
        number = jnp.cumsum(twice, dtype=jnp.int32)
        fresh = below(bits_at(key, used + number - 1), clients)
        return jnp.sort(jnp.where(twice, fresh, ids)), used + number[-1]

    start = jnp.sort(below(bits(key, (cohort,)), clients)), jnp.int32(cohort)
    return jax.lax.while_loop(lambda now: again(now[0]).any(), redraw, start)[0]


def answers(key: Key, t: Any, phase: Phase, ids: jax.Array, dropout: Any) -> jax.Array:
    """Draw which of `ids` reply in a phase. Each fails with probability `dropout`."""
    words = bits_at(key_of(key, t, f"dropout {phase.name}"), ids)
    return words >= jnp.asarray(dropout * 2.0**32).astype(jnp.uint32)


class Members(NamedTuple):
    """The cohort of one phase."""

    ids: jax.Array  # [m], sorted
    asked: jax.Array  # [m], whether the client receives the message of the phase
    answered: jax.Array  # [m], whether the reply of the client arrives


def draw_members(
    phases: tuple[Phase, ...],
    key: Key,
    t: Any,
    clients: int,
    cohort: int,
    dropout: Any,
) -> dict[str, Members]:
    """Draw the cohort of every phase of round `t`, by the name of the phase.

    The cohort stays the same until a phase has `resample`. A client that fails in one
    phase also misses the following phases of that cohort. With `dropout` None, the
    compiled program contains no drop-outs.
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
