"""Models in JAX: a linear score, and networks made of equinox modules.

The parameters of a model are a pytree. Its other fields, such as the width, are fixed
when a program is compiled. PyTorch modules are in `sagda.models.torch`.
"""

import abc
import math
from dataclasses import dataclass
from typing import Any

import jax

from sagda import check
from sagda.algorithms.trace import batch_that_fits
from sagda.check import BadValue
from sagda.core import PyTree
from sagda.keys import Key


@dataclass(frozen=True)
class Linear:
    """A linear score without intercept: <x, a> for a row with features a.

    Initial parameters are normal with standard deviation 0.1.
    """

    features: int

    def init(self, key: Key) -> jax.Array:
        return 0.1 * jax.random.normal(key, (self.features,))

    def apply(self, parameters: Any, features: jax.Array) -> jax.Array:
        return features @ parameters


# The number of rows in a block, if memory does not hold the activations of all rows.
BLOCK = 1024


def row_by_row(module: Any, rows: jax.Array) -> jax.Array:
    """Return the outputs of `module` for all rows, at once or in blocks.

    Blocks of rows are used if the activations of all rows do not fit in memory. The
    backward pass then computes the activations of a block again.
    """
    if len(rows) <= BLOCK or len(rows) <= batch_that_fits(module, rows[0]):
        return jax.vmap(module)(rows)
    again = jax.checkpoint(lambda row: module(row))
    return jax.lax.map(again, rows, batch_size=BLOCK)


class Network(abc.ABC):
    """A model from an equinox module that receives one row.

    The arrays of floating-point numbers in the module are the parameters. Everything
    else is fixed when a program is compiled. A module that scores rows must return
    shape `(1,)` or `()`.
    """

    @abc.abstractmethod
    def build(self, key: Key) -> Any:
        """Return the module, with initial parameters drawn with `key`."""

    # Parts of the module that are not trained, such as ("layers.0",).
    frozen: tuple[str, ...] = ()

    def init(self, key: Key) -> PyTree:
        import equinox as eqx

        module = self.build(key)
        return eqx.filter(module, self.trained(module))

    def trained(self, module: Any) -> Any:
        """Return, for every leaf of the module, whether it is a trained parameter."""
        import equinox as eqx

        leaves, structure = jax.tree_util.tree_flatten_with_path(module)
        name = lambda path: jax.tree_util.keystr(path, simple=True, separator=".")
        names = [name(path) for path, _ in leaves]
        trained = [eqx.is_inexact_array(leaf) for _, leaf in leaves]
        for part in self.frozen:
            # The dots keep `layers.1` from matching `layers.10`.
            inside = [f"{name}.".startswith(f"{part}.") for name in names]
            if not any(inside):
                raise BadValue(
                    "`frozen` must name parts of the module, such as "
                    f"{', '.join(dict.fromkeys(names))}, got {part!r}."
                )
            trained = [t and not i for t, i in zip(trained, inside, strict=True)]
        return structure.unflatten(trained)

    def outputs(self, parameters: Any, features: jax.Array) -> jax.Array:
        """Return the output of the module for every row, without a change of shape."""
        import equinox as eqx

        # Only the fixed parts of this module are used. XLA removes the code that would
        # compute the other parameters.
        module = self.build(jax.random.key(0))
        _, fixed = eqx.partition(module, self.trained(module))
        return row_by_row(eqx.combine(parameters, fixed), features)

    def apply(self, parameters: Any, features: jax.Array) -> jax.Array:
        return self.outputs(parameters, features).reshape(len(features))


@dataclass(frozen=True)
class Equinox(Network):
    """A model from your own equinox module, which must give one score per row.

    Args:
        make: a function. `make(key)` returns the module.
        frozen: parts that are not trained, such as ("layers.0",). All seeds use the
            frozen parts that `make` returns for key 0.
    """

    make: Any
    frozen: tuple[str, ...] = ()

    def build(self, key: Key) -> Any:
        return self.make(key)


@dataclass(frozen=True)
class MLP(Network):
    """A fully connected network with `depth` hidden layers of `width` units."""

    features: int
    width: int = 64
    depth: int = 2

    def __post_init__(self) -> None:
        for name in ("features", "width", "depth"):
            check.integer(name, getattr(self, name), low=1)

    def build(self, key: Key) -> Any:
        import equinox as eqx

        return eqx.nn.MLP(self.features, "scalar", self.width, self.depth, key=key)


@dataclass(frozen=True)
class Generator(Network):
    """A fully connected network that turns noise into rows with entries in (0, 1).

    Before training, the entries are small: images start dark.
    """

    latent: int
    features: int
    width: int = 64
    depth: int = 1

    def __post_init__(self) -> None:
        for name in ("latent", "features", "width", "depth"):
            check.integer(name, getattr(self, name), low=1)

    def build(self, key: Key) -> Any:
        import equinox as eqx

        return eqx.nn.MLP(
            self.latent,
            self.features,
            self.width,
            self.depth,
            final_activation=lambda a: jax.nn.sigmoid(a - 2),
            key=key,
        )


@dataclass(frozen=True)
class CNN(Network):
    """A convolutional network for square grey images.

    It has two convolutions of stride 2 and a linear layer.
    """

    features: int
    channels: int = 8

    def __post_init__(self) -> None:
        check.integer("features", self.features, low=16)
        check.integer("channels", self.channels, low=1)
        if math.isqrt(self.features) ** 2 != self.features:
            raise BadValue(
                "`features` must be the number of pixels of a square image for a CNN, "
                f"such as 64 or 784, got {self.features}."
            )

    def build(self, key: Key) -> Any:
        import equinox as eqx

        side, wide = math.isqrt(self.features), self.channels
        rest = ((side + 1) // 2 + 1) // 2  # side of the image after two strides of 2
        first, second, last = jax.random.split(key, 3)
        layers = [
            eqx.nn.Lambda(lambda row: row.reshape(1, side, side)),
            eqx.nn.Conv2d(1, wide, 3, stride=2, padding=1, key=first),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Conv2d(wide, 2 * wide, 3, stride=2, padding=1, key=second),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Lambda(lambda maps: maps.reshape(-1)),
            eqx.nn.Linear(2 * wide * rest**2, "scalar", key=last),
        ]
        return eqx.nn.Sequential(layers)
