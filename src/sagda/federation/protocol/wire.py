"""Trees of arrays as bytes of a known layout, and the checks on bytes from outside.

Both sides know the `Spec` of every message before it is sent, so nothing in a message
decides how it is read. `protocol.letters` has the notes that come with the arrays.
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
    """A message that is not as specified; `refusal` has the code and the sentence."""

    def __init__(self, code: str, text: str):
        super().__init__(text)
        self.refusal = Refusal(code, text)


class Part(NamedTuple):
    """One array as its sender describes it, with its bytes (C order, little-endian)."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


Parcel = dict[str, Part]


class Leaf(NamedTuple):
    """What one array of a tree must be."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Spec(NamedTuple):
    """The names, types and shapes of a tree's arrays, known before anything is sent."""

    leaves: tuple[Leaf, ...]
    structure: Any

    @classmethod
    def of(cls, tree: PyTree) -> "Spec":
        """The specification of a tree of arrays, or of their shapes."""
        # Both sides flatten the same tree, so names and order agree without a message.
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
        return sum(leaf.bytes for leaf in self.leaves)

    def pack(self, tree: PyTree) -> Parcel:
        """The tree as parts by name."""
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
        """The tree; raises `Refused` if the parcel is not as specified.

        `bound` limits the Euclidean norm of all floats together. No array is made
        before the size of its bytes is checked, so a false shape costs no memory.
        """
        if not isinstance(parcel, dict):
            raise Refused("format", "a parcel must hold parts by name.")
        names = [leaf.name for leaf in self.leaves]
        if set(parcel) != set(names):
            raise Refused("keys", f"the parts of a parcel must be {names}.")
        arrays, square = [], 0.0
        for leaf in self.leaves:
            array = array_of(leaf, parcel[leaf.name])
            if array.dtype.kind == "f":
                if not np.isfinite(array).all():
                    raise Refused("nonfinite", f"{leaf.name} must be finite.")
                with np.errstate(over="ignore"):  # an infinite norm is above any bound
                    # Double precision, so that the bound is the same for all types.
                    square += float(np.square(array, dtype=np.float64).sum())
            arrays.append(array)
        if bound is not None and not math.sqrt(square) <= bound:
            raise Refused("norm", f"the norm of a reply must be at most {bound:g}.")
        return self.structure.unflatten(arrays)

    def named(self, tree: PyTree, prefix: str) -> dict[str, np.ndarray]:
        """The arrays of a tree as PREFIX/NAME, for a file of arrays."""
        arrays = self.structure.flatten_up_to(tree)
        return {
            f"{prefix}/{leaf.name}": np.asarray(array, order="C")
            for leaf, array in zip(self.leaves, arrays, strict=True)
        }

    def restored(self, arrays: Mapping[str, np.ndarray], prefix: str) -> Any:
        """The tree that `named` wrote; raises BadValue if an array does not fit."""
        leaves = []
        for leaf in self.leaves:
            name = f"{prefix}/{leaf.name}"
            array = arrays.get(name)
            if array is None or (array.dtype.str, array.shape) != leaf[1:]:
                raise BadValue(
                    f"a file must hold an array {name} of shape {leaf.shape} and type "
                    f"{leaf.dtype}."
                )
            leaves.append(array)
        return self.structure.unflatten(leaves)


def array_of(leaf: Leaf, part: Any) -> np.ndarray:
    """A part as an array; raises `Refused` if it is not what `leaf` says."""
    if not isinstance(part, Part) or not isinstance(part.data, bytes):
        raise Refused("format", f"{leaf.name} must be the bytes of an array.")
    if part.dtype != leaf.dtype:
        raise Refused("dtype", f"{leaf.name} must be {leaf.dtype}.")
    if part.shape != leaf.shape:
        raise Refused("shape", f"{leaf.name} must have the shape {leaf.shape}.")
    if len(part.data) != leaf.bytes:
        raise Refused("size", f"{leaf.name} must have {leaf.bytes} bytes.")
    array = np.frombuffer(part.data, leaf.dtype).reshape(leaf.shape)
    # A byte other than 0 and 1 would be a boolean that is neither true nor false.
    if (
        array.dtype.kind == "b"
        and np.frombuffer(part.data, np.uint8).max(initial=0) > 1
    ):
        raise Refused("format", f"{leaf.name} must hold bytes 0 and 1.")
    return array
