"""`simulate`: a whole run on one machine, from checks to history."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sagda import check
from sagda.core import Point, Rates
from sagda.data.federation import Federation, Table
from sagda.engines.checks import check_loss, check_run, check_starts, given_starts
from sagda.engines.recorder import Recorder
from sagda.engines.rounds import Carry, Tally, advance, begin
from sagda.engines.run import Progress, Run, checked_resume
from sagda.engines.setup import Setup
from sagda.keys import key_of, root_key
from sagda.methods import Method
from sagda.problems.base import Problem

CHUNK_SECONDS = 0.5


class DivergenceWarning(UserWarning):
    """A run left the finite numbers."""


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
    progress: Callable[[Progress], None] | None = None,
    resume: Run | Mapping[str, np.ndarray] | None = None,
) -> Run:
    """Run a method on a problem over simulated clients.

    Args:
        method: an algorithm with its hyperparameters, such as `sagda_i(local_lr=0.01)`.
        problem: the objective, such as `AUC.of(federation)`.
        federation: the data and who holds it.
        rounds: T, counted from the start also when a run is resumed.
        cohort: m, the clients drawn each round; all of them if None.
        batch_size: rows per stochastic gradient; None takes all local rows, and makes
            a run with full participation free of chance.
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
        progress: called after each chunk.
        resume: a run of the same configuration to go on from, or its `arrays`.

    Neither `chunk`, `eval_every` nor `resume` changes any result.

    Examples:
        >>> from sagda import Quadratic, fsgda
        >>> problem, federation = Quadratic.make(clients=4, heterogeneity=0.0)
        >>> run = simulate(fsgda(local_lr=0.03), problem, federation, rounds=300)
        >>> bool(run.history["distance_sq"][0, -1] < 1e-3)
        True
    """
    cohort, seeds, metrics = check_run(
        method,
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
    )
    # Starts are drawn in single precision, whatever the run's, to be the same in both.
    with jax.enable_x64(False):
        keys = jax.vmap(root_key)(np.array(seeds, np.uint32))
        starts = draw_starts(problem, keys)
    check_starts(problem, starts)
    if start is not None:
        starts = given_starts(start, starts)

    with jax.enable_x64(float64):
        dtype = jnp.float64 if float64 else jnp.float32
        setup = Setup.of(
            method,
            problem,
            federation,
            dtype,
            dropout=dropout,
            cohort=cohort,
            batch_size=batch_size,
        )
        starts = jax.tree.map(lambda a: jnp.asarray(a, dtype), starts)
        z = jax.tree.map(lambda a: a[0], starts)
        check_loss(setup, z)
        recorder = Recorder(setup, z, seeds, test, metrics)
        setting = {
            "method": repr(method),
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
        if resume is not None:
            expected, _ = jax.eval_shape(begin, setup, keys, starts)
            resume = checked_resume(resume, expected, recorder, setting)
            check.integer(
                "rounds", rounds, low=resume.round, what=", those already run"
            )
        loop = Loop(setup, keys, recorder, setting)
        carry, t = loop.begin(starts, resume)
        run = loop.run(carry, t, rounds, eval_every, chunk, progress)
    if run.diverged:
        warnings.warn(advice(method, run.diverged), DivergenceWarning, stacklevel=2)
    return run


class Loop:
    """The rounds of a run, chunk by chunk."""

    def __init__(
        self, setup: Setup, keys: Any, recorder: Recorder, setting: dict[str, str]
    ):
        self.setup, self.keys, self.recorder = setup, keys, recorder
        self.setting = setting
        self.compile_seconds = 0.0

    def begin(self, starts: Point, resume: Run | None) -> tuple[Carry, int]:
        """The first carry and round, and the compiled programs."""
        clock = time.perf_counter()
        if resume:
            carry, t = jax.tree.map(jnp.array, resume.carry), resume.round
            self.recorder.go_on(resume.history, resume.ledger)
        else:
            carry, tally = begin(self.setup, self.keys, starts)
            self.recorder.open(tally)
            t = 0
        # No rounds, but the program is there afterwards.
        carry, _ = self.advance(carry, t, t)
        if not resume:
            self.recorder.evaluate(carry, t)
        self.compile_seconds = time.perf_counter() - clock
        return carry, t

    def advance(self, carry: Carry, first: int, last: int) -> tuple[Carry, Tally]:
        span = np.int32(first), np.int32(last)
        return jax.block_until_ready(advance(self.setup, carry, self.keys, *span))

    def run(
        self,
        carry: Carry,
        t: int,
        rounds: int,
        every: int,
        chunk: int | None,
        progress: Callable[[Progress], None] | None,
    ) -> Run:
        recorder, pace = self.recorder, 1
        while t < rounds and (np.asarray(carry.broken) < 0).any():
            stop = min(rounds, t + (chunk or pace), t + every - t % every)
            clock = time.perf_counter()
            carry, tally = self.advance(carry, t, stop)
            seconds = time.perf_counter() - clock
            recorder.count(tally, seconds)
            if seconds < CHUNK_SECONDS / 2:
                pace *= 2
            elif seconds > CHUNK_SECONDS:
                pace = max(1, pace // 2)
            t, ended = stop, (np.asarray(carry.broken) >= 0).all()
            if t % every == 0 or t == rounds or ended:
                recorder.evaluate(carry, t)
            if progress is not None:
                snapshot = partial(self.snapshot, carry, t)
                took = recorder.ledger.seconds
                progress(Progress(t, rounds, took, recorder.latest, snapshot))
        return self.snapshot(carry, t)

    def snapshot(self, carry: Carry, t: int) -> Run:
        recorder = self.recorder
        kept = jax.device_get(carry)
        ledger, seconds = recorder.ledger, self.compile_seconds
        return Run(recorder.history, kept, t, ledger, seconds, self.setting)


def advice(method: Method, diverged: dict[int, int]) -> str:
    """Where a run broke, and what to lower."""
    where = ", ".join(f"seed {seed} at round {t}" for seed, t in diverged.items())
    rates = [f"{k} {v}" for k, v in method.arguments.items() if isinstance(v, Rates)]
    return (
        f"{method.name} left the finite numbers ({where}); lower its rates "
        f"({', '.join(rates)}) or its local steps. The history until then is kept."
    )


@jax.jit
def draw_starts(problem: Problem, keys: Any) -> Point:
    """(x_0, y_0) of each seed."""
    return jax.vmap(lambda key: problem.init(key_of(key, "start")))(keys)
