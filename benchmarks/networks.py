"""Networks on MNIST: time per round and memory by how many clients work at a time.

    python benchmarks/networks.py MODEL LAYOUT

runs two rounds, says what memory they took, and goes on as a contestant: a line with a
number of rounds in, a line with seconds per round out.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import machine
from children import HERE, Failed
from contest import Contestant, hold

import sagda
from sagda.check import BadValue

CLIENTS, ROWS, ROUNDS = 100, 100, 2
MODELS = {"mlp": sagda.MLP(784), "cnn": sagda.CNN(784)}
LAYOUTS = ("auto", "mapped/1", "chunk-10/1", "batched/1")


def main(name: str, layout: str) -> None:
    """Digit 1 against the rest, clients of one class each, batches of 10 rows."""
    sagda.use_cores()
    data = sagda.load("mnist", positive=1)
    clients = sagda.partition(data.train, clients=CLIENTS, samples=ROWS)
    problem = sagda.AUC.of(clients, MODELS[name])
    method = sagda.sagda_i(local_lr=0.01, server_lr=1.0, local_steps=10)

    def once(rounds: int) -> Any:
        return sagda.simulate(
            method, problem, clients, rounds=rounds, batch_size=10, eval_every=rounds,
            layout=layout,
        )  # fmt: skip

    answer = {"layout": once(ROUNDS).layout}
    print(json.dumps(answer | machine.memory()), flush=True)
    while line := sys.stdin.readline().strip():
        run = once(int(line))
        seconds = float(run.history["seconds"][0, -1]) / int(line)
        print(json.dumps({"seconds": seconds}), flush=True)


def measure_networks(quick: bool, say: Callable) -> dict:
    """Every model in every layout, in turn."""
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
            peak = row["VmHWM"] / 2**20
            say(f"  {model}, {one.name}: {row['ms']:.0f} ms, {peak:.0f} MiB")
    return {"rows": rows}


if __name__ == "__main__":
    main(*sys.argv[1:])
