"""`simulate`: runs an algorithm on simulated clients and returns a `Run`.

The options are listed in `options.py`, and checked in `checks.py`. The rounds are in
`loop.py` and `rounds.py`. To run several methods at once, see `sweep.py`.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sagda.core import Point, Rates
from sagda.data.federation import Federation
from sagda.keys import key_of, root_key
from sagda.methods import Method
from sagda.problems.base import Problem
from sagda.simulator.checks import check_run, checked_starts
from sagda.simulator.history import History
from sagda.simulator.loop import CompiledLoop, RunList
from sagda.simulator.options import RunOptions, takes_options
from sagda.simulator.run import Run

# If `inner_residual` is larger, the solver did not find the inner maximum. Solutions
# have residuals below 1e-5, in single precision also.
UNSOLVED = 1e-3


class DivergenceWarning(UserWarning):
    """A run diverged (NaN or infinity)."""


class UnsolvedWarning(UserWarning):
    """The solver did not find max over y of f(x, y): columns of Phi are inaccurate."""


@takes_options(RunOptions)
def simulate(
    method: Method, problem: Problem, federation: Federation, options: RunOptions
) -> Run:
    """Train with one method on simulated clients. Returns a `Run` with the history.

    The options are keyword arguments: the fields of
    `sagda.simulator.options.RunOptions`.

    Args:
        method: an algorithm with its hyperparameters, such as `sagda_i(local_lr=0.01)`.
        problem: the objective, such as `AUC.of(federation)`.
        federation: the clients and their rows.

    Examples:
        >>> from sagda import Quadratic, fsgda
        >>> problem, federation = Quadratic.make(clients=4, heterogeneity=0.0)
        >>> run = simulate(fsgda(local_lr=0.03), problem, federation, rounds=300)
        >>> bool(run.history["distance_sq"][0, -1] < 1e-3)
        True
    """
    check_run([method], problem, federation, options)
    run = simulate_stacked([method], problem, federation, options)
    if run.diverged:
        warnings.warn(advice(method, run.diverged), DivergenceWarning, stacklevel=3)
    if message := unsolved(run.history):
        warnings.warn(message, UnsolvedWarning, stacklevel=3)
    return run


def simulate_stacked(
    methods: Sequence[Method],
    problem: Problem,
    federation: Federation,
    options: RunOptions,
) -> Run:
    """Simulate several methods in one program. They may differ only in real numbers.

    The options must have passed `check_run`. The result has one run per method and
    seed on axis 0. All seeds of the first method come first.
    """
    seeds = options.seed_list
    runs = RunList(
        methods=tuple(method for method in methods for _ in seeds),
        seeds=seeds * len(methods),
        problem=problem,
        federation=federation,
        options=options,
    )
    if problem.uses_torch:
        from sagda.simulator.torch.loop import TorchLoop
        from sagda.simulator.torch.objective import precision

        loop = TorchLoop(runs)
        with precision(options.float64):
            return loop.run()
    # Starts are always drawn in single precision. So runs in single and in double
    # precision have the same starts.
    with jax.enable_x64(False):
        keys = jax.vmap(root_key)(np.array(runs.seeds, np.uint32))
        starts = draw_starts(problem, keys)
    starts = checked_starts(problem, starts, options.start)
    with jax.enable_x64(options.float64):
        return CompiledLoop(runs, keys, starts).run()


def advice(method: Method, diverged: dict[int, int]) -> str:
    """Return the warning for a run that diverged: where, and which rates to lower."""
    where = ", ".join(f"seed {seed} at round {t}" for seed, t in diverged.items())
    rates = [f"{k} {v}" for k, v in method.arguments.items() if isinstance(v, Rates)]
    return (
        f"{method.name} diverged (NaN or infinity: {where}); lower its rates "
        f"({', '.join(rates)}) or its local steps. The run has the history up to there."
    )


def unsolved(history: History) -> str | None:
    """Return a warning if the solver for inner maxima failed in a run, else None."""
    if "inner_residual" not in history.columns:
        return None
    residual, f = history["inner_residual"].ravel(), history["f"].ravel()
    # A maximum at infinity has the residual NaN. `advice` warns of runs that diverged.
    missed = np.flatnonzero(np.isfinite(f) & ~(residual <= UNSOLVED))
    if len(missed) == 0:
        return None
    at, worst = history["round"].ravel()[missed[-1]], residual[missed[-1]]
    return (
        f"the inner maximum was not found: `inner_residual` is {worst:.1e} at round "
        f"{at}, so `phi`, `gap` and `grad_phi_sq` are inaccurate. "
        "Define `best_y`, bound y by a set, or use a loss that is concave in y."
    )


@jax.jit
def draw_starts(problem: Problem, keys: Any) -> Point:
    """Draw (x_0, y_0) for each key. The keys and the starts have the runs on axis 0."""
    return jax.vmap(lambda key: problem.init(key_of(key, "start")))(keys)
