"""Compares a local step of a PyTorch client with plain PyTorch of equal arithmetic.

python benchmarks/torch_step.py [--docs docs/performance.md]

Perceptrons of growing width on 784 features, batches of 64 rows, K = 20 local steps.
Every ratio is between medians of interleaved repetitions in one process.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import sagda
from sagda.core import Turn
from sagda.keys import root_key
from sagda.models.torch import tensors
from sagda.simulator.torch.objective import TorchRows

BATCH, STEPS, REPEATS, FEATURES = 64, 20, 9, 784
WIDTHS = (16, 128, 512, 1024, 2048)
BEGIN, END = "<!-- torch-step -->", "<!-- /torch-step -->"


def network(width: int) -> nn.Module:
    """Return a perceptron with two hidden layers of equal width."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 1),
    )  # fmt: skip


def plain(module: nn.Module, features: Any, label: Any, tau: float) -> Callable:
    """Return a function for K steps on the AUC objective in plain PyTorch."""
    c_1, c_2, lam = (torch.zeros((), requires_grad=True) for _ in range(3))
    down, up = [*module.parameters(), c_1, c_2], [lam]

    def steps() -> None:
        rows = torch.randint(len(features), (STEPS, BATCH))
        for k in range(STEPS):
            h = module(features[rows[k]]).reshape(-1)
            positive = (label[rows[k]] > 0).float()
            negative = 1 - positive
            loss = (
                (1 - tau) * (h - c_1) ** 2 * positive
                + tau * (h - c_2) ** 2 * negative
                + 2 * (1 + lam) * (tau * h * negative - (1 - tau) * h * positive)
                - tau * (1 - tau) * lam**2
            ).mean()
            slopes = torch.autograd.grad(loss, [*down, *up])
            with torch.no_grad():
                for p, g in zip(down, slopes[:-1], strict=True):
                    p.sub_(g, alpha=1e-3)
                lam.add_(slopes[-1], alpha=1e-3)

    return steps


def ours(name: str, problem: Any, federation: Any, module: nn.Module) -> Callable:
    """Return a function for a client's part in a round of the algorithm `name`."""
    rows = TorchRows.of(problem, federation, BATCH, np.float32)
    algorithm = sagda.algorithm(name, local_lr=1e-3, local_steps=STEPS).build()
    start = problem.init(root_key(0))
    with torch.no_grad():
        state = algorithm.init(tensors(start))
        memory = algorithm.memory(tensors(start))
        phase = algorithm.phases[-1]
        message, f, turn = (
            phase.broadcast(state),
            rows.objective(0),
            Turn(0, root_key(1)),
        )

    def steps() -> None:
        with torch.no_grad():
            phase.client(f, message, memory, turn)

    return steps


def seconds(work: Callable) -> float:
    """Measure the seconds of one local step."""
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) / STEPS


def table() -> str:
    """Measure every width. Return the ratios as a Markdown table."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    label = np.where(rng.random(2000) < 0.3, 1.0, -1.0)
    features = rng.normal(size=(2000, FEATURES)).astype(np.float32)
    rows_of_all = sagda.Table(features, label)
    federation = sagda.Federation.of(
        rows_of_all, np.arange(2000), np.array([1000, 1000])
    )
    lines = [
        "| width | plain step | `fsgda` | `sagda-i` |",
        "|---|---|---|---|",
    ]
    for width in WIDTHS:
        module = network(width)
        problem = sagda.AUC.of(federation, sagda.Torch(module))
        rows = torch.from_numpy(features), torch.from_numpy(label)
        works = [plain(network(width), *rows, tau=0.3)]
        works += [ours(n, problem, federation, module) for n in ("fsgda", "sagda-i")]
        for work in works:
            work()
        times = [[seconds(work) for work in works] for _ in range(REPEATS)]
        base, *others = (
            statistics.median(column) for column in zip(*times, strict=True)
        )
        ratios = " | ".join(f"{other / base:.2f}" for other in others)
        lines.append(f"| {width} | {1e3 * base:.2f} ms | {ratios} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=Path, help="write the table into this page")
    path = parser.parse_args().docs
    text_of_table = table()
    if path is not None:
        text = path.read_text(encoding="utf-8")
        head, rest = text.split(BEGIN)
        _, tail = rest.split(END)
        path.write_text(
            f"{head}{BEGIN}\n\n{text_of_table}\n\n{END}{tail}", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
