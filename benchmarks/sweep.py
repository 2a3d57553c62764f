"""The section *sweep*: a grid of rates and seeds by one call, many, or many processes.

    python benchmarks/sweep.py one|loop|NUMBER

runs the whole grid with one call of `sagda.sweep` (`one`) or with many calls of
`sagda.simulate` (`loop`). With a NUMBER, it runs one entry of the grid.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from children import ask

import sagda

RATES = [0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01]
SEEDS = range(5)
ROUNDS, SAMPLED = 200, 3


def main(how: str) -> None:
    """Run the grid in one way."""
    import job

    sagda.use_cores()
    clients = job.federation()
    problem = sagda.AUC.of(clients)
    methods = [sagda.sagda_i(**job.METHOD | {"local_lr": rate}) for rate in RATES]
    options: dict[str, Any] = {"rounds": ROUNDS, "eval_every": 10}
    grid = [(method, seed) for method in methods for seed in SEEDS]
    if how == "one":
        sagda.sweep(methods, problem, clients, seeds=SEEDS, **options)
    else:
        for method, seed in grid if how == "loop" else [grid[int(how)]]:
            sagda.simulate(method, problem, clients, seeds=seed, **options)
    print(json.dumps({"done": True}), flush=True)


def fresh(*ways: str) -> float:
    """Run one new process for each of `ways`. Return the seconds of the last process.

    The time is from the start of a process to its answer. The processes share a cache
    of compiled programs, which is empty before the first process.
    """
    with tempfile.TemporaryDirectory() as folder:
        cache = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        seconds = [ask("sweep.py", how, extra=cache)["process_seconds"] for how in ways]
    return seconds[-1]


def measure_sweep(quick: bool, say: Callable) -> dict:
    """Time whole processes: imports, data, compilation, rounds and evaluations."""
    count = len(RATES) * len(SEEDS)
    rows = []

    def add(name: str, seconds: float, note: str = "") -> None:
        rows.append({"name": name, "seconds": seconds, "note": note})
        say(f"  {name}: {seconds:.1f} s")

    add("one call of sagda.sweep", fresh("one"))
    add(f"{count} calls of sagda.simulate in one process", fresh("loop"))
    picked = [round(i * (count - 1) / (SAMPLED - 1)) for i in range(SAMPLED)]
    note = f"{SAMPLED} measured in sequence, times {count / SAMPLED:g}"
    mean = sum(fresh(str(number)) for number in picked) / SAMPLED
    add(f"{count} processes", mean * count, note)
    again = sum(fresh("0", str(number)) for number in picked) / SAMPLED
    add(f"{count} processes that find their programs", again * count, note)
    grid = {"rates": len(RATES), "seeds": len(SEEDS), "rounds": ROUNDS}
    return {"grid": grid, "rows": rows}


if __name__ == "__main__":
    main(sys.argv[1])
