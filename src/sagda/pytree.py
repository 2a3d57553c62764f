"""`register`: makes a dataclass an argument of programs that JAX compiles.

Methods, rates and problems follow one rule. Floats and arrays are arguments: their
values may change without a new compilation. Whole numbers, names and functions are
part of the program. This module checks no values; see `check.py` for that.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import numpy as np

C = TypeVar("C", bound=type)
DYNAMIC = "_dynamic"  # attribute that lists the names of the fields that are arguments


def is_number(leaf: Any) -> bool:
    """Return whether `leaf` is a float or an array, and so an argument."""
    return isinstance(leaf, float | np.ndarray | np.generic | jax.Array)


def split(fields: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple]:
    """Split fields into arguments and fixed parts.

    Returns the names of the arguments, and the pairs (name, value) of all other fields.
    """

    def holds_numbers(value: Any) -> bool:
        leaves = jax.tree.leaves(value)
        return bool(leaves) and all(map(is_number, leaves))

    dynamic = tuple(name for name, value in fields.items() if holds_numbers(value))
    return dynamic, tuple((k, v) for k, v in fields.items() if k not in dynamic)


def register(cls: C) -> C:
    """Register a frozen dataclass as a pytree, by the rule in the module docstring."""

    def fields(obj: Any) -> dict[str, Any]:
        return {f.name: getattr(obj, f.name) for f in dataclasses.fields(obj)}

    def flatten_with_keys(obj: Any):
        values = fields(obj)
        # JAX may rebuild an object with other leaves, such as None or tracers. Their
        # types say nothing, so `DYNAMIC` records which fields were arguments at first.
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
