"""`simulate`: a whole run on one machine, from checks to history."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec

from sagda import check
from sagda.core import Point, Rates
from sagda.data.federation import Federation, Table
from sagda.engines.checks import check_loss, check_run, check_starts, given_starts
from sagda.engines.layout import Layout, resolve
from sagda.engines.recorder import Recorder
from sagda.engines.rounds import Carry, Tally, carry_specs, is_split, programs
from sagda.engines.run import Progress, Run, checked_resume
from sagda.engines.setup import Setup, View, fetch, placed
from sagda.keys import key_of, root_key
from sagda.machines import gathered
from sagda.methods import Method, stack
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
    layout: str = "auto",
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
        layout: how clients and seeds are laid out: `auto` chooses, `mapped` goes
            through clients one after the other, `batched` takes all at once,
            `chunk-16` that many; `/2` uses two devices, which share `:runs` or
            `:clients`. Results agree to rounding; `run.layout` has the choice.
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
        progress=progress,
        resume=resume,
    )
    if run.diverged:
        warnings.warn(advice(method, run.diverged), DivergenceWarning, stacklevel=2)
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
    progress: Callable[[Progress], None] | None = None,
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
    }
    checked = [check_run(m, problem, federation, **options) for m in methods]
    cohort, seeds, metrics = checked[0]
    methods = [method for method in methods for _ in seeds]
    seeds = seeds * (len(methods) // len(seeds))
    # Starts are drawn in single precision, whatever the run's, to be the same in both.
    with jax.enable_x64(False):
        keys = jax.vmap(root_key)(np.array(seeds, np.uint32))
        starts = draw_starts(problem, keys)
    check_starts(problem, starts)
    if start is not None:
        starts = given_starts(start, starts)

    with jax.enable_x64(float64):
        dtype = jnp.float64 if float64 else jnp.float32
        starts = jax.tree.map(lambda a: np.asarray(a, dtype), starts)
        z = jax.tree.map(lambda a: a[0], starts)
        shape = {"cohort": cohort, "batch_size": batch_size, "dropout": dropout}
        setup = Setup.of(problem, federation, dtype, **shape)
        check_loss(setup, z)
        algorithm = methods[0].build()
        chosen = resolve(layout, setup, algorithm, z, len(seeds))
        if chosen.devices > 1:
            setup = Setup.of(problem, federation, dtype, **shape, mesh=chosen.mesh)
        view = View.of(setup.clients, federation, dtype)
        recorder = Recorder(view, algorithm, z, seeds, test, metrics)
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
        lanes = Lanes.of(chosen, stack(methods, dtype), keys, starts)
        loop = Loop(setup, chosen, lanes, recorder, setting)
        if resume is not None:
            expected, _ = jax.eval_shape(loop.programs.begin, setup, *lanes)
            expected = lanes.first(expected, len(seeds))
            resume = checked_resume(resume, expected, recorder, setting)
            check.integer(
                "rounds", rounds, low=resume.round, what=", those already run"
            )
        carry, t = loop.begin(resume)
        return loop.run(carry, t, rounds, eval_every, chunk, progress)


class Lanes(NamedTuple):
    """What the runs side by side differ in, each leaf with the runs as first axis."""

    method: Method
    keys: Any
    starts: Point

    @classmethod
    def of(cls, layout: Layout, method: Method, keys: Any, starts: Point) -> "Lanes":
        return cls(*shared((method, keys, starts), layout, Spec("runs")))

    @staticmethod
    def first(tree: Any, count: int) -> Any:
        """Without the runs that fill up the devices."""

        def cut(a: Any) -> Any:
            if isinstance(a, jax.ShapeDtypeStruct):
                return jax.ShapeDtypeStruct((count, *a.shape[1:]), a.dtype)
            return a[:count]

        return jax.tree.map(cut, tree)


def shared(tree: Any, layout: Layout, spec: Spec | Carry) -> Any:
    """Arrays with runs first on the layout's devices, the last run filling up."""

    def put(spec: Spec, part: Any) -> Any:
        def one(a: Any) -> Any:
            more = -len(a) % layout.runs
            if more:
                a = jnp.concatenate([a, *[a[-1:]] * more])
            if layout.devices == 1:
                # A copy: the programs write over what they are given. And committed to
                # the device, as what the programs return is, to compile once.
                return jax.device_put(jnp.array(a), jax.local_devices()[0])
            return placed(a, NamedSharding(layout.mesh, spec))

        return jax.tree.map(one, part)

    return jax.tree.map(put, spec, tree, is_leaf=lambda s: isinstance(s, Spec))


