"""`Stream`: copies the next cohorts' rows to a device that cannot hold all rows.

For accelerators; tested on processors only. Cohorts follow from keys, so they are known
ahead. With all rows on the device, nothing here is used.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from sagda.check import BadValue
from sagda.core import Algorithm, Phase
from sagda.data.federation import Federation
from sagda.keys import Key
from sagda.problems.base import Problem
from sagda.simulator.cohort import draw_members
from sagda.simulator.layout import Layout
from sagda.simulator.setup import Setup, numbers, on_device

# Rounds whose cohorts are drawn ahead at a time.
AHEAD = 64
# The fraction of an accelerator's memory that rows may take.
SHARE = 0.5


def rows_to_stream(
    problem: Problem, federation: Federation, dtype: Any, asked: int | None
) -> int | None:
    """The number of rows on the device at a time; None for all of them."""
    rows = int(federation.size.sum())
    if asked is None:
        # Processors report no limit: they use the host's memory.
        limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
        if limit is None:
            return None
        columns = jax.tree.leaves(numbers(problem.columns(federation)))
        each = sum(np.dtype(dtype).itemsize * column[0].size for column in columns)
        asked = int(SHARE * limit / each)
    return None if asked >= rows else asked


class Stream:
    """Copies rows to the device. `Clients.start` says where a client's rows are."""

    def __init__(
        self,
        federation: Federation,
        dtype: Any,
        algorithm: Algorithm,
        keys: Key,
        capacity: int,
        setup: Setup,
        layout: Layout,
    ):
        self.federation, self.keys, self.capacity = federation, keys, capacity
        self.data = numbers(setup.clients.problem.columns(federation))
        self.mesh = layout.mesh if layout.devices > 1 else None
        self.dtype, self.phases = dtype, algorithm.phases
        self.span = range(0)  # the rounds whose rows are on the device
        if algorithm.opening:
            raise BadValue(
                "`stream` must be None where a method asks all clients at its start, "
                "as start='warm' does; start='zeros' does not."
            )
        # Runs of one seed draw the same clients.
        seeds = len(np.unique(np.asarray(jax.random.key_data(keys)), axis=0))
        cohorts = seeds * (1 + sum(p.resample for p in self.phases[1:]))
        largest = np.sort(federation.size)[
            -min(federation.clients, cohorts * setup.cohort) :
        ]
        if largest.sum() > capacity:
            raise BadValue(
                f"`stream` must hold the rows of one round, up to {largest.sum()} with "
                f"{setup.cohort} clients a round and {seeds} seeds at a time, got "
                f"{capacity}."
            )

    def bring(self, setup: Setup, first: int, last: int) -> tuple[Setup, int]:
        """Copy the rows of rounds from `first` on, for as many rounds as fit.

        Returns the setup with these rows, and the round (at most `last`) up to which
        they suffice.
        """
        if first in self.span:
            return setup, min(last, self.span.stop)
        rounds = np.arange(first, first + AHEAD, dtype=np.int32)
        ids = np.asarray(
            cohorts(self.phases, self.keys, rounds, setup.clients.count, setup.cohort)
        )
        size, needed = self.federation.size, np.zeros(0, np.int64)
        stop = first
        while stop < first + AHEAD:
            more = np.union1d(needed, ids[stop - first])
            if size[more].sum() > self.capacity:
                break
            needed, stop = more, stop + 1
        start = np.zeros_like(self.federation.start)
        start[needed] = np.cumsum(size[needed]) - size[needed]
        shift = np.repeat(self.federation.start[needed] - start[needed], size[needed])
        rows = np.arange(len(shift)) + shift
        # The device has memory for one table only.
        for old in jax.tree.leaves(setup.clients.table):
            old.delete()
        put = lambda array: on_device(array, self.dtype, self.mesh)

        def part(column: Any) -> jax.Array:
            buffer = np.zeros((self.capacity, *column.shape[1:]), column.dtype)
            buffer[: len(rows)] = column[rows]
            return put(buffer)

        table = jax.tree.map(part, self.data)
        clients = replace(setup.clients, table=table, start=put(start))
        self.span = range(first, stop)
        return replace(setup, clients=clients), min(last, stop)


@partial(jax.jit, static_argnums=(0, 3, 4))
def cohorts(
    phases: tuple[Phase, ...], keys: Key, rounds: Any, clients: int, cohort: int
) -> jax.Array:
    """[rounds, clients]: the clients that any run asks in each round."""

    def one(t: Any, key: Key) -> jax.Array:
        members = draw_members(phases, key, t, clients, cohort, None)
        return jax.numpy.stack([member.ids for member in members.values()])

    each = jax.vmap(jax.vmap(one, (None, 0)), (0, None))(rounds, keys)
    return each.reshape(len(rounds), -1)
