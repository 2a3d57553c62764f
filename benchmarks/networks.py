"""The section *networks*: time and memory of networks on MNIST, by layout.

    python benchmarks/networks.py MODEL LAYOUT

runs two rounds and prints their memory. Then it continues as a contestant, with the
protocol of `rivals/common.py`. *Set aside* is the memory that XLA reserves for the
program, without its inputs and outputs.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import machine
import numpy as np
from children import HERE, Failed
from contest import Contestant, hold
from jax.sharding import PartitionSpec

import sagda
from sagda.check import BadValue
from sagda.keys import root_key
from sagda.methods import stack
from sagda.simulator.layout import StackedRuns, resolve, shared
from sagda.simulator.rounds import is_split, programs
from sagda.simulator.setup import Setup
from sagda.simulator.simulate import draw_starts

CLIENTS, ROWS, BATCH, ROUNDS = 100, 100, 10, 2
MODELS = {"mlp": sagda.MLP(784), "cnn": sagda.CNN(784)}
KINDS = "mapped", "chunk-10", "batched"
CORES = len(os.sched_getaffinity(0))
WAYS = "1", *([f"{CORES}:clients"] if CORES > 1 else [])
LAYOUTS = ["auto", *(f"{kind}/{way}" for way in WAYS for kind in KINDS)]


def main(name: str, layout: str) -> None:
    """Train on digit 1 against the rest; each client has one class."""
    sagda.use_cores()
    data = sagda.load("mnist", positive=1)
    clients = sagda.partition(data.train, clients=CLIENTS, samples=ROWS)
    problem = sagda.AUC.of(clients, MODELS[name])
    method = sagda.sagda_i(local_lr=0.01, server_lr=1.0, local_steps=10)

    def once(rounds: int) -> Any:
        return sagda.simulate(
            method, problem, clients, rounds=rounds, batch_size=BATCH,
            eval_every=rounds, layout=layout,
        )  # fmt: skip

    answer = {"layout": once(ROUNDS).layout}
    answer["set_aside"] = set_aside(method, problem, clients, layout)
    print(json.dumps(answer | machine.memory()), flush=True)
    while line := sys.stdin.readline().strip():
        run = once(int(line))
        seconds = float(run.history["seconds"][0, -1]) / int(line)
        print(json.dumps({"seconds": seconds}), flush=True)


def set_aside(method: Any, problem: Any, clients: Any, text: str) -> int:
    """Return the bytes that XLA reserves for the program besides inputs and outputs."""
    keys = jax.vmap(root_key)(np.zeros(1, np.uint32))
    starts = draw_starts(problem, keys)
    shape: dict[str, Any] = {"cohort": CLIENTS, "batch_size": BATCH}
    setup = Setup.of(problem, clients, jnp.float32, **shape)
    z = jax.tree.map(lambda a: a[0], starts)
    layout = resolve(text, setup, method.build(), z, 1)
    if layout.devices > 1:
        setup = setup.over(layout.mesh)
    stacked = StackedRuns(stack([method], jnp.float32), keys, starts)
    lanes = shared(stacked, layout, PartitionSpec("runs"))
    made: Any = programs(layout, is_split(layout, CLIENTS, CLIENTS))
    carry, _ = made.begin(setup, *lanes)
    span = np.int32(0), np.int32(ROUNDS)
    lowered = made.advance.lower(setup, lanes.method, lanes.keys, carry, *span)
    return lowered.compile().memory_analysis().temp_size_in_bytes


def measure_networks(quick: bool, say: Callable) -> dict:
    """Measure every model in every layout, in turn."""
    try:
        sagda.load("mnist", positive=1)
    except BadValue as missing:
        raise Failed(str(missing)) from None
    rows = []
    for model in MODELS:
        command = [sys.executable, str(HERE / "networks.py"), model]
        some = [Contestant(name, [*command, name], rounds=ROUNDS) for name in LAYOUTS]
        hold(some, 3 if quick else 5)
        for one in some:
            if one.failure:
                raise Failed(one.failure)
            row: dict[str, Any] = {"model": model} | one.ready | one.result()
            rows.append(row)
            aside, peak = row["set_aside"] / 2**20, row["VmHWM"] / 2**20
            sizes = f"{aside:.0f} MiB set aside, {peak:.0f} MiB peak"
            say(f"  {model}, {one.name}: {row['ms']:.0f} ms, {sizes}")
    return {"rows": rows}


if __name__ == "__main__":
    main(*sys.argv[1:])
