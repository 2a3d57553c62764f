"""Objectives that leave out parts of their work, to measure the time of these parts.

Their results are therefore wrong. Only `parts` uses them.
"""

from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sagda.core import Point
from sagda.pytree import register
from sagda.simulator.objective import Clients, Sampled, Xi

DRAW, GATHER, GRADIENT = "draw", "gather", "gradient"


def as_dict(of: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, without converting their values."""
    return {field.name: getattr(of, field.name) for field in fields(of)}


@register
@dataclass(frozen=True)
class Partial(Sampled):
    """The objective f_i of a client without the parts of its work named in `left`."""

    left: tuple[str, ...] = ()

    def draw(self, key: Any, count: int | None = None) -> Xi:
        if DRAW not in self.left:
            return super().draw(key, count)
        shape = () if count is None else (count,)
        seed, rows = jnp.zeros((*shape, 2), jnp.uint32), self.clients.batch_size
        if rows is None:
            return Xi(None, seed)
        # Fixed positions, spread over the client's rows.
        places = np.arange((count or 1) * rows) * 37 % self.clients.widest
        return Xi(jnp.asarray(places, jnp.int32).reshape(*shape, rows), seed)

    def value(self, z: Point, xi: Xi) -> jax.Array:
        if GATHER not in self.left or xi.position is None:
            return super().value(z, xi)
        key = jax.random.wrap_key_data(xi.seed, impl="threefry2x32")
        cut = lambda column: jax.lax.dynamic_slice_in_dim(
            column, self.start, len(xi.position)
        )
        batch = self.rows(cut, xi.position)
        return self.clients.problem.loss(z, batch, key).mean()

    def grad(self, z: Point, xi: Xi) -> Point:
        return 1e-6 * z if GRADIENT in self.left else super().grad(z, xi)


@register
@dataclass(frozen=True)
class PartialClients(Clients):
    """Clients whose objectives are `Partial`."""

    left: tuple[str, ...] = ()

    def objective(self, i: Any) -> Sampled:
        return Partial(**as_dict(super().objective(i)), left=self.left)
