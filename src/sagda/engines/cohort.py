"""Who takes part: cohorts and drop-outs, from keys that every engine shares."""

from typing import Any

import jax
import jax.numpy as jnp

from sagda.core import Phase
from sagda.keys import Key, below, bits, bits_at, key_of


def cohort_of(key: Key, t: Any, phase: Phase, clients: int, cohort: int) -> jax.Array:
    """S_t as sorted ids: one draw for the round, or a fresh one for `phase`."""
    if cohort == clients:
        return jnp.arange(clients, dtype=jnp.int32)
    key = key_of(key, t, f"cohort {phase.name}" if phase.resample else "cohort")
    return choose(key, clients, cohort)


def choose(key: Key, clients: int, cohort: int) -> jax.Array:
    """`cohort` of `clients`, uniformly without replacement, sorted."""
    if 8 * cohort > clients:
        everyone = jnp.arange(clients, dtype=jnp.int32)
        return jnp.sort(jax.random.permutation(key, everyone)[:cohort])

    # A permutation costs O(clients). Drawing with repetition and keeping the first
    # distinct ids is as uniform; draws without enough of them are thrown away whole.
    tries = 2 * cohort + 8

    def attempt(key: Key) -> tuple[jax.Array, jax.Array]:
        ids = below(bits(key, (tries,)), clients)
        order = jnp.argsort(ids, stable=True).astype(jnp.int32)
        found = ids[order]
        new = jnp.concatenate([jnp.ones(1, bool), found[1:] != found[:-1]])
        first = jnp.sort(jnp.where(new, order, tries))[:cohort]
        enough = first[-1] < tries
        return jnp.sort(ids[jnp.minimum(first, tries - 1)]), enough

    def again(carry):
        key, _, _ = carry
        key = key_of(key, "again")
        return key, *attempt(key)

    start = key, *attempt(key)
    return jax.lax.while_loop(lambda carry: ~carry[2], again, start)[1]


def answers(key: Key, t: Any, phase: Phase, ids: jax.Array, dropout: Any) -> jax.Array:
    """Which of `ids` answer in this phase: each fails with probability `dropout`."""
    words = bits_at(key_of(key, t, f"dropout {phase.name}"), ids)
    return words >= jnp.asarray(dropout * 2.0**32).astype(jnp.uint32)
