"""`Loop`: the rounds of a run, chunk by chunk, with evaluations between them."""

import time
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import jax
import numpy as np

from sagda.methods import Method
from sagda.simulator.layout import Layout, StackedRuns, shared
from sagda.simulator.processes import gathered
from sagda.simulator.recorder import Recorder
from sagda.simulator.rounds import Carry, Tally, carry_specs, is_split, programs
from sagda.simulator.run import Callback, Progress, Run
from sagda.simulator.setup import Setup, fetch
from sagda.simulator.stream import Stream

CHUNK_SECONDS = 0.5


class Loop:
    """The rounds of a run, chunk by chunk."""

    def __init__(
        self,
        setup: Setup,
        layout: Layout,
        lanes: StackedRuns,
        recorder: Recorder,
        setting: dict[str, str],
        methods: tuple[Method, ...],
        stream: Stream | None,
    ):
        self.setup, self.layout, self.lanes = setup, layout, lanes
        self.recorder, self.setting, self.stream = recorder, setting, stream
        self.methods = methods
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

    @property
    def countable(self) -> int:
        """Rounds whose rows are counted in 32 bits at least."""
        clients = self.setup.clients
        return max(1, (2**31 - 1) // (self.setup.cohort * clients.widest))

    def fetched(self, tree: Any) -> Any:
        """On the host, without the runs that fill up the devices."""
        return StackedRuns.first(fetch(tree), self.seeds)

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
        callbacks: tuple[Callback, ...],
    ) -> Run:
        """Rounds until all are done, all seeds are broken or a callback has enough."""
        with ExitStack() as held:
            for callback in callbacks:
                if isinstance(callback, AbstractContextManager):
                    held.enter_context(callback)
            carry, t = self.chunks(carry, t, rounds, every, chunk, callbacks)
        return self.snapshot(carry, t)

    def chunks(
        self,
        carry: Carry,
        t: int,
        rounds: int,
        every: int,
        chunk: int | None,
        callbacks: tuple[Callback, ...],
    ) -> tuple[Carry, int]:
        recorder, pace = self.recorder, 1
        broken, enough = self.fetched(carry.broken), False
        if 0 < t < rounds and (broken < 0).any():
            # A run that was stopped for a reason in its history stays stopped.
            asked = self.asked(callbacks, carry, t, rounds)
            enough = bool(gathered(asked).any())
        while t < rounds and (broken < 0).any() and not enough:
            ahead = min(chunk or pace, self.countable)
            stop = min(rounds, t + ahead, t + every - t % every)
            clock = time.perf_counter()
            if self.stream:
                self.setup, stop = self.stream.bring(self.setup, t, stop)
            carry, tally = self.advance(carry, t, stop)
            seconds = time.perf_counter() - clock
            recorder.count(tally, seconds)
            t, broken = stop, self.fetched(carry.broken)
            if t % every == 0 or t == rounds or (broken >= 0).all():
                recorder.evaluate(self.fetched(self.seen(carry)), t)
            asked = self.asked(callbacks, carry, t, rounds)
            # Chunks are cut, and runs stopped, at the same rounds in every process.
            agreed = gathered([seconds, float(asked)])
            seconds, enough = float(agreed[0, 0]), bool(agreed[:, 1].any())
            if seconds < CHUNK_SECONDS / 2:
                pace = min(2 * pace, self.countable)
            elif seconds > CHUNK_SECONDS:
                pace = max(1, pace // 2)
        if enough and recorder.latest["round"][0] < t:
            recorder.evaluate(self.fetched(self.seen(carry)), t)
            self.asked(callbacks, carry, t, rounds)
        return carry, t

    def asked(
        self, callbacks: tuple[Callback, ...], carry: Carry, t: int, rounds: int
    ) -> bool:
        """Tell every callback; whether one of them wants the run to stop."""
        if not callbacks:
            return False
        recorder = self.recorder
        now = Progress(
            t,
            rounds,
            recorder.ledger.seconds,
            recorder.latest,
            partial(self.snapshot, carry, t),
            recorder.rows.so_far,
            self.methods,
            self.setting,
        )
        answers = [callback(now) for callback in callbacks]
        # Only a truth value: what a callback happens to return stops nothing.
        return any(isinstance(a, bool | np.bool_) and bool(a) for a in answers)

    def snapshot(self, carry: Carry, t: int) -> Run:
        recorder = self.recorder
        return Run(
            recorder.rows.history,
            self.fetched(carry),
            t,
            recorder.ledger,
            self.compile_seconds,
            self.setting,
            str(self.layout),
        )
