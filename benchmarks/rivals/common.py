"""Code that the rivals share: the job, the protocol, and a client's part in NumPy.

    python benchmarks/rivals/NAME.py JOB.npz PROBLEM BATCH

PROBLEM is `auc` or `dro`. BATCH is a number of rows or `all`.

The protocol: a rival first runs the check rounds of the job and prints its iterate.
Then each line of input has a number of rounds. The rival runs these rounds and prints
the seconds per round.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import TextIO

import numpy as np

K, LOCAL, SERVER = 10, 0.01, 2.0
LAMBDA_2, ALPHA = 1e-3, 10.0


@dataclass
class Job:
    """SAGDA, Option I: one problem, one batch size, all clients in every round."""

    path: str
    problem: str
    batch: int | None

    def __post_init__(self) -> None:
        with np.load(self.path) as file:
            self.features, label = file["features"], file["label"]
            self.start, self.size = file["start"], file["size"]
            self.z = np.concatenate([file[f"{part}_{self.problem}"] for part in "xy"])
            self.tau = float(file["tau"])
            self.position = file["position"]
        self.clients, self.d = len(self.start), self.features.shape[1]
        # A row's sign and weight: 1 - tau or -tau for AUC, the label itself for DRO.
        share = np.where(label > 0, 1 - self.tau, -self.tau)
        self.target = share.astype(np.float32) if self.problem == "auc" else label

    def checks(self) -> Iterable[np.ndarray | None]:
        """Return the rows of each check round, [clients, K + 1, batch].

        The last of the K + 1 batches renews the control variate v_i.
        """
        whole = self.batch is None
        return [None] * len(self.position) if whole else self.position

    def draw(self, rng: np.random.Generator, i: int) -> np.ndarray | None:
        """Return the rows of client i in a round, or None for all local rows."""
        if self.batch is None:
            return None
        return rng.integers(0, self.size[i], (K + 1, self.batch))

    @cached_property
    def gradient(self) -> Callable:
        """The gradient of the mean loss, as a function.

        Its arguments are (z, features, target, position). z is one vector with x, then
        y. The gradient in y has the opposite sign, so one subtraction is descent in x
        and ascent in y. If `position` is None, it uses all rows.
        """
        return self.auc if self.problem == "auc" else self.dro

    def auc(self, z, a, s, position) -> np.ndarray:
        d, n, tau = self.d, len(a), self.tau
        c_1, c_2, lam = z[d:]
        h, positive = a @ z[:d], s > 0
        miss = np.abs(s) * (h - np.where(positive, c_1, c_2))
        total, on = miss.sum(), miss @ positive
        g = np.empty_like(z)
        g[:d] = (miss - (1 + lam) * s) @ a * (2 / n)
        g[d], g[d + 1] = on * (-2 / n), (total - on) * (-2 / n)
        g[d + 2] = s @ h * (2 / n) + 2 * tau * (1 - tau) * lam
        return g

    def dro(self, z, a, b, position) -> np.ndarray:
        d, n = self.d, len(a)
        x, y = z[:d], z[d:]
        margin = b * (a @ x)
        odds = np.exp(-np.abs(margin))
        loss = np.log1p(odds) - np.minimum(margin, 0)
        slope = -b * np.where(margin > 0, odds, 1) / (1 + odds)
        g = np.empty_like(z)
        weight = y[:n] if position is None else y[position]
        g[:d] = (weight * slope) @ a / n
        g[:d] += 2 * LAMBDA_2 * ALPHA * x / (1 + ALPHA * x**2) ** 2
        g[d:] = y - 1 / len(y)
        if position is None:
            g[d : d + n] -= loss / n
        else:
            g[d:] -= np.bincount(position, loss, len(y)) / n
        return g

    def visit(self, i: int, z, v, v_i, position) -> tuple[np.ndarray, np.ndarray]:
        """Run a client's part of a round. Return its movement and its new variate."""
        rows = slice(self.start[i], self.start[i] + self.size[i])
        features, target = self.features[rows], self.target[rows]

        def gradient(z, k):
            if position is None:
                return self.gradient(z, features, target, None)
            p = position[k]
            return self.gradient(z, features[p], target[p], p)

        z_i, shift = z, v - v_i
        for k in range(K):
            z_i = z_i - LOCAL * (gradient(z_i, k) + shift)
        return z_i - z, gradient(z, K)


def begin() -> tuple[Job, TextIO]:
    """Return the job that the command line describes, and the stream for answers.

    After this call, everything that a framework prints goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    path, problem, batch = sys.argv[1:]
    return Job(path, problem, None if batch == "all" else int(batch)), answers


def serve(
    answers: TextIO,
    z: np.ndarray | None,
    run: Callable[[int], object],
    packages: Iterable[str],
) -> None:
    """Print the iterate after the check rounds, then time `run(rounds)` on request."""

    def answer(**fields) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    versions = {name: version(name) for name in packages}
    versions["python"] = platform.python_version()
    answer(ready=True, z=None if z is None else z.tolist(), versions=versions)
    while line := sys.stdin.readline().strip():
        clock = time.perf_counter()
        run(int(line))
        answer(seconds=(time.perf_counter() - clock) / int(line))