class Loop:
    """The rounds of a run, chunk by chunk."""

    def __init__(
        self,
        setup: Setup,
        layout: Layout,
        lanes: Lanes,
        recorder: Recorder,
        setting: dict[str, str],
    ):
        self.setup, self.layout, self.lanes = setup, layout, lanes
        self.recorder, self.setting = recorder, setting
        self.seeds = len(recorder.seeds)
        self.split = is_split(layout, setup.cohort, setup.clients.count)
        self.programs = programs(layout, self.split)
        self.compile_seconds = 0.0

    def begin(self, resume: Run | None) -> tuple[Carry, int]:
        """The first carry and round, and the compiled programs."""
        clock = time.perf_counter()
        if resume:
            specs = carry_specs(self.layout, self.split)
            carry, t = shared(resume.carry, self.layout, specs), resume.round
            self.recorder.go_on(resume.history, resume.ledger)
        else:
            carry, tally = self.programs.begin(self.setup, *self.lanes)
            self.recorder.open(self.fetched(tally))
            t = 0
        # No rounds, but the program is there afterwards.
        carry, _ = self.advance(carry, t, t)
        if not resume:
            self.recorder.evaluate(self.fetched(self.seen(carry)), t)
        self.compile_seconds = time.perf_counter() - clock
        return carry, t

    def advance(self, carry: Carry, first: int, last: int) -> tuple[Carry, Tally]:
        span = np.int32(first), np.int32(last)
        method, keys, _ = self.lanes
        out = self.programs.advance(self.setup, method, keys, carry, *span)
        carry, tally = jax.block_until_ready(out)
        return carry, self.fetched(tally)

    def fetched(self, tree: Any) -> Any:
        """On the host, without the runs that fill up the devices."""
        return Lanes.first(fetch(tree), self.seeds)

    def seen(self, carry: Carry) -> Carry:
        """What an evaluation needs: memories only where they are asked for."""
        asked = "variate_lag" in self.recorder.metrics
        return carry if asked else carry._replace(memory=None)

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
        broken = self.fetched(carry.broken)
        while t < rounds and (broken < 0).any():
            stop = min(rounds, t + (chunk or pace), t + every - t % every)
            clock = time.perf_counter()
            carry, tally = self.advance(carry, t, stop)
            seconds = time.perf_counter() - clock
            recorder.count(tally, seconds)
            if chunk is None and every > 1:
                # Chunks are cut at the same rounds in every process.
                seconds = float(gathered(seconds)[0])
            if seconds < CHUNK_SECONDS / 2:
                pace *= 2
            elif seconds > CHUNK_SECONDS:
                pace = max(1, pace // 2)
            t, broken = stop, self.fetched(carry.broken)
            if t % every == 0 or t == rounds or (broken >= 0).all():
                recorder.evaluate(self.fetched(self.seen(carry)), t)
            if progress is not None:
                snapshot = partial(self.snapshot, carry, t)
                took = recorder.ledger.seconds
                progress(Progress(t, rounds, took, recorder.latest, snapshot))
        return self.snapshot(carry, t)

    def snapshot(self, carry: Carry, t: int) -> Run:
        recorder = self.recorder
        return Run(
            recorder.history,
            self.fetched(carry),
            t,
            recorder.ledger,
            self.compile_seconds,
            self.setting,
            str(self.layout),
        )


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
