"""Scoring models h_x: parameters are a pytree, everything else is structure."""

import abc
import math
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from sagda import check
from sagda.check import BadValue
from sagda.core import PyTree
from sagda.keys import Key


class Model(Protocol):
    """What a problem asks of a model; hashable, since it shapes compiled programs."""

    def init(self, key: Key) -> PyTree: ...

    def apply(self, parameters: Any, features: jax.Array) -> jax.Array:
        """One score per row of features."""
        ...


@dataclass(frozen=True)
class Linear:
    """h_x(a) = <x, a>, without intercept, started at 0.1 N(0, I)."""

    features: int

    def init(self, key: Key) -> jax.Array:
        return 0.1 * jax.random.normal(key, (self.features,))

    def apply(self, parameters: Any, features: jax.Array) -> jax.Array:
        return features @ parameters


class Network(abc.ABC):
    """An equinox module of one row as a model.

    Its inexact arrays are the parameters; the rest stays in the program. A module that
    returns shape `(1,)` or `()` will do.
    """

    @abc.abstractmethod
    def build(self, key: Key) -> Any:
        """The module, started by `key`."""

    def init(self, key: Key) -> PyTree:
        import equinox as eqx

        return eqx.filter(self.build(key), eqx.is_inexact_array)

    def outputs(self, parameters: Any, features: jax.Array) -> jax.Array:
        """What the module returns, row by row."""
        import equinox as eqx

        # Arrays of parameters made here are not used, and so never computed.
        _, fixed = eqx.partition(self.build(jax.random.key(0)), eqx.is_inexact_array)
        return jax.vmap(eqx.combine(parameters, fixed))(features)

    def apply(self, parameters: Any, features: jax.Array) -> jax.Array:
        return self.outputs(parameters, features).reshape(len(features))


@dataclass(frozen=True)
class Equinox(Network):
    """Your own module: `make(key)` builds it."""

    make: Any

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
    """A perceptron from noise to rows with entries in (0, 1), dark at the start."""

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
    """Two convolutions of stride 2 and a linear layer, for square grey pictures."""

    features: int
    channels: int = 8

    def __post_init__(self) -> None:
        check.integer("features", self.features, low=16)
        check.integer("channels", self.channels, low=1)
        if math.isqrt(self.features) ** 2 != self.features:
            raise BadValue(
                "`features` must be the pixels of a square picture for a CNN, got "
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


MODELS = {"linear": Linear, "mlp": MLP, "cnn": CNN}
