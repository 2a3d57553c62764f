"""`Sampled`: f_i, a client's slice of the table with a problem's loss on it."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sagda.core import Objective, Point, PyTree
from sagda.keys import Key, below, bits
from sagda.problems.base import Problem
from sagda.pytree import register


class Xi(NamedTuple):
    """A sample: rows by their position within the client, and the seed of the noise."""

    position: Any  # [rows], or None for every local row
    seed: Any  # [2] words


@register
@dataclass(frozen=True)
class Sampled(Objective):
    """f_i on rows `start` to `start + size` of a table.

    The table must go on for `widest` rows after every `start`, so that each client's
    rows can be cut out at one size; what lies beyond `size` has no weight.
    """

    problem: Problem
    table: PyTree
    start: jax.Array
    size: jax.Array
    widest: int
    batch_size: int | None

    def draw(self, key: Key, count: int | None = None) -> Xi:
        """Rows drawn with repetition; all local rows if there is no batch size."""
        rows = self.batch_size or 0
        shape = (rows + 2,) if count is None else (count, rows + 2)
        words = bits(key, shape)
        if self.batch_size is None:
            return Xi(None, words)
        return Xi(below(words[..., 2:], self.size), words[..., :2])

    def whole(self, key: Key) -> Xi:
        return Xi(None, bits(key, (2,)))

    def value(self, z: Point, xi: Xi) -> jax.Array:
        """f_i(z; xi), a mean over the rows of xi."""
        key = jax.random.wrap_key_data(xi.seed, impl="threefry2x32")
        if xi.position is not None:
            rows = self.start + xi.position
            batch = jax.tree.map(lambda column: column[rows], self.table)
            return self.problem.loss(z, batch, key).mean()
        cut = lambda column: jax.lax.dynamic_slice_in_dim(
            column, self.start, self.widest
        )
        losses = self.problem.loss(z, jax.tree.map(cut, self.table), key)
        held = jnp.arange(self.widest) < self.size
        return jnp.sum(jnp.where(held, losses, 0)) / self.size

    def grad(self, z: Point, xi: Xi) -> Point:
        return jax.grad(self.value)(z, xi)

    def project(self, z: Point) -> Point:
        return self.problem.project(z)
