"""Models in JAX: a linear score, and networks made of equinox modules.

Their parameters are a pytree, and everything else shapes the compiled program.
PyTorch modules are in `sagda.models.torch`.
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
    """A linear score without intercept: h_x(a) = <x, a>, with x_0 ~ 0.1 N(0, I)."""

    features: int

    def init(self, key: Key) -> jax.Array:
        return 0.1 * jax.random.normal(key, (self.features,))

    def apply(self, parameters: Any, features: jax.Array) -> jax.Array:
        return features @ parameters


# Rows that pass through a network together if memory does not hold all of them.
BLOCK = 1024


def row_by_row(module: Any, rows: jax.Array) -> jax.Array:
    """`module` applied to every row: to all at once if their activations fit in memory.

    If not, blocks of rows follow one another, also in the backward pass.
    """
    if len(rows) <= BLOCK or len(rows) <= batch_that_fits(module, rows[0]):
        return jax.vmap(module)(rows)
    again = jax.checkpoint(lambda row: module(row))
    return jax.lax.map(again, rows, batch_size=BLOCK)


class Network(abc.ABC):
    """A model from an equinox module that scores one row.

    Its inexact arrays are the parameters, and everything else is part of the program.
    The module must return shape `(1,)` or `()`.
    """

    @abc.abstractmethod
    def build(self, key: Key) -> Any:
        """The module, with initial parameters from `key`."""

    frozen: tuple[str, ...] = ()  # parts that are not trained, such as ("layers.0",)

    def init(self, key: Key) -> PyTree:
        import equinox as eqx

        module = self.build(key)
        return eqx.filter(module, self.trained(module))

    def trained(self, module: Any) -> Any:
        """For every leaf of the module, whether it is a parameter."""
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
                    f"`frozen` must name parts of the module, found no {part!r} among "
                    f"{', '.join(dict.fromkeys(names))}."
                )
            trained = [t and not i for t, i in zip(trained, inside, strict=True)]
        return structure.unflatten(trained)

    def outputs(self, parameters: Any, features: jax.Array) -> jax.Array:
        """The module's result for every row."""
        import equinox as eqx

        # The parameters made here are unused, so XLA never computes them.
        module = self.build(jax.random.key(0))
        _, fixed = eqx.partition(module, self.trained(module))
        return row_by_row(eqx.combine(parameters, fixed), features)

    def apply(self, parameters: Any, features: jax.Array) -> jax.Array:
        return self.outputs(parameters, features).reshape(len(features))


@dataclass(frozen=True)
class Equinox(Network):
    """A model from your own equinox module: `make(key)` builds it.

    Args:
        make: a function of a key that builds the module.
        frozen: parts that are not trained, such as ("layers.0",). They are as `make`
            builds them with key 0, whatever the seed.
    """

    make: Any
    frozen: tuple[str, ...] = ()

    def build(self, key: Key) -> Any:
        return self.make(key)


@dataclass(frozen=True)
class MLP(Network):
    """A perceptron with `depth` hidden layers of `width` units."""

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
    """A perceptron from noise to rows in (0, 1), whose first rows are near zero."""

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
    """Two convolutions of stride 2 and a linear layer, for square grey images."""

    features: int
    channels: int = 8

    def __post_init__(self) -> None:
        check.integer("features", self.features, low=16)
        check.integer("channels", self.channels, low=1)
        if math.isqrt(self.features) ** 2 != self.features:
            raise BadValue(
                "`features` must be the pixels of a square image for a CNN, got "
                f"{self.features}."
            )

    def build(self, key: Key) -> Any:
        import equinox as eqx

        side, wide = math.isqrt(self.features), self.channels
        rest = ((side + 1) // 2 + 1) // 2  # after two strides of 2
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
