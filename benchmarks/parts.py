"""The section *profile*: the parts of a round's time, measured by leaving them out.

    python benchmarks/parts.py BATCH REPEATS

The job is DRO on the contestants' clients. The programs of the simulator run with
objectives that leave out parts of their work (`partial`):

1. They draw no rows.
2. They also read rows in order instead of gathering them.
3. They also compute no gradient.

The sum over devices (the *meeting*) and the draw of a cohort are measured separately.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import job
import numpy as np
from children import ask
from jax.sharding import PartitionSpec
from partial import DRAW, GATHER, GRADIENT, PartialClients, as_dict

import sagda
from sagda.keys import root_key
from sagda.methods import stack
from sagda.simulator.cohort import draw_members
from sagda.simulator.evaluator import Evaluator
from sagda.simulator.layout import StackedRuns, resolve, shared
from sagda.simulator.recorder import Recorder
from sagda.simulator.rounds import Carry, is_split, programs
from sagda.simulator.setup import Setup, View
from sagda.simulator.simulate import draw_starts

BOUT = 0.3  # seconds of one measurement
MOST = 10**6  # the largest number of rounds of one measurement


class Bench:
    """The job. A method such as `rounds` returns a function that runs one part.

    The argument of this function is the number of rounds.
    """

    def __init__(self, batch: int | None):
        self.clients = job.federation()
        self.problem = sagda.DRO.of(self.clients)
        self.batch, self.method = batch, sagda.sagda_i(**job.METHOD)
        self.keys = jax.vmap(root_key)(np.zeros(1, np.uint32))
        self.starts = draw_starts(self.problem, self.keys)
        self.z = jax.tree.map(lambda a: a[0], self.starts)
        self.plain = self.setup(None)
        self.layout = self.resolved("auto")

    def setup(self, mesh: Any) -> Setup:
        """Return the data of the program, split over the devices of `mesh`."""
        everyone = self.clients.clients
        shape = {"cohort": everyone, "batch_size": self.batch}
        setup = Setup.of(self.problem, self.clients, jnp.float32, **shape)
        return setup if mesh is None else setup.over(mesh)

    def resolved(self, text: str) -> Any:
        """Return the layout that `text` names."""
        return resolve(text, self.plain, self.method.build(), self.z, 1)

    def rounds(self, text: str, *left: str) -> Callable[[int], object]:
        """Return a function for whole rounds without the parts named in `left`."""
        layout = self.resolved(text)
        mesh = layout.mesh if layout.devices > 1 else None
        setup = self.setup(mesh)
        clients = PartialClients(**as_dict(setup.clients), left=left)
        setup = replace(setup, clients=clients)
        split = is_split(layout, setup.cohort, setup.clients.count)
        made = programs(layout, split)
        method = stack([self.method], jnp.float32)
        stacked = StackedRuns(method, self.keys, self.starts)
        lanes = shared(stacked, layout, PartitionSpec("runs"))

        def run(rounds: int) -> object:
            carry, _ = made.begin(setup, *lanes)
            span = np.int32(0), np.int32(rounds)
            return made.advance(setup, lanes.method, lanes.keys, carry, *span)

        return run

    def meeting(self) -> Callable[[int], object] | None:
        """Return a function for the sum over devices at the end of a round.

        The result is None for one device.
        """
        if self.layout.clients == 1:
            return None
        size = 2 * sum(a.size for a in jax.tree.leaves(self.z)) + 1

        def run(rounds: Any) -> jax.Array:
            body = lambda _, a: jax.lax.psum(a, "clients") * 0.5
            return jax.lax.fori_loop(0, rounds, body, jnp.ones(size))

        everywhere = PartitionSpec()
        mapped = jax.shard_map(
            run,
            mesh=self.layout.mesh,
            in_specs=everywhere,
            out_specs=everywhere,
            check_vma=False,
        )
        return jax.jit(mapped)

    def cohort(self, m: int) -> Callable[[int], object]:
        """Return a function that draws m clients."""
        phases, M = self.method.build().phases, self.clients.clients

        @jax.jit
        def run(rounds: Any) -> jax.Array:
            def body(t: Any, total: Any) -> Any:
                members = draw_members(phases, self.keys[0], t, M, m, None)
                return total + members["local"].ids.sum()

            return jax.lax.fori_loop(0, rounds, body, jnp.int32(0))

        return run

    def evaluation(self) -> Callable[[int], object]:
        """Return a function that evaluates and records each result in the history."""
        view = View.of(self.plain, self.clients, jnp.float32)
        algorithm, look = self.method.build(), Evaluator(view, None, ())
        recorder = Recorder(look, algorithm, self.z, (0,))
        state = jax.vmap(algorithm.init)(self.starts)
        carry = Carry(state, None, None, None)

        def run(times: int) -> None:
            for t in range(times):
                recorder.evaluate(carry, t)

        return run


def in_turn(parts: dict[str, Callable], repeats: int) -> dict[str, float]:
    """Measure all parts in turn. Return the median microseconds per round of each."""

    def timed(run: Callable, rounds: int) -> float:
        clock = time.perf_counter()
        jax.block_until_ready(run(rounds))
        return time.perf_counter() - clock

    counts: dict[str, int] = {}
    for name, run in parts.items():
        rounds = 8
        timed(run, rounds)
        while (took := timed(run, rounds)) < BOUT / 2 and rounds < MOST:
            rounds *= 4
        counts[name] = max(4, int(min(rounds * BOUT / took, MOST)))
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(repeats):
        for name, run in parts.items():
            times[name].append(timed(run, counts[name]) / counts[name])
    return {name: 1e6 * statistics.median(some) for name, some in times.items()}


def main(batch: str, repeats: str) -> None:
    """Print the microseconds of every part."""
    sagda.use_cores()
    bench = Bench(None if batch == "all" else int(batch))
    parts: dict[str, Callable] = {
        "round": bench.rounds("auto"),
        "no draw": bench.rounds("auto", DRAW),
        "no gradient": bench.rounds("auto", DRAW, GATHER, GRADIENT),
        "cohort": bench.cohort(bench.clients.clients),
        "cohort of 10": bench.cohort(10),
        "one device": bench.rounds("auto/1"),
        "evaluation": bench.evaluation(),
    }
    if bench.batch is not None:  # batches of all rows are always read in order
        parts["no gather"] = bench.rounds("auto", DRAW, GATHER)
    if meeting := bench.meeting():
        parts["meeting"] = meeting
    us = in_turn(parts, int(repeats))
    print(json.dumps({"us": us, "layout": str(bench.layout)}), flush=True)


def measure_profile(quick: bool, say: Callable) -> dict:
    """Measure the parts of a round for each batch size, and other times."""
    jobs = {}
    for batch in (str(job.BATCH), "all"):
        answer = ask("parts.py", batch, 3 if quick else 7)
        us = answer["us"]
        meeting = us.get("meeting", 0.0)
        in_order = us.get("no gather", us["no draw"])
        rest = us["no gradient"] - meeting - us["cohort"]
        parts = {
            "keys and bits": us["round"] - us["no draw"],
            "gathers of rows": us["no draw"] - in_order,
            "local gradients": in_order - us["no gradient"],
            "meeting of devices": meeting,
            "cohort, m = M": us["cohort"],
            "rest: steps, sums, server": rest,
        }
        beside = {
            "round on one device": us["one device"],
            "cohort, m = 10 of M = 100": us["cohort of 10"],
            "evaluation": us["evaluation"],
        }
        jobs[batch] = {
            "round": us["round"],
            "parts": parts,
            "beside": beside,
            "layout": answer["layout"],
        }
        shares = (f"{name} {us:.0f}" for name, us in parts.items())
        say(
            f"  batch {batch}: round {jobs[batch]['round']:.0f} us: {', '.join(shares)}"
        )
    return {"jobs": jobs}


if __name__ == "__main__":
    main(*sys.argv[1:])
