"""`Clients`: the rows of all clients in one table, and their objectives f_i.

Client i has the rows from `start[i]` to `start[i] + size[i]`. In a compiled program all
shapes are fixed. So the rows of every client are read at the size of the largest
client, and rows of other clients get weight zero. PyTorch models have
`torch/objective.py`. The loss itself belongs to the problem, see `problems/base.py`.
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
    """A sample xi: the numbers of its rows, and a random seed for a noisy loss."""

    position: Any  # [rows], row numbers within the client; None for all local rows
    seed: Any  # [2] words, the random key of the noise in the loss


def drawn(key: Key, size: Any, rows: int | None, count: int | None) -> Xi:
    """Draw a sample of `rows` rows of a client that has `size` rows.

    With `count`, draw this number of samples on axis 0. If `rows` is None, the sample
    has all rows. Two random words are always drawn first, as the seed of the noise. So
    problems with and without noise draw the same rows.
    """
    width = (rows or 0) + 2
    words = bits(key, (width,) if count is None else (count, width))
    if rows is None:
        return Xi(None, words)
    return Xi(below(words[..., 2:], size), words[..., :2])


@register
@dataclass(frozen=True)
class Clients:
    """The objectives of all clients: client i has `size[i]` rows from `start[i]` on.

    If all clients have the same size and lie in order, `size` and `start` are None. The
    compiled program then computes the first row of a client by a multiplication.
    """

    problem: Problem
    table: PyTree  # [rows, ...], sorted by client
    start: jax.Array | None  # [M]; None: client i starts at row i * widest
    size: jax.Array | None  # [M]; None: all n_i are equal
    count: int  # M, the number of clients
    widest: int  # the largest n_i
    batch_size: int | None  # None: all rows of the client

    def objective(self, i: Any) -> "Sampled":
        """Return f_i, the objective of client `i`."""
        return Sampled(self, self.first_row(i), self.rows_of(i))

    def first_row(self, i: Any) -> Any:
        """Return the number of the first row of client `i` in the table."""
        return self.widest * i if self.start is None else self.start[i]

    def rows_of(self, i: Any) -> Any:
        """Return n_i, the number of rows of client `i`."""
        return jnp.full_like(i, self.widest) if self.size is None else self.size[i]

    def near(self, ids: jax.Array) -> "Clients":
        """Copy the rows of the clients `ids` to a new table, with clients from 0 on.

        Rows that are far apart in memory take longer to load than to use. The copy
        loads all of them together, so that the CPU waits only once.
        """
        start, widest = self.first_row(ids), self.widest
        # [ids]. Every client gets `widest` rows. At the end of the table, the rows are
        # taken from before the first row of the client.
        first = jnp.minimum(start, len(jax.tree.leaves(self.table)[0]) - widest)

        def cut(column: jax.Array) -> jax.Array:
            each, long = column[0].size, column
            if column.size <= jnp.iinfo(jnp.int32).max:
                # A flat column is copied in wide steps. Its index must fit in 32 bits.
                long = column.reshape(-1)
            step = 1 if long.ndim > 1 else each
            take = lambda at: jax.lax.dynamic_slice_in_dim(long, at, widest * step)
            # Without the barriers, XLA would fuse the copy with other operations, and
            # then copy element by element.
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
    """The objective f_i of the client with `size` rows of the table from `start` on."""

    clients: Clients
    start: jax.Array
    size: jax.Array

    def draw(self, key: Key, count: int | None = None) -> Xi:
        """Draw rows with replacement. Without a batch size, take all local rows."""
        return drawn(key, self.size, self.clients.batch_size, count)

    def whole(self, key: Key) -> Xi:
        return Xi(None, bits(key, (2,)))

    def value(self, z: Point, xi: Xi) -> jax.Array:
        """Return f_i(z; xi), the mean of the loss over the rows of `xi`."""
        key = jax.random.wrap_key_data(xi.seed, impl="threefry2x32")
        loss = self.clients.problem.loss
        if xi.position is not None:
            rows = self.start + xi.position
            batch = self.rows(lambda column: column[rows], xi.position)
            return loss(z, batch, key).mean()
        # `widest` rows are read for every client, since shapes must be fixed. At the
        # end of the table, they begin before the first row of the client. The rows of
        # other clients get weight zero.
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
        """Return a batch: `cut` applied to each column of the table.

        `position` has the row numbers within the client. It becomes the column of the
        same name, which need not be read from the table.
        """
        table = self.clients.table
        if not isinstance(table, Table):
            return jax.tree.map(cut, table)
        batch = jax.tree.map(cut, table._replace(position=None))
        return batch._replace(position=position)

    def grad(self, z: Point, xi: Xi) -> Point:
        return self.clients.problem.treat(jax.grad(self.value)(z, xi))

    def project(self, z: Point) -> Point:
        return self.clients.problem.project(z)
