"""Trees of arrays as bytes of a known layout, and the look at what a stranger sent."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from sagda.core import PyTree
from sagda.federation.protocol.messages import Refusal


class Refused(Exception):
    """A parcel that is not as specified."""

    def __init__(self, code: str, text: str):
        super().__init__(text)
        self.refusal = Refusal(code, text)


class Part(NamedTuple):
    """One array: what it says it is, and its bytes in C order, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


Parcel = dict[str, Part]


class Leaf(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Spec(NamedTuple):
    """What a tree must look like; known to both sides before anything is sent."""

    leaves: tuple[Leaf, ...]
    structure: Any

    @classmethod
    def of(cls, tree: PyTree) -> "Spec":
        """From arrays, or from their shapes."""
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
        """The tree, or `Refused`; nothing is read before its size is known to be right.

        `bound` limits the length of all floats together.
        """
        if not isinstance(parcel, dict):
            raise Refused("format", "a parcel must hold parts by name.")
        if set(parcel) != {leaf.name for leaf in self.leaves}:
            raise Refused(
                "keys", f"parts must be {[leaf.name for leaf in self.leaves]}."
            )
        arrays, square = [], 0.0
        for leaf in self.leaves:
            array = opened(leaf, parcel[leaf.name])
            if array.dtype.kind == "f":
                if not np.isfinite(array).all():
                    raise Refused("nonfinite", f"{leaf.name} must be finite.")
                with np.errstate(over="ignore"):  # a length without end is too long
                    square += float(np.square(array, dtype=np.float64).sum())
            arrays.append(array)
        if bound is not None and not math.sqrt(square) <= bound:
            raise Refused("norm", f"a reply must not be longer than {bound:g}.")
        return self.structure.unflatten(arrays)


def opened(leaf: Leaf, part: Any) -> np.ndarray:
    """A part as an array, if it is what it must be."""
    if not isinstance(part, Part) or not isinstance(part.data, bytes):
        raise Refused("format", f"{leaf.name} must be an array's bytes.")
    if part.dtype != leaf.dtype:
        raise Refused("dtype", f"{leaf.name} must be {leaf.dtype}.")
    if part.shape != leaf.shape:
        raise Refused("shape", f"{leaf.name} must have the shape {leaf.shape}.")
    if len(part.data) != leaf.bytes:
        raise Refused("size", f"{leaf.name} must have {leaf.bytes} bytes.")
    array = np.frombuffer(part.data, leaf.dtype).reshape(leaf.shape)
    if (
        array.dtype.kind == "b"
        and np.frombuffer(part.data, np.uint8).max(initial=0) > 1
    ):
        raise Refused("format", f"{leaf.name} must hold truth values.")
    return array
