"""The program of an evaluation: all rows, as every run's iterate sees them."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sagda.core import Point
from sagda.devices import SPARED
from sagda.engines.setup import View
from sagda.inner import norm_sq
from sagda.keys import root_key
from sagda.metrics import measure


class Evaluation(NamedTuple):
    columns: dict[str, jax.Array]
    scores: Any  # [rows] of the training table, or None
    test_scores: Any  # [rows] of the test table, or None


class Seen(NamedTuple):
    """What an evaluation looks at, the optional parts where they are asked for."""

    z: Point
    memory: Any = None  # for variate_lag
    drift: Any = None


@partial(jax.jit, static_argnames="metrics", compiler_options=SPARED)
def evaluate(view: View, seen: Seen, test: Any, metrics: tuple[str, ...]) -> Evaluation:
    """The columns of each run's history at this moment; all methods share it."""
    clients = view.clients
    problem, table, M = clients.problem, clients.table, clients.count

    def variate_lag(seen: Seen) -> jax.Array:
        def one(client):
            i, v_i = client
            f = clients.objective(i)
            return norm_sq(v_i - f.grad(seen.z, f.whole(root_key(0))))

        return jax.lax.map(one, (jnp.arange(M), seen.memory)).mean()

    def one(seen: Seen) -> Evaluation:
        z = seen.z
        columns = measure(problem, z, table, view.weight, view.owner, M)
        extra = {
            "drift": lambda: seen.drift,
            "variate_lag": lambda: variate_lag(seen),
            "potential": lambda: columns["phi"] - columns["f"] / 10,
        }
        columns |= {name: extra[name]() for name in metrics}
        test_scores = None if test is None else problem.score(z.x, test)
        return Evaluation(columns, problem.score(z.x, table), test_scores)

    return jax.vmap(one)(seen)
