"""Random numbers by address: each follows from a seed and a path of names and numbers.

No generator state is carried along. So a run can be resumed, compared and verified
exactly. The hash is JAX's Threefry: `key_of` and `bits` give the values of
`jax.random.fold_in` and `jax.random.bits`. They are written out here because JAX puts
the twenty rounds of the hash into a loop on processors. Unrolled, they compile four
times and run at least twice as fast.
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
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011): hash two words by a key."""
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
    """The key of a seed, at the root of all paths of a run."""
    return jax.random.key(seed, impl="threefry2x32")


def key_of(key: Key, *path: Any) -> Key:
    """The key at a path of names and numbers, such as round, phase, client.

    A draw depends on its path only, so any draw can be repeated alone.
    """
    words = jax.random.key_data(key)
    for part in path:
        part = crc32(part.encode()) if isinstance(part, str) else part
        number = jnp.asarray(part, jnp.uint32)
        words = jnp.stack(threefry(words, jnp.zeros_like(number), number))
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def generator(seed: int, *path: Any) -> np.random.Generator:
    """A NumPy generator at a path, for what is drawn once, on the host."""
    check.integer("seed", seed, low=0, high=2**32 - 1)
    words = np.asarray(jax.random.key_data(key_of(root_key(seed), *path)), np.uint64)
    return np.random.Generator(np.random.Philox(key=words))


def bits(key: Key, shape: tuple[int, ...]) -> jax.Array:
    """Random words of 32 bits."""
    count = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    return bits_at(key, count).reshape(shape)


def bits_at(key: Key, index: jax.Array) -> jax.Array:
    """The words at the positions `index` of the sequence that `bits` would give."""
    index = index.astype(jnp.uint32)
    x, y = threefry(jax.random.key_data(key), jnp.zeros_like(index), index)
    return x ^ y


def below(words: jax.Array, bound: Any) -> jax.Array:
    """Uniform integers in [0, bound): the high word of the product word * bound.

    All integers have 32 bits, so that runs in double precision draw the same rows. The
    bias is below bound / 2**32.
    """
    bound = jnp.asarray(bound).astype(jnp.uint32)
    low, high = words & 0xFFFF, words >> 16
    bound_low, bound_high = bound & 0xFFFF, bound >> 16
    cross = high * bound_low + (low * bound_low >> 16)
    middle = low * bound_high + (cross & 0xFFFF)
    word = high * bound_high + (cross >> 16) + (middle >> 16)
    return word.astype(jnp.int32)
