"""Randomness by address: every random number follows from a seed and a path.

The generator is JAX's Threefry, and `key_of` and `bits` give the values of
`jax.random.fold_in` and `jax.random.bits`. They are written out here because on
processors JAX rolls the twenty rounds of the hash into a loop, which takes four times
as long to compile, and twice or more to run, as the rounds in a row.
"""

import math
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np

from sagda import check

Key = jax.Array

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


@jax.jit
def threefry(key: jax.Array, x: Any, y: Any) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011): two words hashed by a key."""
    words = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA)
    x, y = x + words[0], y + words[1]
    for i in range(5):
        for r in ROTATIONS[i % 2]:
            x = x + y
            y = (y << r | y >> (32 - r)) ^ x
        x = x + words[(i + 1) % 3]
        y = y + words[(i + 2) % 3] + jnp.uint32(i + 1)
    return x, y


def root_key(seed: Any) -> Key:
    """The root of all paths of a run."""
    return jax.random.key(seed, impl="threefry2x32")


def key_of(key: Key, *path: Any) -> Key:
    """The key at the end of a path of names and numbers, such as round, phase, client.

    Nothing is carried from one draw to the next, so any draw can be repeated alone.
    """
    words = jax.random.key_data(key)
    for part in path:
        part = crc32(part.encode()) if isinstance(part, str) else part
        number = jnp.asarray(part, jnp.uint32)
        words = jnp.stack(threefry(words, jnp.zeros_like(number), number))
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def generator(seed: int, *path: Any) -> np.random.Generator:
    """NumPy's generator at a key, for what is drawn once and on the host."""
    check.integer("seed", seed, low=0, high=2**32 - 1)
    words = np.asarray(jax.random.key_data(key_of(root_key(seed), *path)), np.uint64)
    return np.random.Generator(np.random.Philox(key=words))


def bits(key: Key, shape: tuple[int, ...]) -> jax.Array:
    """Random words of 32 bits."""
    count = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    return bits_at(key, count).reshape(shape)


def bits_at(key: Key, index: jax.Array) -> jax.Array:
    """Single words of the long row that `bits` would give."""
    index = index.astype(jnp.uint32)
    x, y = threefry(jax.random.key_data(key), jnp.zeros_like(index), index)
    return x ^ y


def below(words: jax.Array, bound: Any) -> jax.Array:
    """Uniform integers in [0, bound) from random words: the high word of a product.

    All integers have 32 bits whatever the width of floats, so that double precision
    draws the same rows; the bias is below bound / 2**32.
    """
    bound = jnp.asarray(bound).astype(jnp.uint32)
    low, high = words & 0xFFFF, words >> 16
    bound_low, bound_high = bound & 0xFFFF, bound >> 16
    cross = high * bound_low + (low * bound_low >> 16)
    middle = low * bound_high + (cross & 0xFFFF)
    word = high * bound_high + (cross >> 16) + (middle >> 16)
    return word.astype(jnp.int32)
