"""The job that all contestants run, as sagda's objects and as a file for the rivals.

The job is a9a over 100 clients of 100 rows, where each client has one class. SAGDA,
Option I, runs K = 10 local steps with all clients in every round.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sagda
from sagda.keys import key_of, root_key
from sagda.simulator.setup import Setup

CLIENTS, ROWS, K, BATCH, SEED = 100, 100, 10, 10, 0
CHECKS = 3  # rounds after which the iterates of all contestants are compared
METHOD = {"local_lr": 0.01, "server_lr": 2.0, "local_steps": K}
PROBLEMS = {"auc": sagda.AUC, "dro": sagda.DRO}


def federation() -> sagda.Federation:
    """Return the clients of the job."""
    data = sagda.load("a9a")
    return sagda.partition(data.train, clients=CLIENTS, samples=ROWS)


def flat(point: sagda.Point) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of `z`, each as one vector."""
    join = lambda tree: np.concatenate([np.ravel(a) for a in jax.tree.leaves(tree)])
    return join(point.x), join(point.y)


def positions(problem: sagda.Problem, clients: sagda.Federation) -> np.ndarray:
    """Return the positions of the rows that sagda draws in the check rounds.

    The shape is [CHECKS, clients, K + 1, BATCH].
    """
    setup = Setup.of(
        problem, clients, jnp.float32, cohort=clients.clients, batch_size=BATCH
    )

    @jax.jit
    @jax.vmap
    def of_client(key, i):
        f = setup.objective(i)
        steps = f.draw(key_of(key, "step"), K).position
        return jnp.concatenate([steps, f.draw(key_of(key, "variate")).position[None]])

    ids = jnp.arange(clients.clients)
    rounds = []
    for t in range(CHECKS):
        keys = jax.vmap(lambda i, t=t: key_of(root_key(SEED), t, "local", i))(ids)
        rounds.append(np.asarray(of_client(keys, ids)))
    return np.stack(rounds)


def write(path: Path) -> None:
    """Write JOB.npz, which `rivals/common.py` reads."""
    clients = federation()
    arrays: dict[str, Any] = {}
    for name, kind in PROBLEMS.items():
        problem = kind.of(clients)
        start = jax.jit(problem.init)(key_of(root_key(SEED), "start"))
        arrays[f"x_{name}"], arrays[f"y_{name}"] = flat(start)
    np.savez(
        path,
        features=np.asarray(clients.data.features, np.float32),
        label=np.asarray(clients.data.label, np.float32),
        start=clients.start,
        size=clients.size,
        tau=sagda.AUC.of(clients).tau,
        position=positions(sagda.DRO.of(clients), clients),
        **arrays,
    )
