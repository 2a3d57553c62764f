"""Prints digests of runs over methods, problems and layouts, to compare two versions.

    PYTHONPATH=src .venv/bin/python scripts/digests.py NEW.json
    PYTHONPATH=OLD/src .venv/bin/python scripts/digests.py OLD.json

Two versions compute the same numbers if the files are equal. The script uses only
public names, so that it runs with both. Digests differ between machines.
"""

import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

import sagda

LAYOUTS = (
    "mapped/1", "batched/1", "chunk-2/1", "mapped/2:clients", "mapped/2:runs",
    "batched/2:clients",
)  # fmt: skip


def digest(run: sagda.Run) -> str:
    """Return a digest of the history, without its times, and of the final state."""
    hashed = hashlib.sha256()
    names = sorted(set(run.history.columns) - {"seconds"})
    for array in (*(run.history[n] for n in names), *jax.tree.leaves(run.carry)):
        array = np.asarray(array, order="C")
        hashed.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return hashed.hexdigest()[:24]


def problems() -> dict[str, tuple[Any, sagda.Federation]]:
    """Return small problems with their clients, of equal and of unequal sizes."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(240, 7)).astype(np.float32)
    scores = features @ rng.normal(size=7) + rng.normal(size=240)
    table = sagda.Table(features, np.where(scores > 0.7, 1.0, -1.0))
    cases: dict[str, tuple[Any, sagda.Federation]] = {
        "quadratic": sagda.Quadratic.make(clients=6, samples=8, seed=3)
    }
    even = sagda.partition(table, "iid", clients=6, samples=20, seed=1)
    uneven = sagda.partition(table, "dirichlet", clients=6, alpha=0.8, seed=2)
    for name, clients in (("even", even), ("uneven", uneven)):
        cases |= {
            f"auc-{name}": (sagda.AUC.of(clients), clients),
            f"dro-{name}": (sagda.DRO.of(clients), clients),
            f"agnostic-{name}": (sagda.Agnostic.of(clients), clients),
            f"adversarial-{name}": (sagda.Adversarial.of(clients), clients),
            f"fair-{name}": (sagda.Fair.of(clients, group=0, threshold=0.0), clients),
        }
    network = sagda.AUC.of(uneven, sagda.MLP(7, 5, 1))
    treated = sagda.Treated(sagda.AUC.of(uneven), weight_decay=0.01, clip=1.0)
    return cases | {"auc-mlp": (network, uneven), "treated-auc": (treated, uneven)}


def main(path: str) -> None:
    """Run all cases, and write their digests to a JSON file."""
    digests = {}
    for name, (problem, clients) in problems().items():
        cases: dict[str, dict[str, Any]] = {"auto": {}}
        if name in ("quadratic", "auc-uneven", "dro-even"):
            cases |= {layout: {"layout": layout} for layout in LAYOUTS}
            cases["cohort"] = {"cohort": 3, "dropout": 0.2}
            cases["whole batches"] = {"batch_size": None, "float64": True}
        for method, make in sagda.ALGORITHMS.items():
            for case, options in cases.items():
                common: dict[str, Any] = {
                    "rounds": 12,
                    "eval_every": 5,
                    "batch_size": 4,
                }
                run = sagda.simulate(
                    make(), problem, clients, seeds=(0, 3), **common | options
                )
                digests[f"{name} {method} {case}"] = digest(run)
                print(f"{name} {method} {case}", file=sys.stderr)
    text = json.dumps(digests, indent=0, sort_keys=True)
    Path(path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sagda.use_cores()
    main(sys.argv[1])
