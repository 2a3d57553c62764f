"""The theorems, tried on quadratics: means of ||grad Phi||^2 beside their bounds.

The constants are exact, the rates satisfy every condition, and variates start warm, as
the theorems have it. Runs begin far away, since such rates are small.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sagda.algorithms import ALGORITHMS
from sagda.core import Point
from sagda.data.federation import Federation
from sagda.keys import generator
from sagda.methods import Method
from sagda.problems.metrics import mean_loss
from sagda.problems.quadratic import Coefficients, Quadratic
from sagda.simulator.run import Progress
from sagda.simulator.simulate import simulate
from sagda.theory import (
    Constants,
    Setting,
    Steps,
    bound,
    check_conditions,
    rates,
)

FAR = 30.0  # from the solution to the start
EVERY = 10  # rounds between looks, in which rates so small change nothing


class Case(NamedTuple):
    """A problem whose constants are known, and where to begin."""

    problem: Quadratic
    federation: Federation
    start: Point
    constants: Constants


class Trial(NamedTuple):
    """A theorem's bound, and what was measured, by seed."""

    method: str
    setting: Setting
    steps: Steps
    printed: float
    proof: float
    begin: float  # ||grad Phi(x_0)||^2; a bound above it says nothing
    measured: np.ndarray

    @property
    def mean(self) -> float:
        return float(self.measured.mean())


def known(problem: Quadratic, federation: Federation, x: np.ndarray) -> Case:
    """The case that starts at x and y*(x); noise and spread are the same everywhere."""
    with jax.enable_x64(True):
        rows = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), federation.data)
        weight = jnp.asarray(federation.weight, jnp.float64)
        start = Point(jnp.asarray(x), problem.best_y(jnp.asarray(x), rows, weight))
        f, least = (
            float(mean_loss(problem, z, rows, weight))
            for z in (start, jax.tree.map(jnp.asarray, problem.solution))
        )
        start = jax.tree.map(np.asarray, start)
    of = lambda a: np.asarray(a).reshape(federation.clients, -1, a.shape[-1])
    length = lambda a: (a**2).sum(-1)
    noise = lambda a: length(a - a.mean(1, keepdims=True)).mean(1).max() ** 0.5
    spread = lambda a: length(a.mean(1) - a.mean((0, 1))).mean() ** 0.5
    a, b = of(federation.data.a), of(federation.data.b)
    constants = Constants(
        problem.smoothness,
        problem.mu,
        float(noise(a)),
        float(noise(b)),
        float(spread(a)),
        float(spread(b)),
        0.9 * (f - least),  # f = Phi at the start
    )
    return Case(problem, federation, start, constants)


def distant(clients: int = 5, samples: int = 4) -> Case:
    """kappa near one, noise and spread of one, and a start far away."""
    problem, federation = Quadratic.make(
        clients=clients, samples=samples, x_dim=3, y_dim=2, smoothness=1.05, mu=1.0,
        heterogeneity=1.0, noise=1.0,
    )  # fmt: skip
    away = np.ones(3) / np.sqrt(3)
    return known(problem, federation, np.asarray(problem.solution.x) + FAR * away)


def sampled(clients: int = 20) -> Case:
    """f_i = x^2/2 + c_i x + xy/2 - y^2/2 + e_i y, where c_i and e_i have means of zero.

    Without noise: whatever is left is due to the sampling of clients.
    """
    draw = generator(0, "theorem", "sampling").normal(size=(2, clients, 1))
    c, e = 10 * (draw - draw.mean(1, keepdims=True))
    ones = np.ones((clients, 1, 1))
    table = Coefficients(ones, ones / 2, ones, c, e)
    top = float(np.linalg.norm([[1, 0.5], [0.5, -1]], 2))
    problem = Quadratic(1, 1, top, 1.0, Point(np.zeros(1), np.zeros(1)))
    federation = Federation.of(table, np.arange(clients), np.ones(clients, int))
    return known(problem, federation, np.ones(1))


def built(name: str, steps: Steps, local_steps: int) -> Method:
    """A method at given steps; `sagda-i all` has variates from all rows."""
    name, _, rows = name.partition(" ")
    own: dict[str, Any] = {"start": "warm"} if name == "sagda-i" else {}
    return ALGORITHMS[name](
        local_lr=(steps.x_local, steps.y_local),
        server_lr=(steps.x_server, steps.y_server),
        local_steps=local_steps,
        **own | ({"variate_batch": rows} if rows else {}),
    )


def tried(
    method: str,
    case: Case,
    setting: Setting,
    steps: Steps | None = None,
    *,
    seeds: int,
    progress: Callable[[Progress], None] | None = None,
) -> Trial:
    """Run a method at its theorem's best rates, or at given ones that it covers."""
    c = case.constants
    steps = steps or rates.best(method, c, setting)
    for reading in ("printed", "proof"):
        for check in check_conditions(method, c, setting, steps, reading):
            assert check.slack.holds, f"{method}: {check}"
    run = simulate(
        built(method, steps, setting.local_steps),
        case.problem,
        case.federation,
        rounds=setting.rounds,
        cohort=setting.cohort,
        batch_size=1,
        seeds=range(seeds),
        eval_every=EVERY,
        float64=True,
        start=case.start,
        progress=progress,
    )
    error = run.history["grad_phi_sq"]
    return Trial(
        method,
        setting,
        steps,
        bound(method, c, setting, steps, "printed").total,
        bound(method, c, setting, steps, "proof").total,
        float(error[0, 0]),
        error[:, :-1].mean(axis=1),
    )
