"""`RoundLoop`: runs the rounds in chunks, with evaluations and callbacks between them.

`CompiledLoop` runs compiled JAX programs. `TorchLoop` in `torch/loop.py` runs PyTorch
models. A single round is defined in `rounds.py`, and an evaluation in `evaluator.py`.
"""

import abc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, NamedTuple, final

import jax
import numpy as np
from jax.sharding import PartitionSpec as Spec

from sagda import check
from sagda.core import Point
from sagda.data.federation import Federation
from sagda.methods import Method, stack
from sagda.problems.base import Problem
from sagda.simulator.checks import check_loss
from sagda.simulator.evaluator import Evaluator
from sagda.simulator.layout import StackedRuns, first_runs, resolve, shared
from sagda.simulator.options import RunOptions
from sagda.simulator.processes import gathered
from sagda.simulator.recorder import Recorder
from sagda.simulator.rounds import Carry, Tally, carry_specs, is_split, programs
from sagda.simulator.run import Progress, Run, checked_resume
from sagda.simulator.setup import Setup, View, fetch

CHUNK_SECONDS = 0.5  # the longest time that a chunk of automatic size should take


class RunList(NamedTuple):
    """The runs of one call of `simulate`, in one program.

    Run k uses `methods[k]` and `seeds[k]`.
    """

    methods: tuple[Method, ...]
    seeds: tuple[int, ...]
    problem: Problem
    federation: Federation
    options: RunOptions

    @property
    def cohort(self) -> int:
        """The number m of clients that take part in each round."""
        return self.options.cohort or self.federation.clients

    @property
    def dtype(self) -> Any:
        """The type of floating-point numbers."""
        return np.float64 if self.options.float64 else np.float32

    @property
    def setting(self) -> dict[str, str]:
        """The configuration as strings, which must not change when a run is resumed."""
        options, test = self.options, self.options.test
        setting = {
            "method": "; ".join(dict.fromkeys(map(repr, self.methods))),
            "problem": type(self.problem).__name__,
            "split": self.federation.hash,
            "cohort": self.cohort,
            "batch_size": options.batch_size,
            "dropout": options.dropout,
            "seeds": self.seeds,
            "float64": options.float64,
            "metrics": tuple(name for name, _ in options.chosen_metrics),
            "test": "none" if test is None else f"{len(test.label)} rows",
        }
        return {name: str(value) for name, value in setting.items()}


