"""The program of an evaluation: all rows, as every run's iterate sees them."""

from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sagda.core import Point
from sagda.data.federation import Table
from sagda.devices import SPARED
from sagda.engines.memories import unpacked
from sagda.engines.setup import View, on_device
from sagda.inner import norm_sq
from sagda.keys import root_key
from sagda.metrics import measure


class Evaluation(NamedTuple):
    columns: dict[str, Any]
    scores: Any  # [rows] of the training table, or None
    test_scores: Any  # [rows] of the test table, or None


class Seen(NamedTuple):
    """What an evaluation looks at, the optional parts where they are asked for."""

    z: Point
    memory: Any = None  # for variate_lag
    drift: Any = None


class Look:
    """An evaluation by one compiled program, on the host's and the devices' behalf."""

    def __init__(self, view: View, test: Table | None, metrics: tuple[str, ...]):
        self.view, self.metrics, self.test = view, metrics, None
        self.batch_size = view.clients.batch_size
        if test is not None:
            columns = Table(test.features, test.label)
            (device,) = view.weight.devices()
            put = lambda a: on_device(a, view.weight.dtype, device=device)
            self.test = jax.tree.map(put, columns)

    def __call__(self, seen: Seen) -> Evaluation:
        found = jax.device_get(evaluate(self.view, seen, self.test, self.metrics))
        if found.scores is not None:
            found = found._replace(scores=[s[: len(self.label)] for s in found.scores])
        return found

    @cached_property
    def label(self) -> np.ndarray:
        """Of the training rows; spare ones come last and have no weight."""
        held = np.count_nonzero(self.view.weight)
        return np.asarray(self.view.clients.table.label)[:held]

    @cached_property
    def test_label(self) -> np.ndarray:
        assert self.test is not None
        return np.asarray(self.test.label)


@partial(jax.jit, static_argnames="metrics", compiler_options=SPARED)
def evaluate(view: View, seen: Seen, test: Any, metrics: tuple[str, ...]) -> Evaluation:
    """The columns of each run's history at this moment; all methods share it."""
    clients = view.clients
    problem, table, M = clients.problem, clients.table, clients.count

    def variate_lag(seen: Seen) -> jax.Array:
        def one(client):
            i, row = client
            f, v_i = clients.objective(i), unpacked(row, seen.z)
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
