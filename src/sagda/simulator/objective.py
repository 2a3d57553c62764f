"""`Clients`: the rows of all clients in one table, and their objectives f_i.

Client i has the rows `start[i]` to `start[i] + size[i]`. All shapes in a compiled
program must be fixed. So clients of different sizes are cut at the size of the largest
one, and surplus rows get weight zero. PyTorch's counterpart is `torch/objective.py`.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sagda.core import Objective, Point, PyTree
from sagda.data.federation import Table
from sagda.keys import Key, below, bits
from sagda.problems.base import Problem
from sagda.pytree import register


class Xi(NamedTuple):
    """A sample: rows by their number within the client, and a seed for a noisy loss."""

    position: Any  # [rows], or None for all local rows
    seed: Any  # [2] words, the key of the loss's noise


def drawn(key: Key, size: Any, rows: int | None, count: int | None) -> Xi:
    """A sample of `rows` among `size` rows, or `count` samples on axis 0.

    `rows` None is the sample of all rows. The first two words are the noise's seed, so
    that a problem with noise and one without draw the same rows.
    """
    width = (rows or 0) + 2
    words = bits(key, (width,) if count is None else (count, width))
    if rows is None:
        return Xi(None, words)
    return Xi(below(words[..., 2:], size), words[..., :2])


@register
@dataclass(frozen=True)
class Clients:
    """All f_i: client i has `size[i]` rows of the table from `start[i]` on.

    Clients of one size need no `size`. If they also lie in order, they need no `start`:
    the compiled program then multiplies instead of reading a list.
    """

    problem: Problem
    table: PyTree  # [rows, ...], sorted by client
    start: jax.Array | None  # [M]; None: client i begins at i * widest
    size: jax.Array | None  # [M]; None: all n_i are equal
    count: int  # M
    widest: int  # max n_i
    batch_size: int | None

    def objective(self, i: Any) -> "Sampled":
        """f_i."""
        return Sampled(self, self.first_row(i), self.rows_of(i))

    def first_row(self, i: Any) -> Any:
        """The number of client i's first row in the table."""
        return self.widest * i if self.start is None else self.start[i]

    def rows_of(self, i: Any) -> Any:
        """n_i, the number of client i's rows."""
        return jnp.full_like(i, self.widest) if self.size is None else self.size[i]

    def near(self, ids: jax.Array) -> "Clients":
        """The clients `ids` alone, numbered from 0, with their rows in one new table.

        Rows that are far apart in RAM cost more to reach than to use. Copied together,
        the processor waits for all of them at once.
        """
        start, widest = self.first_row(ids), self.widest
        # [ids]: every client gets `widest` rows; near the table's end, the cut begins
        # before the client's first row.
        first = jnp.minimum(start, len(jax.tree.leaves(self.table)[0]) - widest)

        def cut(column: jax.Array) -> jax.Array:
            each, long = column[0].size, column
            if column.size <= jnp.iinfo(jnp.int32).max:
                # One long row is read in wide steps. Its index must fit in 32 bits.
                long = column.reshape(-1)
            step = 1 if long.ndim > 1 else each
            take = lambda at: jax.lax.dynamic_slice_in_dim(long, at, widest * step)
            # The barriers keep XLA from fusing the copy with other operations, which
            # would turn it into a copy element by element.
            at = jax.lax.optimization_barrier(first * step)
            rows = jax.lax.optimization_barrier(jax.vmap(take)(at))
            return rows.reshape(-1, *column.shape[1:])

        table = jax.tree.map(cut, self.table)
        if self.size is None:
            return replace(self, table=table, start=None)
        slot = widest * jnp.arange(len(ids), dtype=jnp.int32)
        return replace(
            self, table=table, start=slot + start - first, size=self.size[ids]
        )


@register
@dataclass(frozen=True)
class Sampled(Objective):
    """f_i, on the rows `start` to `start + size` of the clients' table."""

    clients: Clients
    start: jax.Array
    size: jax.Array

    def draw(self, key: Key, count: int | None = None) -> Xi:
        """Rows drawn with replacement, or all local rows without a batch size."""
        return drawn(key, self.size, self.clients.batch_size, count)

    def whole(self, key: Key) -> Xi:
        return Xi(None, bits(key, (2,)))

    def value(self, z: Point, xi: Xi) -> jax.Array:
        """f_i(z; xi), a mean over the rows of xi."""
        key = jax.random.wrap_key_data(xi.seed, impl="threefry2x32")
        loss = self.clients.problem.loss
        if xi.position is not None:
            rows = self.start + xi.position
            batch = self.rows(lambda column: column[rows], xi.position)
            return loss(z, batch, key).mean()
        # Every client's rows are cut out at one size, `widest`. Near the table's end
        # the cut begins early. Rows of other clients get weight zero.
        widest, table = self.clients.widest, self.clients.table
        first = jnp.minimum(self.start, len(jax.tree.leaves(table)[0]) - widest)
        cut = lambda column: jax.lax.dynamic_slice_in_dim(column, first, widest)
        if self.clients.size is None:
            return loss(z, self.rows(cut, slice(0, widest)), key).mean()
        number = first - self.start + jnp.arange(widest)
        local = (number >= 0) & (number < self.size)
        losses = loss(z, self.rows(cut, jnp.where(local, number, 0)), key)
        return jnp.sum(jnp.where(local, losses, 0)) / self.size

    def rows(self, cut: Any, position: Any) -> Any:
        """A batch. `position`, the row numbers within the client, needs no access to
        the table."""
        table = self.clients.table
        if not isinstance(table, Table):
            return jax.tree.map(cut, table)
        batch = jax.tree.map(cut, table._replace(position=None))
        return batch._replace(position=position)

    def grad(self, z: Point, xi: Xi) -> Point:
        return self.clients.problem.treat(jax.grad(self.value)(z, xi))

    def project(self, z: Point) -> Point:
        return self.clients.problem.project(z)
