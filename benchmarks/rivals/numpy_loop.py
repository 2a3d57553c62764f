"""NumPy: a plain loop over clients and their local steps."""

import numpy as np
from common import SERVER, begin, serve


def main() -> None:
    job, answers = begin()
    z, v = job.z, np.zeros_like(job.z)
    v_of = np.zeros((job.clients, len(z)), np.float32)
    rng = np.random.default_rng(0)

    def round(position: np.ndarray | None = None) -> None:
        nonlocal z, v
        delta, renewal = np.zeros_like(z), np.zeros_like(z)
        for i in range(job.clients):
            rows = job.draw(rng, i) if position is None else position[i]
            moved, fresh = job.visit(i, z, v, v_of[i], rows)
            delta += moved
            renewal += fresh - v_of[i]
            v_of[i] = fresh
        z = z + SERVER / job.clients * delta
        v = v + renewal / job.clients

    def run(rounds: int) -> None:
        for _ in range(rounds):
            round()

    for position in job.checks():
        round(position)
    serve(answers, z, run, ["numpy"])


if __name__ == "__main__":
    main()
