"""Scoring models h_x: parameters are a pytree, everything else is structure."""

from dataclasses import dataclass
from typing import Any, Protocol

import equinox as eqx
import jax

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


@dataclass(frozen=True)
class Equinox:
    """An equinox module of one row; `make(key)` builds it.

    Its inexact arrays are the parameters; the rest stays in the program. A module that
    returns shape `(1,)` or `()` will do.
    """

    make: Any

    def init(self, key: Key) -> PyTree:
        return eqx.filter(self.make(key), eqx.is_inexact_array)

    def apply(self, parameters: Any, features: jax.Array) -> jax.Array:
        # Arrays of parameters made here are not used, and so never computed.
        _, fixed = eqx.partition(self.make(jax.random.key(0)), eqx.is_inexact_array)
        module = eqx.combine(parameters, fixed)
        return jax.vmap(module)(features).reshape(len(features))
