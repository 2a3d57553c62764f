"""`simulate`: a whole run on one machine, from checks to history."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sagda import check
from sagda.core import Point, Rates
from sagda.data.federation import Federation, Table
from sagda.keys import key_of, root_key
from sagda.methods import Method, stack
from sagda.problems.base import Problem
from sagda.simulator.checks import (
    check_callbacks,
    check_feasible,
    check_loss,
    check_run,
    check_starts,
    given_starts,
)
from sagda.simulator.evaluator import Evaluator
from sagda.simulator.history import History
from sagda.simulator.layout import StackedRuns, resolve
from sagda.simulator.loop import Loop
from sagda.simulator.recorder import Recorder
from sagda.simulator.run import Callbacks, Run, checked_resume
from sagda.simulator.setup import Setup, View
from sagda.simulator.stream import Stream, rows_to_hold

# An `inner_residual` above it is no maximum. Solved ones are below 1e-5, also in single
# precision.
UNSOLVED = 1e-3


class DivergenceWarning(UserWarning):
    """A run left the finite numbers."""


class UnsolvedWarning(UserWarning):
    """The inner maximum was not found, so that Phi and its gradient are not what they
    say."""


def simulate(
    method: Method,
    problem: Problem,
    federation: Federation,
    *,
    rounds: int = 500,
    cohort: int | None = None,
    batch_size: int | None = 10,
    dropout: float = 0.0,
    seeds: int | Sequence[int] = 0,
    eval_every: int = 1,
    chunk: int | None = None,
    metrics: Sequence[str] = (),
    test: Table | None = None,
    start: Point | None = None,
    float64: bool = False,
    layout: str = "auto",
    stream: int | None = None,
    progress: Callbacks | None = None,
    resume: Run | Mapping[str, np.ndarray] | None = None,
) -> Run:
    """Run a method on a problem over simulated clients.

    Args:
        method: an algorithm with its hyperparameters, such as `sagda_i(local_lr=0.01)`.
        problem: the objective, such as `AUC.of(federation)`.
        federation: the data and who holds it.
        rounds: T, counted from the start also when a run is resumed.
        cohort: m, the clients drawn each round; all of them if None.
        batch_size: rows per stochastic gradient, drawn with repetition; None takes all
            local rows, and makes a run with full participation free of chance.
        dropout: the probability that a client fails in an exchange; it is then out for
            the round. A round without any reply changes nothing.
        seeds: one seed or several, run side by side. A seed decides the start, the
            cohorts and the samples; the split has its own.
        eval_every: rounds between evaluations. The start and the last round are always
            evaluated.
        chunk: rounds between calls of `progress`, at most; about half a second's if
            None.
        metrics: optional columns: `drift`, mean_i ||z_i^{K+1} - z_t||^2 of the last
            round; `variate_lag`, mean_i ||v_i - grad f_i(z_t)||^2; `potential`,
            Phi - f/10.
        test: rows to score beside the training rows.
        start: (x_0, y_0) for every seed, in place of the problem's own.
        float64: double precision; it draws the same rows.
        layout: how clients and seeds are laid out: `auto` chooses, `mapped` goes
            through clients one after the other, `batched` takes all at once,
            `chunk-16` that many; `/2` uses two devices, which share `:runs` or
            `:clients`. Results agree to rounding; `run.layout` has the choice.
        stream: rows to hold on the device at a time. Those of the coming cohorts are
            brought there, and evaluations stay with the host. If None, all rows, or as
            many as an accelerator has room for.
        progress: one callable or several, each told of `Progress` after each chunk,
            and once more where a run is resumed. If one returns True, the run stops
            there, is evaluated and returned. One that is a context manager, too, is
            left when the run ends. See `sagda.trackers`.
        resume: a run of the same configuration to go on from, or its `arrays`.

    Neither `chunk`, `eval_every`, `stream` nor `resume` changes any result.

    Examples:
        >>> from sagda import Quadratic, fsgda
        >>> problem, federation = Quadratic.make(clients=4, heterogeneity=0.0)
        >>> run = simulate(fsgda(local_lr=0.03), problem, federation, rounds=300)
        >>> bool(run.history["distance_sq"][0, -1] < 1e-3)
        True
    """
    run = run_side_by_side(
        [method],
        problem,
        federation,
        rounds=rounds,
        cohort=cohort,
        batch_size=batch_size,
        dropout=dropout,
        seeds=seeds,
        eval_every=eval_every,
        chunk=chunk,
        metrics=metrics,
        test=test,
        start=start,
        float64=float64,
        layout=layout,
        stream=stream,
        progress=progress,
        resume=resume,
    )
    if run.diverged:
        warnings.warn(advice(method, run.diverged), DivergenceWarning, stacklevel=2)
    if message := unsolved(run.history):
        warnings.warn(message, UnsolvedWarning, stacklevel=2)
    return run


def run_side_by_side(
    methods: Sequence[Method],
    problem: Problem,
    federation: Federation,
    *,
    rounds: int = 500,
    cohort: int | None = None,
    batch_size: int | None = 10,
    dropout: float = 0.0,
    seeds: int | Sequence[int] = 0,
    eval_every: int = 1,
    chunk: int | None = None,
    metrics: Sequence[str] = (),
    test: Table | None = None,
    start: Point | None = None,
    float64: bool = False,
    layout: str = "auto",
    stream: int | None = None,
    progress: Callbacks | None = None,
    resume: Run | Mapping[str, np.ndarray] | None = None,
) -> Run:
    """`simulate` for methods that differ in numbers only, in one program.

    The runs of the first method come first, one per seed.
    """
    options = {
        "rounds": rounds,
        "cohort": cohort,
        "batch_size": batch_size,
        "dropout": dropout,
        "seeds": seeds,
        "eval_every": eval_every,
        "chunk": chunk,
        "metrics": metrics,
        "test": test,
        "layout": layout,
        "stream": stream,
    }
    checked = [check_run(m, problem, federation, **options) for m in methods]
    cohort, seeds, metrics = checked[0]
    callbacks = check_callbacks(progress)
    methods = [method for method in methods for _ in seeds]
    seeds = seeds * (len(methods) // len(seeds))
    setting = {
        "method": "; ".join(dict.fromkeys(map(repr, methods))),
        "problem": type(problem).__name__,
        "split": federation.hash,
        "cohort": str(cohort),
        "batch_size": str(batch_size),
        "dropout": str(dropout),
        "seeds": str(seeds),
        "float64": str(float64),
        "metrics": str(metrics),
        "test": "none" if test is None else f"{len(test.label)} rows",
    }
    if problem.uses_torch:
        from sagda.simulator.torch.loop import torch_loop
        from sagda.simulator.torch.objective import precision

        shape = {"cohort": cohort, "batch_size": batch_size, "dropout": dropout}
        loop = torch_loop(
            methods, problem, federation, seeds, metrics, test, start, float64, setting,
            **shape,
        )  # fmt: skip
        with precision(float64):
            return loop.whole(resume, rounds, eval_every, chunk, callbacks)
    # Starts are drawn in single precision, whatever the run's, to be the same in both.
    with jax.enable_x64(False):
        keys = jax.vmap(root_key)(np.array(seeds, np.uint32))
        starts = draw_starts(problem, keys)
    check_starts(problem, starts)
    if start is not None:
        starts = given_starts(start, starts)
    check_feasible(problem, starts)

    with jax.enable_x64(float64):
        dtype = jnp.float64 if float64 else jnp.float32
        starts = jax.tree.map(lambda a: np.asarray(a, dtype), starts)
        z = jax.tree.map(lambda a: a[0], starts)
        shape = {"cohort": cohort, "batch_size": batch_size, "dropout": dropout}
        held = rows_to_hold(problem, federation, dtype, stream)
        setup = Setup.of(problem, federation, dtype, **shape, held=held)
        check_loss(setup, z)
        algorithm = methods[0].build()
        chosen = resolve(layout, setup, algorithm, z, len(seeds))
        if chosen.devices > 1:
            shape |= {"mesh": chosen.mesh}
            setup = Setup.of(problem, federation, dtype, **shape, held=held)
        view = View.of(setup, federation, dtype, held)
        look = Evaluator(view, test, metrics)
        recorder = Recorder(look, algorithm, z, seeds, metrics)
        lanes = StackedRuns.of(chosen, stack(methods, dtype), keys, starts)
        bring = None
        if held is not None:
            bring = Stream(federation, dtype, algorithm, keys, held, setup, chosen)
        loop = Loop(setup, chosen, lanes, recorder, setting, tuple(methods), bring)
        if resume is not None:
            expected, _ = jax.eval_shape(loop.programs.begin, setup, *lanes)
            expected = lanes.first(expected, len(seeds))
            resume = checked_resume(resume, expected, recorder, setting)
            check.integer(
                "rounds", rounds, low=resume.round, what=", those already run"
            )
        carry, t = loop.begin(resume)
        return loop.run(carry, t, rounds, eval_every, chunk, callbacks)


def advice(method: Method, diverged: dict[int, int]) -> str:
    """Where a run broke, and what to lower."""
    where = ", ".join(f"seed {seed} at round {t}" for seed, t in diverged.items())
    rates = [f"{k} {v}" for k, v in method.arguments.items() if isinstance(v, Rates)]
    return (
        f"{method.name} left the finite numbers ({where}); lower its rates "
        f"({', '.join(rates)}) or its local steps. The history until then is kept."
    )


def unsolved(history: History) -> str | None:
    """What to say where the solver for inner maxima fell short; None if it did not."""
    if "inner_residual" not in history.columns:
        return None
    residual, f = history["inner_residual"].ravel(), history["f"].ravel()
    # A maximum at infinity leaves no number; a run that diverged has its own warning.
    missed = np.flatnonzero(np.isfinite(f) & ~(residual <= UNSOLVED))
    if len(missed) == 0:
        return None
    at, found = history["round"].ravel()[missed[-1]], residual[missed[-1]]
    return (
        f"the inner maximum was not found: `inner_residual` is {found:.1e} at round "
        f"{at}, and `phi`, `gap` and `grad_phi_sq` are off by what it allows; "
        "give `best_y`, a set that bounds y, or a loss that is concave in y."
    )


@jax.jit
def draw_starts(problem: Problem, keys: Any) -> Point:
    """(x_0, y_0) of each seed."""
    return jax.vmap(lambda key: problem.init(key_of(key, "start")))(keys)
