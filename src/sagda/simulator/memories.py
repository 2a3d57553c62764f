"""Clients' memories side by side: to reach a far client takes one step, not one a leaf.

A table for every type of number, [clients, numbers]; most algorithms need one.
"""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from sagda.core import PyTree

Tables: TypeAlias = dict[str, jax.Array]


def packed(memories: PyTree) -> Tables:
    """Trees of [clients, ...] as tables."""
    parts: dict[str, list[jax.Array]] = {}
    for a in jax.tree.leaves(memories):
        parts.setdefault(a.dtype.name, []).append(a.reshape(len(a), -1))
    return {kind: jnp.concatenate(some, axis=1) for kind, some in parts.items()}


def unpacked(tables: Tables, like: PyTree) -> Any:
    """Rows of the tables, [..., numbers], as trees of memories like this one."""
    used, leaves = dict.fromkeys(tables, 0), []
    for a in jax.tree.leaves(like):
        kind, first = a.dtype.name, used[a.dtype.name]
        used[kind] = first + a.size
        part = tables[kind][..., first : used[kind]]
        leaves.append(part.reshape(*part.shape[:-1], *a.shape))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