class RoundLoop(abc.ABC):
    """The rounds of all runs in a `RunList`, which advance together.

    The arrays of a carry have the runs on axis 0. A subclass decides where these arrays
    are stored, and computes the rounds.
    """

    def __init__(
        self, runs: RunList, recorder: Recorder, layout: str, largest_round: int
    ):
        """Start a loop. `largest_round` is the most rows that one round can use."""
        self.runs, self.recorder, self.layout = runs, recorder, layout
        self.setting = runs.setting
        # The rows of a chunk are counted in a 32-bit integer, which must not overflow.
        self.longest_chunk = max(1, (2**31 - 1) // largest_round)
        self.compile_seconds = 0.0

    @abc.abstractmethod
    def expected(self) -> Carry:
        """Return the shapes of the carry, to check a run that is to be resumed."""

    @abc.abstractmethod
    def begin(self, resume: Run | None) -> tuple[Carry, int]:
        """Return the first carry and its round, after recording and evaluating it."""

    @abc.abstractmethod
    def advance(self, carry: Carry, first: int, last: int) -> tuple[Carry, Tally]:
        """Compute rounds `first` to `last` - 1. Returns the new carry and counts."""

    @abc.abstractmethod
    def fetched(self, tree: Any) -> Any:
        """Copy arrays of the runs to the host. Later rounds do not change them."""

    @final
    def run(self) -> Run:
        """Run all rounds, until all runs have diverged or a callback asks to stop."""
        options, resume = self.runs.options, None
        if options.resume is not None:
            resume = checked_resume(
                options.resume, self.expected(), self.recorder, self.setting
            )
            what = ", those already run"
            check.integer("rounds", options.rounds, low=resume.round, what=what)
        carry, t = self.begin(resume)
        with ExitStack() as entered:
            for callback in options.callbacks:
                if isinstance(callback, AbstractContextManager):
                    entered.enter_context(callback)
            carry, t = self.advance_all(carry, t)
        return self.snapshot(carry, t)

    @final
    def advance_all(self, carry: Carry, t: int) -> tuple[Carry, int]:
        """Run the rounds from `t` on, in chunks. Returns the last carry and round."""
        options, recorder = self.runs.options, self.recorder
        rounds, every = options.rounds, options.eval_every
        size, stopped = 1, False
        diverged = self.fetched(carry.broken) >= 0
        if 0 < t < rounds and not diverged.all():
            # A callback that stopped this run before can stop it again at once.
            stopped = bool(gathered(self.notify(carry, t)).any())
        while t < rounds and not diverged.all() and not stopped:
            # A chunk ends at the next evaluation at the latest.
            ahead = min(options.chunk or size, self.longest_chunk)
            stop = min(rounds, t + ahead, t + every - t % every)
            clock = time.perf_counter()
            carry, tally = self.advance(carry, t, stop)
            seconds = time.perf_counter() - clock
            recorder.count(tally, seconds)
            t, diverged = stop, self.fetched(carry.broken) >= 0
            if t % every == 0 or t == rounds or diverged.all():
                self.evaluate(carry, t)
            wish = self.notify(carry, t)
            # All processes must use chunks of the same size, and stop at the same
            # round. So process 0 decides the size, and any process can stop the run.
            agreed = gathered([seconds, float(wish)])
            seconds, stopped = float(agreed[0, 0]), bool(agreed[:, 1].any())
            if seconds < CHUNK_SECONDS / 2:
                size = min(2 * size, self.longest_chunk)
            elif seconds > CHUNK_SECONDS:
                size = max(1, size // 2)
        if stopped and recorder.latest["round"][0] < t:
            self.evaluate(carry, t)
            self.notify(carry, t)
        return carry, t

    @final
    def evaluate(self, carry: Carry, t: int) -> None:
        """Evaluate the runs, and add a row to the history.

        The memories are copied to the host only if a metric needs them.
        """
        if "memory" not in self.recorder.needs:
            carry = carry._replace(memory=None)
        self.recorder.evaluate(self.fetched(carry), t)

    @final
    def notify(self, carry: Carry, t: int) -> bool:
        """Call every callback. Returns True if one of them asks to stop the run."""
        options = self.runs.options
        if not options.callbacks:
            return False
        progress = Progress(
            round=t,
            rounds=options.rounds,
            seconds=self.recorder.ledger.seconds,
            latest=self.recorder.latest,
            snapshot=partial(self.snapshot, carry, t),
            history=self.recorder.rows.so_far,
            methods=self.runs.methods,
            setting=self.setting,
        )
        answers = [callback(progress) for callback in options.callbacks]
        # Only True stops a run. Callbacks may return values of other types.
        return any(isinstance(a, bool | np.bool_) and bool(a) for a in answers)

    @final
    def snapshot(self, carry: Carry, t: int) -> Run:
        """Return a `Run` with all results up to round `t`, on the host."""
        return Run(
            history=self.recorder.rows.history,
            carry=self.fetched(carry),
            round=t,
            ledger=self.recorder.ledger,
            compile_seconds=self.compile_seconds,
            setting=self.setting,
            layout=self.layout,
        )


@final
class CompiledLoop(RoundLoop):
    """Rounds as compiled JAX programs, on the devices of a layout."""

    def __init__(self, runs: RunList, keys: Any, starts: Point):
        """Check the loss, choose a layout and copy the data to the devices.

        `keys` and `starts` have the runs on axis 0. The options were checked before.
        """
        options, federation, dtype = runs.options, runs.federation, runs.dtype
        starts = jax.tree.map(lambda a: np.asarray(a, dtype), starts)
        z = jax.tree.map(lambda a: a[0], starts)
        setup = Setup.of(
            runs.problem,
            federation,
            dtype,
            cohort=runs.cohort,
            batch_size=options.batch_size,
            dropout=options.dropout,
        )
        check_loss(setup, z)
        algorithm = runs.methods[0].build()
        layout = resolve(options.layout, setup, algorithm, z, len(runs.seeds))
        if layout.devices > 1:
            setup = setup.over(layout.mesh)
        view = View.of(setup, federation, dtype)
        evaluator = Evaluator(view, options.test, options.chosen_metrics)
        recorder = Recorder(evaluator, algorithm, z, runs.seeds)
        rows = runs.cohort * federation.widest
        super().__init__(runs, recorder, str(layout), rows)
        self.setup = setup
        stacked = StackedRuns(stack(runs.methods, dtype), keys, starts)
        self.stacked = shared(stacked, layout, Spec("runs"))
        split = is_split(layout, runs.cohort, federation.clients)
        specs = carry_specs(layout, split)
        self.programs = programs(layout, split)
        self.place: Callable[[Carry], Carry] = lambda c: shared(c, layout, specs)

    def expected(self) -> Carry:
        carry, _ = jax.eval_shape(self.programs.begin, self.setup, *self.stacked)
        return jax.eval_shape(partial(first_runs, count=len(self.runs.seeds)), carry)

    def begin(self, resume: Run | None) -> tuple[Carry, int]:
        clock = time.perf_counter()
        if resume:
            carry, t = self.place(resume.carry), resume.round
            self.recorder.resume(resume.history, resume.ledger)
        else:
            carry, tally = self.programs.begin(self.setup, *self.stacked)
            self.recorder.open(self.fetched(tally))
            t = 0
        # Advance by no rounds. This compiles the program, so that the time of the
        # rounds does not include compilation.
        carry, _ = self.advance(carry, t, t)
        if not resume:
            self.evaluate(carry, t)
        self.compile_seconds = time.perf_counter() - clock
        return carry, t

    def advance(self, carry: Carry, first: int, last: int) -> tuple[Carry, Tally]:
        span = np.int32(first), np.int32(last)
        method, keys, _ = self.stacked
        out = self.programs.advance(self.setup, method, keys, carry, *span)
        carry, tally = jax.block_until_ready(out)
        return carry, self.fetched(tally)

    def fetched(self, tree: Any) -> Any:
        # `layout.shared` has repeated the last run, so that all devices have the same
        # number of runs. These copies are dropped here.
        return first_runs(fetch(tree), len(self.runs.seeds))
