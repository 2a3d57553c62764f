"""One simulation as a process: its time per round and its memory.

    python benchmarks/point.py FIELDS

runs a few rounds and prints their time and memory. Then it continues as a contestant,
with the protocol of `rivals/common.py`. FIELDS is a JSON object, see `main`.
"""

import json
import sys
import time
from pathlib import Path

import machine
import numpy as np

import sagda

BLOCK = 10**6  # rows written at a time


def write(folder: Path, rows: int, d: int) -> None:
    """Write random rows of two classes as files for memory mapping."""
    rng = np.random.default_rng(0)
    shape = {"features": (rows, d), "label": (rows,)}
    out = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, size)
        for name, size in shape.items()
    }
    for first in range(0, rows, BLOCK):
        some = slice(first, min(rows, first + BLOCK))
        count = some.stop - first
        label = np.where(rng.random(count, np.float32) < 0.3, 1, -1)
        noise = rng.standard_normal((count, d), np.float32)
        out["features"][some] = (noise + 0.3 * label[:, None]) / np.sqrt(d)
        out["label"][some] = label


def main(text: str) -> None:
    """Run the fields M, m, n, d, K on the files in `folder`.

    `serve` is the number of first rounds, `batch` is the batch size (null: all rows).
    """
    ask = {"batch": 10} | json.loads(text)
    sagda.use_cores()
    begin = time.perf_counter()
    folder, rows = Path(ask["folder"]), ask["M"] * ask["n"]
    columns = [np.load(folder / f"{c}.npy", "r") for c in ("features", "label")]
    federation = sagda.Federation.of(
        sagda.Table(*columns), order=np.arange(rows), size=np.full(ask["M"], ask["n"])
    )
    problem = sagda.AUC.of(federation)
    layout = ""

    def once(rounds: int) -> float:
        nonlocal layout
        run = sagda.simulate(
            sagda.sagda_i(local_lr=0.01, server_lr=1.0, local_steps=ask["K"]),
            problem,
            federation,
            rounds=rounds,
            cohort=ask["m"],
            batch_size=ask["batch"],
            eval_every=rounds,
        )
        assert not run.diverged
        layout = run.layout
        return float(run.history["seconds"][0, -1]) / rounds

    once(ask["serve"])
    answer = {"layout": layout, "total_seconds": time.perf_counter() - begin}
    print(json.dumps(answer | machine.memory()), flush=True)
    while line := sys.stdin.readline().strip():
        print(json.dumps({"seconds": once(int(line))}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
