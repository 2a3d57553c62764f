"""`simulate`: a whole run on simulated clients, from checks to history.

Options are listed in `options.py`. The rounds are in `loop.py` and `rounds.py`.
"""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as Spec

from sagda.core import Point, Rates
from sagda.data.federation import Federation
from sagda.keys import key_of, root_key
from sagda.methods import Method, stack
from sagda.problems.base import Problem
from sagda.simulator.checks import check_loss, check_run, checked_starts
from sagda.simulator.evaluator import Evaluator
from sagda.simulator.history import History
from sagda.simulator.layout import StackedRuns, resolve, shared
from sagda.simulator.loop import CompiledLoop, RunList
from sagda.simulator.options import RunOptions, takes_options
from sagda.simulator.recorder import Recorder
from sagda.simulator.run import Run
from sagda.simulator.setup import Setup, View

# Above this `inner_residual`, the inner maximum was not found. Solutions have residuals
# below 1e-5, also in single precision.
UNSOLVED = 1e-3


class DivergenceWarning(UserWarning):
    """A run diverged (NaN or infinity)."""


class UnsolvedWarning(UserWarning):
    """The inner maximum was not found, so the columns of Phi are inaccurate."""


@takes_options(RunOptions)
def simulate(
    method: Method, problem: Problem, federation: Federation, options: RunOptions
) -> Run:
    """Run a method on a problem over simulated clients.

    Options are keyword arguments, the fields of `sagda.simulator.options.RunOptions`.

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
    """Simulate methods that differ in real numbers only, in one program.

    The options must have passed `check_run`. The runs of the first method come first,
    one per seed.
    """
    runs = run_list(methods, problem, federation, options)
    if problem.uses_torch:
        from sagda.simulator.torch.loop import torch_loop
        from sagda.simulator.torch.objective import precision

        loop = torch_loop(runs, problem, federation, options)
        with precision(options.float64):
            return loop.run(options)
    # Starts are drawn in single precision also for runs in double precision, so that
    # both have the same ones.
    with jax.enable_x64(False):
        keys = jax.vmap(root_key)(np.array(runs.seeds, np.uint32))
        starts = draw_starts(problem, keys)
    starts = checked_starts(problem, starts, options.start)
    with jax.enable_x64(options.float64):
        loop = compiled_loop(runs, problem, federation, options, keys, starts)
        return loop.run(options)


def run_list(
    methods: Sequence[Method],
    problem: Problem,
    federation: Federation,
    options: RunOptions,
) -> RunList:
    """Every method with every seed, and what identifies the configuration."""
    seeds = options.seed_list
    each = tuple(method for method in methods for _ in seeds)
    seeds = seeds * len(methods)
    test = options.test
    setting = {
        "method": "; ".join(dict.fromkeys(map(repr, each))),
        "problem": type(problem).__name__,
        "split": federation.hash,
        "cohort": str(options.cohort or federation.clients),
        "batch_size": str(options.batch_size),
        "dropout": str(options.dropout),
        "seeds": str(seeds),
        "float64": str(options.float64),
        "metrics": str(tuple(name for name, _ in options.chosen_metrics)),
        "test": "none" if test is None else f"{len(test.label)} rows",
    }
    return RunList(each, seeds, setting)


def compiled_loop(
    runs: RunList,
    problem: Problem,
    federation: Federation,
    options: RunOptions,
    keys: Any,
    starts: Point,
) -> CompiledLoop:
    """The loop of JAX runs: data on the devices, the layout, the recorder."""
    dtype = jnp.float64 if options.float64 else jnp.float32
    starts = jax.tree.map(lambda a: np.asarray(a, dtype), starts)
    z = jax.tree.map(lambda a: a[0], starts)
    make_setup = partial(
        Setup.of,
        problem,
        federation,
        dtype,
        cohort=options.cohort or federation.clients,
        batch_size=options.batch_size,
        dropout=options.dropout,
    )
    setup = make_setup()
    check_loss(setup, z)
    algorithm = runs.methods[0].build()
    layout = resolve(options.layout, setup, algorithm, z, len(runs.seeds))
    if layout.devices > 1:
        setup = make_setup(mesh=layout.mesh)
    view = View.of(setup, federation, dtype)
    metrics = options.chosen_metrics
    evaluator = Evaluator(view, options.test, metrics)
    recorder = Recorder(evaluator, algorithm, z, runs.seeds, metrics)
    stacked = StackedRuns(stack(runs.methods, dtype), keys, starts)
    return CompiledLoop(
        runs=runs,
        recorder=recorder,
        setup=setup,
        layout=layout,
        stacked=shared(stacked, layout, Spec("runs")),
    )


def advice(method: Method, diverged: dict[int, int]) -> str:
    """A sentence on where a run diverged, and which rates to lower."""
    where = ", ".join(f"seed {seed} at round {t}" for seed, t in diverged.items())
    rates = [f"{k} {v}" for k, v in method.arguments.items() if isinstance(v, Rates)]
    return (
        f"{method.name} diverged (NaN or infinity: {where}); lower its rates "
        f"({', '.join(rates)}) or its local steps. The history until then is kept."
    )


def unsolved(history: History) -> str | None:
    """A sentence if the solver for inner maxima failed in the history, else None."""
    if "inner_residual" not in history.columns:
        return None
    residual, f = history["inner_residual"].ravel(), history["f"].ravel()
    # A maximum at infinity gives NaN. Runs that diverged have a warning of their own.
    missed = np.flatnonzero(np.isfinite(f) & ~(residual <= UNSOLVED))
    if len(missed) == 0:
        return None
    at, worst = history["round"].ravel()[missed[-1]], residual[missed[-1]]
    return (
        f"the inner maximum was not found: `inner_residual` is {worst:.1e} at round "
        f"{at}, so `phi`, `gap` and `grad_phi_sq` are inaccurate; "
        "give `best_y`, a set that bounds y, or a loss that is concave in y."
    )


@jax.jit
def draw_starts(problem: Problem, keys: Any) -> Point:
    """(x_0, y_0) of each seed."""
    return jax.vmap(lambda key: problem.init(key_of(key, "start")))(keys)
