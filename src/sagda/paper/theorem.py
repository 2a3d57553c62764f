"""Runs on quadratics that compare the mean of ||grad Phi||^2 with the theorems' bounds.

The runs satisfy all assumptions of the theorems. The constants are exact, the rates
satisfy every condition, and control variates start at gradients ("warm"). Such rates
are small, so runs start far from the solution. `speedup` chooses the settings and
stores the results.
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
from sagda.problems.base import Problem
from sagda.problems.metrics import mean_loss
from sagda.problems.quadratic import Coefficients, Quadratic
from sagda.simulator.run import Progress
from sagda.simulator.simulate import simulate
from sagda.theory import Constants, Setting, Steps, bound, check_conditions, rates

FAR = 30.0  # distance from the start to the solution
EVERY = 10  # rounds between evaluations, few enough for the small rates


class Case(NamedTuple):
    """A quadratic problem with its exact constants, and the start of its runs."""

    problem: Quadratic
    federation: Federation
    start: Point
    constants: Constants


class Trial(NamedTuple):
    """The bound of a theorem, and the measured means of ||grad Phi||^2."""

    rates: list[float]  # eta_x and eta_y
    printed: float  # the bound of the theorem as published
    proof: float  # the bound that the proof supports
    begin: float  # ||grad Phi(x_0)||^2; a bound above it is trivial
    measured: list[float]  # one mean for each seed


def exact_case(problem: Quadratic, federation: Federation, x: np.ndarray) -> Case:
    """Return the case that starts at (x, y*(x)), with exact constants.

    Rows differ only in the linear terms a'x and b'y of f. So the noise and the spread
    of gradients are the same at every point z = (x, y).
    """
    with jax.enable_x64(True):
        rows = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), federation.data)
        weight = jnp.asarray(federation.weight, jnp.float64)
        start = Point(jnp.asarray(x), problem.best_y(jnp.asarray(x), rows, weight))
        f, least = (
            float(mean_loss(problem, z, rows, weight))
            for z in (start, jax.tree.map(jnp.asarray, problem.solution))
        )
        start = jax.tree.map(np.asarray, start)
    # Shape [clients, rows, entries].
    by_client = lambda a: np.asarray(a).reshape(federation.clients, -1, a.shape[-1])
    length = lambda a: (a**2).sum(-1)
    noise = lambda a: length(a - a.mean(1, keepdims=True)).mean(1).max() ** 0.5
    spread = lambda a: length(a.mean(1) - a.mean((0, 1))).mean() ** 0.5
    a, b = by_client(federation.data.a), by_client(federation.data.b)
    constants = Constants(
        smoothness=problem.smoothness,
        mu=problem.mu,
        sigma_x=float(noise(a)),
        sigma_y=float(noise(b)),
        spread_x=float(spread(a)),
        spread_y=float(spread(b)),
        gap=0.9 * (f - least),  # f = Phi at the start
    )
    return Case(
        problem=problem, federation=federation, start=start, constants=constants
    )


def distant_case(clients: int = 5) -> Case:
    """Return a quadratic with kappa = 1.05, noise and spread 1, and a distant start."""
    problem, federation = Quadratic.make(
        clients=clients, samples=4, x_dim=3, y_dim=2, smoothness=1.05, mu=1.0,
        heterogeneity=1.0, noise=1.0,
    )  # fmt: skip
    away = np.ones(3) / np.sqrt(3)
    return exact_case(problem, federation, np.asarray(problem.solution.x) + FAR * away)


def sampling_case(clients: int = 20) -> Case:
    """Return a case without noise, in which all variance comes from client sampling.

    f_i = x^2/2 + c_i x + xy/2 - y^2/2 + e_i y, where c_i and e_i are random numbers
    with mean 0 over clients.
    """
    draw = generator(0, "theorem", "sampling").normal(size=(2, clients, 1))
    c, e = 10 * (draw - draw.mean(1, keepdims=True))
    ones = np.ones((clients, 1, 1))
    table = Coefficients(ones, ones / 2, ones, c, e)
    top = float(np.linalg.norm([[1, 0.5], [0.5, -1]], 2))
    problem = Quadratic(1, 1, top, 1.0, Point(np.zeros(1), np.zeros(1)))
    federation = Federation.of(table, np.arange(clients), np.ones(clients, int))
    return exact_case(problem, federation, np.ones(1))


def method_at(name: str, steps: Steps, local_steps: int) -> Method:
    """Return a method with the given step sizes.

    The name `sagda-i all` means `sagda-i` with control variates from all rows.
    """
    name, _, rows = name.partition(" ")
    options: dict[str, Any] = {"start": "warm"} if name == "sagda-i" else {}
    return ALGORITHMS[name](
        local_lr=(steps.x_local, steps.y_local),
        server_lr=(steps.x_server, steps.y_server),
        local_steps=local_steps,
        **options | ({"variate_batch": rows} if rows else {}),
    )


def errors_at(
    method: str,
    steps: Steps,
    setting: Setting,
    problem: Problem,
    federation: Federation,
    **options: Any,
) -> np.ndarray:
    """Make a run and return ||grad Phi||^2, with shape [seeds, evaluations]."""
    run = simulate(
        method_at(method, steps, setting.local_steps), problem, federation,
        rounds=setting.rounds, cohort=setting.cohort, batch_size=1, **options,
    )  # fmt: skip
    return run.history["grad_phi_sq"]


def run_trial(
    method: str,
    case: Case,
    setting: Setting,
    steps: Steps | None = None,
    *,
    seeds: int,
    progress: Callable[[Progress], None] | None = None,
) -> Trial:
    """Run a method at the given rates, or at the rates that minimise its bound.

    Raises `AssertionError` if the rates fail a condition.
    """
    c = case.constants
    steps = steps or rates.best(method, c, setting)
    for reading in ("printed", "proof"):
        for check in check_conditions(method, c, setting, steps, reading):
            assert check.slack.holds, f"{method}: {check}"
    error = errors_at(
        method, steps, setting, case.problem, case.federation, start=case.start,
        seeds=range(seeds), eval_every=EVERY, float64=True, progress=progress,
    )  # fmt: skip
    return Trial(
        rates=[steps.x, steps.y],
        printed=bound(method, c, setting, steps, "printed").total,
        proof=bound(method, c, setting, steps, "proof").total,
        begin=float(error[0, 0]),
        measured=error[:, :-1].mean(axis=1).tolist(),
    )
