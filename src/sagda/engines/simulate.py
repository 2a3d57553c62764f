"""`simulate`: a whole run on one machine, from checks to history."""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sagda import check
from sagda.core import Point, Rates
from sagda.data.federation import Federation, Table
from sagda.engines.recorder import Recorder
from sagda.engines.rounds import Carry, advance, begin
from sagda.engines.setup import Setup, on_device
from sagda.history import History
from sagda.keys import root_key
from sagda.methods import Method
from sagda.metrics import OPTIONAL
from sagda.problems.base import Problem


class DivergenceWarning(UserWarning):
    """A run left the finite numbers."""


class Progress(NamedTuple):
    """What a progress callback is told after each chunk of rounds."""

    round: int
    rounds: int
    seconds: float  # in rounds so far, without compiling
    latest: dict[str, np.ndarray]  # the newest evaluation, [seeds] each


class Run(NamedTuple):
    """What `simulate` returns; `resume=run` goes on from it."""

    history: History
    carry: Carry  # the server's state and the clients' memories, seeds first
    round: int
    diverged: dict[int, int]  # seed: the first round that was not finite
    compile_seconds: float

    @property
    def z(self) -> Point:
        """The last iterate; every array has the seeds as its first axis."""
        return self.carry.state.z


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
    chunk: int = 100,
    metrics: Sequence[str] = (),
    test: Table | None = None,
    start: Point | None = None,
    float64: bool = False,
    progress: Callable[[Progress], None] | None = None,
    resume: Run | None = None,
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
        chunk: rounds between calls of `progress`, at most.
        metrics: optional columns: `drift`, mean_i ||z_i^{K+1} - z_t||^2 of the last
            round; `variate_lag`, mean_i ||v_i - grad f_i(z_t)||^2; `potential`,
            Phi - f/10.
        test: rows to score beside the training rows.
        start: (x_0, y_0) for every seed, in place of the problem's own.
        float64: double precision; it draws the same rows.
        progress: called after each chunk.
        resume: a run of the same configuration to go on from.

    Neither `chunk`, `eval_every` nor `resume` changes any result.

    >>> from sagda import Quadratic, fsgda
    >>> problem, federation = Quadratic.make(clients=4, heterogeneity=0.0)
    >>> run = simulate(fsgda(local_lr=0.1), problem, federation, rounds=50)
    >>> bool(run.history["distance_sq"][0, -1] < 1e-3)
    True
    """
    checked(method, "method", Method, "such as sagda.algorithm('sagda-i')")
    checked(problem, "problem", Problem, "such as sagda.AUC.of(federation)")
    checked(federation, "federation", Federation, "such as sagda.partition(table)")
    M, smallest = federation.clients, int(federation.size.min())
    check.integer("rounds", rounds, low=1)
    cohort = M if cohort is None else cohort
    check.integer("cohort", cohort, low=1, high=M, what=", the clients,")
    if batch_size is not None:
        what = ", the rows of the smallest client (None takes all),"
        check.integer("batch_size", batch_size, low=1, high=smallest, what=what)
    check.real("dropout", dropout, low=0, high=1)
    seeds = (seeds,) if isinstance(seeds, int) else tuple(seeds)
    if not seeds:
        raise ValueError("`seeds` must hold at least one seed, got none.")
    for seed in seeds:
        check.integer("seeds", seed, low=0, high=2**32 - 1)
    check.integer("eval_every", eval_every, low=1)
    check.integer("chunk", chunk, low=1)
    for name in metrics:
        check.choice("metrics", name, OPTIONAL)
    problem.check(federation)

    with jax.enable_x64(float64):
        dtype = jnp.float64 if float64 else jnp.float32
        setup = Setup.of(
            method,
            problem,
            federation,
            dtype,
            dropout=dropout,
            cohort=int(cohort),
            batch_size=batch_size,
        )
        if start is not None:
            start = jax.tree.map(lambda a: on_device(a, dtype), start)
        z = checked_shapes(setup, seeds, start, resume)
        recorder = Recorder(setup, z, seeds, test, tuple(dict.fromkeys(metrics)))
        if "variate_lag" in metrics and setup.method.build().mean is None:
            raise ValueError(
                f"`metrics` may hold variate_lag only for methods whose clients keep "
                f"variates, {method.name} has none."
            )
        return _simulate(
            setup, seeds, start, recorder, rounds, eval_every, chunk, progress, resume
        )


def _simulate(
    setup: Setup,
    seeds: tuple[int, ...],
    start: Point | None,
    recorder: Recorder,
    rounds: int,
    eval_every: int,
    chunk: int,
    progress: Callable[[Progress], None] | None,
    resume: Run | None,
) -> Run:
    keys = jax.vmap(root_key)(jnp.asarray(seeds, jnp.uint32))
    clock = time.perf_counter()
    t = resume.round if resume else 0
    if resume:
        carry = jax.tree.map(jnp.array, resume.carry)
        recorder.go_on(resume.history)
    else:
        carry, tally = begin(setup, keys, start)
        recorder.count(tally, recorder.opening, rounds=1, seconds=0.0)
    # No rounds, but the program is there afterwards.
    carry, _ = jax.block_until_ready(advance(setup, carry, keys, *span(t, t)))
    if not resume:
        recorder.evaluate(carry, t)
    compile_seconds = time.perf_counter() - clock

    while t < rounds and (np.asarray(carry.broken) < 0).any():
        stop = min(rounds, t + chunk, t + eval_every - t % eval_every)
        clock = time.perf_counter()
        carry, tally = advance(setup, carry, keys, *span(t, stop))
        jax.block_until_ready(carry)
        seconds = time.perf_counter() - clock
        recorder.count(tally, recorder.phases, rounds=stop - t, seconds=seconds)
        t = stop
        if t % eval_every == 0 or t == rounds or (np.asarray(carry.broken) >= 0).all():
            recorder.evaluate(carry, t)
        if progress is not None:
            progress(Progress(t, rounds, recorder.seconds, recorder.latest))

    broken = np.asarray(carry.broken)
    diverged = {s: int(b) for s, b in zip(seeds, broken, strict=True) if b >= 0}
    if diverged:
        warnings.warn(advice(setup.method, diverged), DivergenceWarning, stacklevel=3)
    return Run(recorder.history, jax.device_get(carry), t, diverged, compile_seconds)


def span(first: int, last: int) -> tuple[np.int32, np.int32]:
    return np.int32(first), np.int32(last)


def advice(method: Method, diverged: dict[int, int]) -> str:
    """Where a run broke, and what to lower."""
    where = ", ".join(f"seed {seed} at round {t}" for seed, t in diverged.items())
    rates = [f"{k} {v}" for k, v in method.arguments.items() if isinstance(v, Rates)]
    return (
        f"{method.name} left the finite numbers ({where}); lower its rates "
        f"({', '.join(rates)}) or its local steps. The history until then is kept."
    )


def checked(value: Any, name: str, kind: type, example: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(
            f"`{name}` must be a {kind.__name__}, {example}, got {value!r:.60} of type "
            f"{type(value).__name__}."
        )


def checked_shapes(
    setup: Setup, seeds: tuple[int, ...], start: Point | None, resume: Run | None
) -> Point:
    """The shape of an iterate, after a look at the loss, the start and the resumed."""
    key = root_key(0)
    shapes = lambda tree: jax.tree.map(lambda a: a.shape, tree)
    z = jax.eval_shape(lambda: setup.problem.init(key))
    if start is not None and shapes(start) != shapes(z):
        raise ValueError(
            f"`start` must have the shapes {shapes(z)} of the problem's own start, got "
            f"{shapes(start)}."
        )
    rows = len(setup.weight)
    try:
        losses = jax.eval_shape(setup.problem.loss, z, setup.table, key)
    except (TypeError, IndexError) as error:
        raise ValueError(
            f"the loss of {type(setup.problem).__name__} does not fit the data: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if losses.shape != (rows,):
        raise ValueError(
            f"the loss of {type(setup.problem).__name__} must have one value per row, "
            f"shape ({rows},), got shape {losses.shape}."
        )
    if resume is not None:
        keys = jax.eval_shape(
            lambda: jax.vmap(root_key)(jnp.asarray(seeds, jnp.uint32))
        )
        expected, _ = jax.eval_shape(begin, setup, keys, start)
        kinds = lambda tree: jax.tree.map(lambda a: (a.shape, str(a.dtype)), tree)
        if seeds != resume.history.seeds or kinds(expected) != kinds(resume.carry):
            raise ValueError(
                "`resume` must be a run of the same method, problem, clients, "
                f"precision and seeds, got one with seeds {resume.history.seeds}."
            )
    return z
