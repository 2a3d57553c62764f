"""Randomness by address: every random number follows from a seed and a path."""

from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp

Key = jax.Array


def key_of(key: Key, *path: Any) -> Key:
    """The key at the end of a path of names and numbers, such as round, phase, client.

    Nothing is carried from one draw to the next, so any draw can be repeated alone.
    """
    for part in path:
        if isinstance(part, str):
            part = crc32(part.encode())
        key = jax.random.fold_in(key, part)
    return key


def root_key(seed: Any) -> Key:
    """The root of all paths of a run."""
    return jax.random.key(seed, impl="threefry2x32")


def bits_below(bits: jax.Array, bound: Any) -> jax.Array:
    """Uniform integers in [0, bound) from 32 random bits each: the high word of a product.

    All integers have 32 bits whatever the width of floats, so that float64 draws the
    same rows; the bias is below bound / 2**32.
    """
    bound = jnp.asarray(bound).astype(jnp.uint32)
    low, high = bits & 0xFFFF, bits >> 16
    bound_low, bound_high = bound & 0xFFFF, bound >> 16
    cross = high * bound_low + (low * bound_low >> 16)
    middle = low * bound_high + (cross & 0xFFFF)
    word = high * bound_high + (cross >> 16) + (middle >> 16)
    return word.astype(jnp.int32)
