"""Runs as flat arrays by name, and back: what a checkpoint holds."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from sagda.check import BadValue
from sagda.core import PyTree


def named(tree: PyTree, prefix: str) -> dict[str, np.ndarray]:
    """The arrays of a tree under the names of their places in it."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    name = lambda path: "/".join([prefix, *(plain(key) for key in path)])
    return {name(path): np.asarray(leaf, order="C") for path, leaf in leaves}


def plain(key: Any) -> str:
    """One step of a path, without JAX's brackets and dots."""
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def filled(like: PyTree, arrays: Mapping[str, np.ndarray], prefix: str) -> Any:
    """A tree of the shape of `like` with the arrays of those names."""
    expected = named(jax.tree.map(lambda a: np.zeros(0), like), prefix)
    missing = [name for name in expected if name not in arrays]
    if missing:
        raise BadValue(f"saved run: no array {missing[0]!r}; it is of another method.")
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[n] for n in expected])
