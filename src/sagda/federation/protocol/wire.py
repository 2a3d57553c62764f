"""Trees of arrays as bytes of a known layout, and the checks on bytes from outside.

The server and the sites know the `Spec` of every message before it is sent. Therefore
nothing in a message decides how its bytes are read. The notes that come with the arrays
are in `protocol.letters`.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from sagda.check import BadValue
from sagda.core import PyTree
from sagda.federation.protocol.messages import Refusal


class Refused(Exception):
    """Raised for a message that is not as specified; `refusal` holds the reason."""

    def __init__(self, code: str, text: str):
        super().__init__(text)
        self.refusal = Refusal(code, text)


class Part(NamedTuple):
    """One array as bytes, with the type and shape that its sender claims."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes  # in C order, little-endian


Parcel = dict[str, Part]  # the arrays of a tree by name


class Leaf(NamedTuple):
    """The name, type and shape that one array of a tree must have."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Return the size of the array in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Spec(NamedTuple):
    """The structure of a tree, with the names, types and shapes of its arrays."""

    leaves: tuple[Leaf, ...]
    structure: Any  # the treedef of JAX

    @classmethod
    def of(cls, tree: PyTree) -> "Spec":
        """Return the spec of a tree of arrays, or of a tree of their shapes."""
        # The server and the sites flatten the same tree, so they get the same names.
        paths, structure = jax.tree_util.tree_flatten_with_path(tree)
        leaves = tuple(
            Leaf(
                jax.tree_util.keystr(path, simple=True, separator="."),
                np.dtype(leaf.dtype).newbyteorder("<").str,
                tuple(leaf.shape),
            )
            for path, leaf in paths
        )
        return cls(leaves, structure)

    @property
    def bytes(self) -> int:
        """Return the size of all arrays in bytes."""
        return sum(leaf.bytes for leaf in self.leaves)

    def pack(self, tree: PyTree) -> Parcel:
        """Return the arrays of `tree` as a parcel."""
        arrays = self.structure.flatten_up_to(tree)
        return {
            leaf.name: Part(
                leaf.dtype,
                leaf.shape,
                np.ascontiguousarray(array, leaf.dtype).tobytes(),
            )
            for leaf, array in zip(self.leaves, arrays, strict=True)
        }

    def unpack(self, parcel: Any, bound: float | None = None) -> Any:
        """Return the tree of the arrays in `parcel`.

        Raises `Refused` if the parcel is not as specified. `bound` is the largest
        Euclidean norm of all floats together. The number of bytes is checked before an
        array is made, so a false shape cannot use up memory.
        """
        if not isinstance(parcel, dict):
            raise Refused("format", "a parcel must hold arrays by name.")
        names = [leaf.name for leaf in self.leaves]
        if set(parcel) != set(names):
            raise Refused("keys", f"a parcel must hold arrays with the names {names}.")
        arrays, square = [], 0.0
        for leaf in self.leaves:
            array = array_of(leaf, parcel[leaf.name])
            if array.dtype.kind == "f":
                if not np.isfinite(array).all():
                    raise Refused(
                        "nonfinite", f"{leaf.name} must have no NaN and no infinity."
                    )
                with np.errstate(over="ignore"):  # an infinite norm is above any bound
                    # In double precision, so that a bound means the same for all types.
                    square += float(np.square(array, dtype=np.float64).sum())
            arrays.append(array)
        if bound is not None and not math.sqrt(square) <= bound:
            norm = math.sqrt(square)
            raise Refused(
                "norm", f"the norm of a reply must be at most {bound:g}, got {norm:g}."
            )
        return self.structure.unflatten(arrays)

    def named(self, tree: PyTree, prefix: str) -> dict[str, np.ndarray]:
        """Return the arrays of `tree` in a dict with the keys PREFIX/NAME."""
        arrays = self.structure.flatten_up_to(tree)
        return {
            f"{prefix}/{leaf.name}": np.asarray(array, order="C")
            for leaf, array in zip(self.leaves, arrays, strict=True)
        }

    def restored(self, arrays: Mapping[str, np.ndarray], prefix: str) -> Any:
        """Return the tree whose arrays `named` returned.

        Raises `BadValue` if an array is missing, or has another type or shape.
        """
        leaves = []
        for leaf in self.leaves:
            name = f"{prefix}/{leaf.name}"
            array = arrays.get(name)
            if array is None or (array.dtype.str, array.shape) != leaf[1:]:
                raise BadValue(
                    f"a stored file must hold an array {name} of shape {leaf.shape} "
                    f"and type {leaf.dtype}; restore the folder from a backup."
                )
            leaves.append(array)
        return self.structure.unflatten(leaves)


def array_of(leaf: Leaf, part: Any) -> np.ndarray:
    """Return `part` as an array; raise `Refused` if it is not as `leaf` specifies."""
    # Errors do not repeat `part.dtype` and `part.shape`: an attacker may choose them.
    if not isinstance(part, Part) or not isinstance(part.data, bytes):
        raise Refused("format", f"{leaf.name} must be an array as bytes.")
    if part.dtype != leaf.dtype:
        raise Refused("dtype", f"{leaf.name} must have the type {leaf.dtype}.")
    if part.shape != leaf.shape:
        raise Refused("shape", f"{leaf.name} must have the shape {leaf.shape}.")
    if len(part.data) != leaf.bytes:
        raise Refused(
            "size",
            f"{leaf.name} must have {leaf.bytes} bytes, got {len(part.data)}.",
        )
    array = np.frombuffer(part.data, leaf.dtype).reshape(leaf.shape)
    # NumPy stores a boolean as one byte, 0 or 1. Other bytes would be undefined values.
    if (
        array.dtype.kind == "b"
        and np.frombuffer(part.data, np.uint8).max(initial=0) > 1
    ):
        raise Refused("format", f"every byte of {leaf.name} must be 0 or 1.")
    return array
