"""`simulate`: a whole run on one machine, from checks to history."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sagda import check
from sagda.check import BadKind, BadValue
from sagda.core import Point, Rates
from sagda.data.federation import Federation, Table
from sagda.engines.recorder import Ledger, Recorder
from sagda.engines.rounds import Carry, Tally, advance, begin
from sagda.engines.saved import filled, named
from sagda.engines.setup import Setup, on_device
from sagda.history import History
from sagda.keys import key_of, root_key
from sagda.methods import Method
from sagda.metrics import OPTIONAL
from sagda.problems.base import Problem

CHUNK_SECONDS = 0.5


class DivergenceWarning(UserWarning):
    """A run left the finite numbers."""


class Run(NamedTuple):
    """What `simulate` returns; `resume=run` goes on from it."""

    history: History
    carry: Carry  # the server's state and the clients' memories, seeds first
    round: int
    ledger: Ledger
    compile_seconds: float

    @property
    def z(self) -> Point:
        """The last iterate; every array has the seeds as its first axis."""
        return self.carry.state.z

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it as arrays by name, for a file; `resume` takes these too."""
        columns = {
            f"history/{i:03d}/{name}": column
            for i, (name, column) in enumerate(self.history.columns.items())
        }
        numbers = {"round": self.round, "compile_seconds": self.compile_seconds}
        return (
            named(self.carry, "carry")
            | named(self.ledger, "ledger")
            | {name: np.array(value) for name, value in numbers.items()}
            | {name: np.ascontiguousarray(column) for name, column in columns.items()}
        )

    @property
    def diverged(self) -> dict[int, int]:
        """By seed, the first round that was not finite."""
        pairs = zip(self.history.seeds, self.carry.broken.tolist(), strict=True)
        return {seed: t for seed, t in pairs if t >= 0}


class Progress(NamedTuple):
    """What a progress callback is told after each chunk of rounds."""

    round: int
    rounds: int
    seconds: float  # in rounds so far, without compiling
    latest: dict[str, np.ndarray]  # the newest evaluation, [seeds] each
    snapshot: Callable[[], Run]  # the run as it stands, to be kept and resumed


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
    checked(method, "method", Method, "such as sagda.algorithm('sagda-i')")
    checked(problem, "problem", Problem, "such as sagda.AUC.of(federation)")
    checked(federation, "federation", Federation, "such as sagda.partition(table)")
    M, smallest = federation.clients, int(federation.size.min())
    check.integer("rounds", rounds, low=1)
    cohort = M if cohort is None else cohort
    check.integer("cohort", cohort, low=1, high=M, what=", the clients")
    if batch_size is not None:
        what = ", the rows of the smallest client (None takes all)"
        check.integer("batch_size", batch_size, low=1, high=smallest, what=what)
    check.real("dropout", dropout, low=0, high=1)
    seeds = (seeds,) if isinstance(seeds, int) else tuple(seeds)
    if not seeds:
        raise BadValue("`seeds` must hold at least one seed, got none.")
    for seed in seeds:
        check.integer("seeds", seed, low=0, high=2**32 - 1)
    check.integer("eval_every", eval_every, low=1)
    if chunk is not None:
        check.integer("chunk", chunk, low=1)
    for name in metrics:
        check.choice("metrics", name, OPTIONAL)
    if "variate_lag" in metrics and method.build().mean is None:
        raise BadValue(
            f"`metrics` may hold variate_lag only where clients keep variates, which "
            f"those of {method.name} do not."
        )
    problem.check(federation)

    # Starts are drawn in single precision, whatever the run's, to be the same in both.
    with jax.enable_x64(False):
        keys = jax.vmap(root_key)(np.array(seeds, np.uint32))
        starts = draw_starts(problem, keys)
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
            cohort=int(cohort),
            batch_size=batch_size,
        )
        starts = jax.tree.map(lambda a: on_device(a, dtype), starts)
        z = jax.tree.map(lambda a: a[0], starts)
        check_loss(setup, z)
        names = tuple(dict.fromkeys(metrics))
        recorder = Recorder(setup, z, seeds, test, names)
        if resume is not None:
            expected, _ = jax.eval_shape(begin, setup, keys, starts)
            resume = checked_resume(resume, expected, recorder)
        loop = Loop(setup, keys, recorder)
        carry, t = loop.begin(starts, resume)
        run = loop.run(carry, t, rounds, eval_every, chunk, progress)
    if run.diverged:
        warnings.warn(advice(method, run.diverged), DivergenceWarning, stacklevel=2)
    return run


class Loop:
    """The rounds of a run, chunk by chunk."""

    def __init__(self, setup: Setup, keys: Any, recorder: Recorder):
        self.setup, self.keys, self.recorder = setup, keys, recorder
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
        return Run(recorder.history, kept, t, ledger, seconds)


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
        raise BadKind(
            f"`{name}` must be a {kind.__name__}, {example}, got {value!r:.60} of type "
            f"{type(value).__name__}."
        )


@jax.jit
def draw_starts(problem: Problem, keys: Any) -> Point:
    """(x_0, y_0) of each seed."""
    return jax.vmap(lambda key: problem.init(key_of(key, "start")))(keys)


def given_starts(start: Point, starts: Point) -> Point:
    """The user's start for every seed, after a look at its shapes."""
    shapes = lambda tree: jax.tree.map(np.shape, tree)
    expected = jax.tree.map(lambda a: a.shape[1:], starts)
    if shapes(start) != expected:
        raise BadValue(
            f"`start` must have the shapes {expected} of the problem's own start, got "
            f"{shapes(start)}."
        )
    return jax.tree.map(lambda a, b: np.broadcast_to(a, b.shape), start, starts)


def check_loss(setup: Setup, z: Point) -> None:
    """A loss must fit the data and give one value per row."""
    kind, rows = type(setup.problem).__name__, len(setup.weight)
    try:
        losses = jax.eval_shape(setup.problem.loss, z, setup.table, root_key(0))
    except (TypeError, IndexError) as error:
        raise BadValue(
            f"the loss of {kind} does not fit the data: {str(error).splitlines()[0]}"
        ) from error
    if losses.shape != (rows,):
        raise BadValue(
            f"the loss of {kind} must have one value per row, got shape "
            f"{losses.shape} for {rows} rows."
        )


def checked_resume(
    resume: Run | Mapping[str, np.ndarray], expected: Carry, recorder: Recorder
) -> Run:
    """A run that fits the configuration, from itself or from its arrays."""
    if not isinstance(resume, Run):
        columns = sorted(name for name in resume if name.startswith("history/"))
        history = {name.split("/", 2)[2]: resume[name] for name in columns}
        resume = Run(
            History(recorder.seeds, history),
            filled(expected, resume, "carry"),
            int(resume["round"]),
            filled(recorder.ledger, resume, "ledger"),
            float(resume["compile_seconds"]),
        )
    kinds = lambda tree: jax.tree.map(lambda a: (a.shape, str(a.dtype)), tree)
    same_seeds = recorder.seeds == resume.history.seeds
    if not same_seeds or kinds(expected) != kinds(resume.carry):
        raise BadValue(
            "`resume` must be a run of the same method, problem, clients, precision "
            f"and seeds, got one with seeds {resume.history.seeds}."
        )
    return resume
