"""The rounds of PyTorch models: cohorts and drop-outs drawn as everywhere."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import torch

from sagda import check
from sagda.check import BadKind, BadValue, first_line
from sagda.core import Algorithm, Phase, Point, PyTree, Turn, keep, run_round
from sagda.data.federation import Federation, Table
from sagda.keys import Key, key_of, root_key
from sagda.methods import Method
from sagda.models.torch import arrays, models_in, real, seeded, tensors
from sagda.problems.base import Problem
from sagda.problems.inner import norm_sq
from sagda.simulator.checks import check_feasible, check_starts, given_starts
from sagda.simulator.cohort import Members, draw_members
from sagda.simulator.loop import Loop
from sagda.simulator.recorder import Recorder
from sagda.simulator.rounds import REFRESH, Carry, Tally
from sagda.simulator.run import Callback, Run, checked_resume
from sagda.simulator.torch.evaluator import TorchEvaluator
from sagda.simulator.torch.objective import TorchRows, projected

members_of = jax.jit(draw_members, static_argnums=(0, 3, 4))
client_keys = jax.jit(
    lambda key, t, name, ids: jax.vmap(lambda i: key_of(key, t, name, i))(ids),
    static_argnums=2,
)


class TorchLoop(Loop):
    """Rounds one after the other; runs too. Carries are arrays with runs first."""

    def __init__(
        self,
        rows: TorchRows,
        methods: Sequence[Method],
        keys: Any,
        starts: Point,
        recorder: Recorder,
        setting: dict[str, str],
        cohort: int,
        dropout: float,
    ):
        self.rows, self.methods, self.keys, self.starts = rows, methods, keys, starts
        self.recorder, self.setting, self.stream = recorder, setting, None
        self.cohort, self.dropout = cohort, dropout or None
        self.layout, self.seeds, self.compile_seconds = "torch", len(methods), 0.0

    def begin(self, resume: Run | None) -> tuple[Carry, int]:
        if resume:
            self.recorder.go_on(resume.history, resume.ledger)
            return self.fetched(resume.carry), resume.round
        found = [self.first(s) for s in range(self.seeds)]
        carry, tally = jax.tree.map(lambda *a: np.stack(a), *found)
        self.recorder.open(tally)
        self.recorder.evaluate(self.seen(carry), 0)
        return carry, 0

    def whole(
        self,
        resume: Run | Mapping[str, np.ndarray] | None,
        rounds: int,
        every: int,
        chunk: int | None,
        callbacks: tuple[Callback, ...],
    ) -> Run:
        """From the start, or from a run of the same configuration, to the end."""
        if resume is not None:
            expected = jax.tree.map(
                lambda *a: jax.ShapeDtypeStruct((len(a), *a[0].shape), a[0].dtype),
                *(self.first(s, opened=True)[0] for s in range(self.seeds)),
            )
            resume = checked_resume(resume, expected, self.recorder, self.setting)
            check.integer(
                "rounds", rounds, low=resume.round, what=", those already run"
            )
        carry, t = self.begin(resume)
        return self.run(carry, t, rounds, every, chunk, callbacks)

    def first(self, s: int, opened: bool = False) -> tuple[Carry, Tally]:
        algorithm = self.methods[s].build()
        z = jax.tree.map(lambda a: torch.from_numpy(a[s, ...].copy()), self.starts)
        z = projected(self.rows.problem, z)
        M = len(self.rows.start)
        spread = lambda a: np.repeat(arrays(a)[None], M, axis=0)
        memory = jax.tree.map(spread, algorithm.memory(z))
        state = arrays(algorithm.init(z))
        none = np.full((), np.nan, jax.tree.leaves(state.z)[0].dtype)
        carry = Carry(state, memory, none, np.int32(-1))
        if opened or not algorithm.opening:
            return carry, no_counts(0)
        return self.round(s, algorithm, algorithm.opening, carry, 0, everyone=True)

    def advance(self, carry: Carry, first: int, last: int) -> tuple[Carry, Tally]:
        done = []
        for s, method in enumerate(self.methods):
            algorithm = method.build()
            now = jax.tree.map(lambda a, s=s: a[s, ...], carry)
            total = no_counts(len(algorithm.phases))
            for t in range(first, last):
                now, tally = self.round(s, algorithm, algorithm.phases, now, t)
                total = jax.tree.map(np.add, total, tally)
            done.append((now._replace(memory=None), total))
        now, total = jax.tree.map(lambda *a: np.stack(a), *done)
        # Memories, the bulk of it, were written in place.
        return now._replace(memory=carry.memory), total

    def round(
        self,
        s: int,
        algorithm: Algorithm,
        phases: tuple[Phase, ...],
        carry: Carry,
        t: int,
        everyone: bool = False,
    ) -> tuple[Carry, Tally]:
        M, key = len(self.rows.start), self.keys[s]
        share = (M, None) if everyone else (self.cohort, self.dropout)
        # Without their functions, which are new in every round, phases are alike.
        plain = tuple(Phase(p.name, keep, keep, resample=p.resample) for p in phases)
        members = jax.tree.map(np.asarray, members_of(plain, key, t, M, *share))
        answered = [int(m.answered.sum()) for m in members.values()]
        lost = 0 in answered
        memory = carry.memory
        exchange = partial(self.exchange, members, lost, key, t, memory)
        with torch.no_grad():
            project = partial(projected, self.rows.problem)
            state = tensors(carry.state)
            now = ({}, carry.drift)
            state, (_, drift) = run_round(phases, state, exchange, now, project, t)
        state = arrays(state)
        if lost:
            state, drift = carry.state, carry.drift
        if algorithm.mean is not None and (t + 1) % REFRESH == 0:
            mean = jax.tree.map(lambda a: a.mean(0), memory)
            state = state._replace(**{algorithm.mean: mean})
        whole = all(np.isfinite(a).all() for a in jax.tree.leaves(state.z))
        broken = carry.broken if whole or carry.broken >= 0 else np.int32(t + 1)
        rows = [int(self.rows.size[m.ids[m.asked]].sum()) for m in members.values()]
        asked = [int(m.asked.sum()) for m in members.values()]
        counts = (np.array(c, np.int32) for c in (asked, answered, rows, lost))
        drift = np.asarray(drift, carry.drift.dtype)
        return Carry(state, memory, drift, np.int32(broken)), Tally(*counts)

    def exchange(
        self,
        members: dict[str, Members],
        lost: bool,
        key: Key,
        t: int,
        memory: PyTree,
        phase: Phase,
        message: Any,
        carry: Any,
    ) -> Any:
        """Every client that is asked, in turn; what they renew is written in place."""
        kept, drift = carry
        ids, asked, answered = members[phase.name]
        roots = client_keys(key, t, phase.name, ids)
        total, moved, count = None, 0.0, 0
        for slot, i in enumerate(ids.tolist()):
            if not asked[slot]:
                continue
            # A copy: a reply may hold it still when it is renewed.
            copied = lambda a, i=i: torch.from_numpy(np.array(a[i, ...]))
            own = jax.tree.map(copied, memory)
            before = own if phase.resample or i not in kept else kept[i]
            f, turn = self.rows.objective(i), Turn(t, roots[slot])
            reply, kept[i] = phase.client(f, message, before, turn)
            reply = real(reply)
            if lost or not answered[slot]:
                continue
            count += 1
            plus = lambda a, b: a + b
            total = reply if total is None else jax.tree.map(plus, total, reply)
            if phase.delta is not None:
                moved += float(norm_sq(phase.delta(reply)))
            if phase.renew is not keep:
                renewed = phase.renew(own, reply)
                put = lambda a, b, i=i: np.copyto(a[i, ...], b.numpy())
                jax.tree.map(put, memory, renewed)
        if total is None:  # nobody answered: what follows from it is dropped
            total = reply  # type: ignore[possibly-unbound] # someone is always asked
        mean = jax.tree.map(lambda a: a / max(count, 1), total)
        drift = drift if phase.delta is None else moved / max(count, 1)
        return mean, count / len(self.rows.start), (kept, drift)

    @property
    def countable(self) -> int:
        return max(1, (2**31 - 1) // (self.cohort * int(self.rows.size.max())))

    def fetched(self, tree: Any) -> Any:
        """A copy, which later rounds leave alone."""
        return jax.tree.map(lambda a: np.array(a), tree)


def no_counts(phases: int) -> Tally:
    none = np.zeros(phases, np.int32)
    return Tally(none, none, none, np.zeros((), np.int32))


def torch_loop(
    methods: Sequence[Method],
    problem: Problem,
    federation: Federation,
    seeds: tuple[int, ...],
    metrics: tuple[str, ...],
    test: Table | None,
    start: Point | None,
    float64: bool,
    setting: dict[str, str],
    *,
    cohort: int,
    batch_size: int | None,
    dropout: float,
) -> TorchLoop:
    """The loop of a run, after a look at what is given."""
    keys = [root_key(np.uint32(seed)) for seed in seeds]
    found = [problem.init(key_of(key, "start")) for key in keys]
    starts = jax.tree.map(lambda *a: np.stack([np.asarray(b) for b in a]), *found)
    check_starts(problem, starts)
    if start is not None:
        starts = given_starts(start, starts)
    check_feasible(problem, starts)
    dtype = np.float64 if float64 else np.float32
    starts = jax.tree.map(lambda a: np.array(a, dtype), starts)
    rows = TorchRows.of(problem, federation, batch_size, dtype)
    z = jax.tree.map(lambda a: a[0, ...], starts)
    check_module(rows, z)
    look = TorchEvaluator(rows, federation, test, metrics)
    with jax.enable_x64(float64):
        recorder = Recorder(look, methods[0].build(), z, seeds, metrics)
    return TorchLoop(rows, methods, keys, starts, recorder, setting, cohort, dropout)


def check_module(rows: TorchRows, z: Point) -> None:
    """What a module and a loss give for two rows must fit."""
    for model in models_in(rows.problem):
        model.check(rows.table.features[:2])
    two = rows.cut(slice(0, 2), torch.arange(2))
    kind = type(rows.problem).__name__
    try:
        with torch.no_grad(), seeded(0):
            losses = rows.problem.loss(tensors(z), two, None)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, BadValue | BadKind):
            raise
        raise BadValue(
            f"the loss of {kind} does not fit the data: {first_line(error)}."
        ) from error
    count = len(two.label)
    shape = tuple(losses.shape) if torch.is_tensor(losses) else None
    if shape != (count,):
        found = f"a {type(losses).__name__}" if shape is None else f"shape {shape}"
        raise BadValue(
            f"the loss of {kind} must have one value per row, got {found} for {count} "
            "rows; leave their mean to sagda."
        )
