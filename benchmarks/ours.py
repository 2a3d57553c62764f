"""sagda as a contestant, with the protocol of `rivals/common.py`.

python benchmarks/ours.py PROBLEM BATCH
"""

import json
import platform
import sys

import jax
import job
import numpy as np

import sagda


def main(problem: str, batch: str) -> None:
    """Run the check rounds, then time rounds on request."""
    sagda.use_cores()
    clients = job.federation()
    objective = job.PROBLEMS[problem].of(clients)

    def run(rounds: int) -> sagda.Run:
        return sagda.simulate(
            sagda.sagda_i(**job.METHOD),
            objective,
            clients,
            rounds=rounds,
            eval_every=rounds,
            batch_size=None if batch == "all" else int(batch),
            seeds=job.SEED,
        )

    check = run(job.CHECKS)
    first = jax.tree.map(lambda a: a[0], check.z)
    versions = {"sagda": sagda.__version__, "jax": jax.__version__}
    versions |= {"numpy": np.__version__, "python": platform.python_version()}
    z = np.concatenate(job.flat(first))
    ready = {"ready": True, "z": z.tolist(), "versions": versions}
    print(json.dumps(ready | {"layout": check.layout}), flush=True)
    while line := sys.stdin.readline().strip():
        seconds = run(int(line)).history["seconds"][0, -1] / int(line)
        print(json.dumps({"seconds": float(seconds)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
