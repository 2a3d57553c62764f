"""`StackedRuns`: runs side by side, on the devices of a layout."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec

from sagda.core import Point
from sagda.methods import Method
from sagda.simulator.layout import Layout
from sagda.simulator.rounds import Carry
from sagda.simulator.setup import placed


class StackedRuns(NamedTuple):
    """What the runs side by side differ in, each leaf with the runs as first axis."""

    method: Method
    keys: Any
    starts: Point

    @classmethod
    def of(
        cls, layout: Layout, method: Method, keys: Any, starts: Point
    ) -> "StackedRuns":
        return cls(*shared((method, keys, starts), layout, Spec("runs")))

    @staticmethod
    def first(tree: Any, count: int) -> Any:
        """Without the runs that fill up the devices."""

        def cut(a: Any) -> Any:
            if isinstance(a, jax.ShapeDtypeStruct):
                return jax.ShapeDtypeStruct((count, *a.shape[1:]), a.dtype)
            return a[:count]

        return jax.tree.map(cut, tree)


def shared(tree: Any, layout: Layout, spec: Spec | Carry) -> Any:
    """Arrays with runs first on the layout's devices, the last run filling up."""

    def put(spec: Spec, part: Any) -> Any:
        def one(a: Any) -> Any:
            more = -len(a) % layout.runs
            if more:
                a = jnp.concatenate([a, *[a[-1:]] * more])
            if layout.devices == 1:
                # A copy: the programs write over what they are given. And committed to
                # the device, as what the programs return is, to compile once.
                return jax.device_put(jnp.array(a), jax.local_devices()[0])
            return placed(a, NamedSharding(layout.mesh, spec))

        return jax.tree.map(one, part)

    return jax.tree.map(put, spec, tree, is_leaf=lambda s: isinstance(s, Spec))
