"""The section *layouts*: the layout `auto` against the others, on jobs and shapes.

    python benchmarks/layouts.py FIELDS

measures every layout of one task in turn, in one process. FIELDS is a JSON object.
"""

import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import job
import machine
import numpy as np
from children import ask

import sagda

BOUT = 0.15  # seconds of one measurement
USUAL = {"problem": "dro", "batch": 10, "cohort": None, "seeds": 1, "repeats": 15}
JOBS: list[dict] = [
    {"problem": p, "batch": b} for p in job.PROBLEMS for b in (10, None)
]
JOBS += [
    {"batch": b} | one for b in (10, None) for one in ({"cohort": 10}, {"seeds": 4})
]
# Rows (n) and features (d) of a client, the batch size, and the width of a network.
SHAPES: list[dict] = [
    {"batch": None, "n": n, "d": d}
    for n, d in ((10, 20), (30, 123), (300, 123), (1000, 123), (100, 800), (1000, 800))
]
SHAPES += [{"batch": batch, "n": 300, "d": 123} for batch in (32, 100)]
SHAPES += [{"problem": "auc", "n": 10, "d": d} for d in (10, 20, 60, 1000)]
SHAPES += [{"problem": "auc", "n": 30, "d": 20, "width": 16}]


def fixed(cores: int, seeds: int) -> list[str]:
    """Return the layouts with which `auto` is compared."""
    kinds = "mapped", "chunk-5", "chunk-10", "batched"
    names = [f"{kind}/1" for kind in kinds]
    if cores > 1:
        names += [f"{kind}/{cores}:clients" for kind in kinds]
    if cores > 1 and seeds >= cores:
        names += [f"{kind}/{cores}:runs" for kind in kinds]
    return names


def federation(ask: dict) -> sagda.Federation:
    """Return the clients of the job, or clients with random rows."""
    if "n" not in ask:
        return job.federation()
    rng = np.random.default_rng(0)
    features = rng.standard_normal((job.CLIENTS * ask["n"], ask["d"]), np.float32)
    label = np.where(features[:, 0] > 0, 1, -1)
    table = sagda.Table(features / np.sqrt(ask["d"]), label)
    return sagda.partition(table, "iid", clients=job.CLIENTS, samples=ask["n"])


def main(text: str) -> None:
    """Print the times of every layout of one task."""
    ask = USUAL | json.loads(text)
    sagda.use_cores()
    clients = federation(ask)
    model = (sagda.MLP(ask["d"], ask["width"]),) if "width" in ask else ()
    objective = job.PROBLEMS[ask["problem"]].of(clients, *model)
    method = sagda.sagda_i(**job.METHOD)

    def once(layout: str, rounds: int) -> sagda.Run:
        return sagda.simulate(
            method, objective, clients, rounds=rounds, eval_every=rounds,
            batch_size=ask["batch"], cohort=ask["cohort"], seeds=range(ask["seeds"]),
            layout=layout,
        )  # fmt: skip

    seconds = lambda run, rounds: float(run.history["seconds"][0, -1]) / rounds
    rounds, layout_of = {}, {}
    names = ["auto", *fixed(len(os.sched_getaffinity(0)), ask["seeds"])]
    for name in names:
        layout_of[name], count = once(name, 2).layout, 2
        while (each := seconds(once(name, count), count)) * count < BOUT / 3:
            count *= 4
        rounds[name] = max(2, round(BOUT / each))
    # A layout with two names is one program, so its turns count together.
    times: dict[str, list[float]] = defaultdict(list)
    disturbed = 0
    clock, taken = time.perf_counter(), machine.stolen()
    for _ in range(ask["repeats"]):
        disturbed += machine.others() > machine.DISTURBED
        for name in names:
            times[layout_of[name]].append(
                seconds(once(name, rounds[name]), rounds[name])
            )
    layouts: dict[str, Any] = {
        layout: {"ms": 1e3 * statistics.median(some), "turns": len(some)}
        for layout, some in times.items()
    }
    stolen = (machine.stolen() - taken) / (time.perf_counter() - clock)
    answer = {"auto": layout_of["auto"], "layouts": layouts, "disturbed": disturbed}
    answer["stolen_cores"] = stolen
    print(json.dumps(answer), flush=True)


def measure_layouts(quick: bool, say: Callable) -> dict:
    """Measure every task.

    `ratio` is the time of `auto` divided by the time of the best other layout.
    """
    rows = []
    for task in JOBS + SHAPES:
        answer = ask("layouts.py", json.dumps(task | {"repeats": 3 if quick else 15}))
        ms = {layout: one["ms"] for layout, one in answer["layouts"].items()}
        auto = ms.pop(answer["auto"])
        best = min(ms, key=lambda layout: ms[layout])
        row = USUAL | task | answer | {"best": best, "ratio": auto / ms[best]}
        rows.append(row)
        say(f"  {json.dumps(task)}: {answer['auto']} / {best}: {row['ratio']:.2f}")
    return {"rows": rows, "stolen_cores": max(row["stolen_cores"] for row in rows)}


if __name__ == "__main__":
    main(sys.argv[1])
