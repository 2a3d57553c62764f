"""Time per round, as ratios within one run: methods, batches, and a loop in NumPy.

    make bench

The job is AUC on a9a: 100 clients of 100 rows, all taking part, K = 10 local steps.
Every variant is timed several times in turn and the median counts.
"""

import os
import platform
import time
from collections.abc import Callable

import jax
import numpy as np

import sagda

ROUNDS, REPEATS, K, BATCH = 100, 5, 10, 10


def ours(method: sagda.Method, clients, problem, batch: int | None) -> Callable:
    def once() -> float:
        run = sagda.simulate(
            method,
            problem,
            clients,
            rounds=ROUNDS,
            batch_size=batch,
            eval_every=ROUNDS,
        )
        return run.history["seconds"][0, -1] / ROUNDS

    return once


def numpy_sagda_i(clients, tau: float, batch: int | None) -> Callable:
    """SAGDA, Option I, with the same arithmetic in a plain loop over clients."""
    features, label = clients.data.features, clients.data.label
    d = features.shape[1]
    rng = np.random.default_rng(0)
    local, server = np.float32(0.01), np.float32(2.0)

    def gradient(z: np.ndarray, rows: np.ndarray) -> np.ndarray:
        a, positive = features[rows], label[rows] > 0
        w, c_1, c_2, lam = z[:d], z[d], z[d + 1], z[d + 2]
        h = a @ w
        on, off = positive.astype(np.float32), (~positive).astype(np.float32)
        miss_1, miss_2 = (1 - tau) * (h - c_1) * on, tau * (h - c_2) * off
        slope = 2 * (miss_1 + miss_2 + (1 + lam) * (tau * off - (1 - tau) * on))
        n = len(rows)
        in_lam = 2 * (tau * h * off - (1 - tau) * h * on).mean()
        in_lam -= 2 * tau * (1 - tau) * lam
        tail = [-2 * miss_1.mean(), -2 * miss_2.mean(), -in_lam]  # y ascends
        return np.concatenate([slope @ a / n, tail]).astype(np.float32)

    def draw(i: int) -> np.ndarray:
        start, size = clients.start[i], clients.size[i]
        if batch is None:
            return np.arange(start, start + size)
        return start + rng.integers(0, size, batch)

    def once() -> float:
        z = np.zeros(d + 3, np.float32)
        v_of = np.zeros((clients.clients, d + 3), np.float32)
        v = np.zeros(d + 3, np.float32)
        rounds = 5
        clock = time.perf_counter()
        for _ in range(rounds):
            delta, renewal = np.zeros_like(z), np.zeros_like(z)
            for i in range(clients.clients):
                z_i = z
                for _ in range(K):
                    z_i = z_i - local * (gradient(z_i, draw(i)) - v_of[i] + v)
                fresh = gradient(z, draw(i))
                delta += z_i - z
                renewal += fresh - v_of[i]
                v_of[i] = fresh
            z = z + server * delta / clients.clients
            v = v + renewal / clients.clients
        return (time.perf_counter() - clock) / rounds

    return once


def main() -> None:
    data = sagda.load("a9a")
    clients = sagda.partition(data.train, clients=100, samples=100)
    problem = sagda.AUC.of(clients)
    jobs: dict[str, Callable] = {}
    for name in sagda.ALGORITHMS:
        method = sagda.algorithm(name)
        jobs[f"{name}, batch {BATCH}"] = ours(method, clients, problem, BATCH)
    jobs["sagda-i, whole batch"] = ours(sagda.sagda_i(), clients, problem, None)
    jobs[f"NumPy loop, batch {BATCH}"] = numpy_sagda_i(clients, problem.tau, BATCH)
    jobs["NumPy loop, whole batch"] = numpy_sagda_i(clients, problem.tau, None)

    times: dict[str, list[float]] = {name: [] for name in jobs}
    for repeat in range(REPEATS + 1):
        for name, job in jobs.items():
            seconds = job()
            if repeat:  # the first compiles
                times[name].append(seconds)

    base = float(np.median(times[f"sagda-i, batch {BATCH}"]))
    print(f"jax {jax.__version__}, Python {platform.python_version()}", end=", ")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'per round':28}{'ms':>9}{'ratio':>9}")
    for name, values in times.items():
        median = float(np.median(values))
        print(f"{name:28}{1000 * median:9.2f}{median / base:9.2f}")


if __name__ == "__main__":
    main()
