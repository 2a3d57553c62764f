"""Dataclasses as arguments of compiled programs.

One rule for algorithms, rates and problems: floats and arrays are arguments, which may
change without compiling again. Whole numbers, names and functions are part of the
program.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import numpy as np

C = TypeVar("C", bound=type)
DYNAMIC = "_dynamic"  # the attribute with the names of the fields that are arguments


def is_number(leaf: Any) -> bool:
    """Whether a leaf is an argument: a float or an array."""
    return isinstance(leaf, float | np.ndarray | np.generic | jax.Array)


def split(fields: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple]:
    """The names of the fields that are arguments; (name, value) of the others."""

    def holds_numbers(value: Any) -> bool:
        leaves = jax.tree.leaves(value)
        return bool(leaves) and all(map(is_number, leaves))

    dynamic = tuple(name for name, value in fields.items() if holds_numbers(value))
    return dynamic, tuple((k, v) for k, v in fields.items() if k not in dynamic)


def register(cls: C) -> C:
    """Make a frozen dataclass a pytree by the rule above."""

    def fields(obj: Any) -> dict[str, Any]:
        return {f.name: getattr(obj, f.name) for f in dataclasses.fields(obj)}

    def flatten_with_keys(obj: Any):
        values = fields(obj)
        # JAX rebuilds objects with any leaves, such as None or tracers. The record of
        # the first flattening decides then.
        names = getattr(obj, DYNAMIC, None)
        if names is None:
            names, fixed = split(values)
        else:
            fixed = tuple((k, v) for k, v in values.items() if k not in names)
        keyed = [(jax.tree_util.GetAttrKey(k), values[k]) for k in names]
        return keyed, (names, fixed)

    def unflatten(structure: Any, leaves: Any) -> Any:
        names, fixed = structure
        obj = object.__new__(cls)
        for name, value in (*fixed, *zip(names, leaves, strict=True), (DYNAMIC, names)):
            object.__setattr__(obj, name, value)
        return obj

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten)
    return cls
