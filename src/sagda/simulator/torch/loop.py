"""`TorchLoop`: the rounds of PyTorch models, one run and one client after the other.

Cohorts, drop-outs and rows are drawn with the same keys as in compiled runs. The
algorithm of a round is in `core.run_round`. Chunks, evaluations and callbacks are in
`simulator/loop.py`.
"""

from functools import partial
from typing import Any, NamedTuple, final

import jax
import numpy as np
import torch

from sagda.core import Algorithm, Phase, Point, PyTree, Turn, keep, run_round
from sagda.keys import Key, key_of, root_key
from sagda.models.torch import arrays, models_in, real, seeded, tensors
from sagda.problems.inner import norm_sq
from sagda.simulator.checks import check_losses, checked_starts
from sagda.simulator.cohort import Members, draw_members
from sagda.simulator.loop import RoundLoop, RunList
from sagda.simulator.recorder import Recorder
from sagda.simulator.rounds import REFRESH, Carry, Tally, no_counts
from sagda.simulator.run import Run
from sagda.simulator.torch.evaluator import TorchEvaluator
from sagda.simulator.torch.objective import TorchRows, projected

members_of = jax.jit(draw_members, static_argnums=(0, 3, 4))
client_keys = jax.jit(
    lambda key, t, name, ids: jax.vmap(lambda i: key_of(key, t, name, i))(ids),
    static_argnums=2,
)


class TorchExchange(NamedTuple):
    """The `exchange` function of one round: it computes the clients of a phase in turn.

    Its carry is a pair: the values `kept` of the clients by id, and the drift.
    """

    rows: TorchRows
    members: dict[str, Members]  # by the name of the phase
    lost: bool  # whether a phase of this round has no reply
    key: Key
    t: int
    memory: PyTree  # arrays [M, ...], in which renewed memories are written in place

    def __call__(self, phase: Phase, message: Any, carry: Any) -> Any:
        memory, (kept, drift) = self.memory, carry
        ids, asked, answered = self.members[phase.name]
        roots = client_keys(self.key, self.t, phase.name, ids)
        total, moved, count = None, 0.0, 0
        for slot, i in enumerate(ids.tolist()):
            if not asked[slot]:
                continue
            # A copy of the memory, since the reply may refer to it. The memory itself
            # is overwritten below.
            copied = lambda a, i=i: torch.from_numpy(np.array(a[i, ...]))
            before = jax.tree.map(copied, memory)
            start = before if phase.resample or i not in kept else kept[i]
            f, turn = self.rows.objective(i), Turn(self.t, roots[slot])
            reply, kept[i] = phase.client(f, message, start, turn)
            reply = real(reply)
            if self.lost or not answered[slot]:
                continue
            count += 1
            plus = lambda a, b: a + b
            total = reply if total is None else jax.tree.map(plus, total, reply)
            if phase.delta is not None:
                moved += float(norm_sq(phase.delta(reply)))
            if phase.renew is not keep:
                renewed = phase.renew(before, reply)
                put = lambda a, b, i=i: np.copyto(a[i, ...], b.numpy())
                jax.tree.map(put, memory, renewed)
        if total is None:  # there is no reply, so the round is lost and nobody uses it
            total = reply  # type: ignore[possibly-unbound] # at least one was asked
        mean = jax.tree.map(lambda a: a / max(count, 1), total)
        drift = drift if phase.delta is None else moved / max(count, 1)
        return mean, count / len(self.rows.start), (kept, drift)


@final
class TorchLoop(RoundLoop):
    """Rounds of PyTorch models. A carry has NumPy arrays, with the runs on axis 0."""

    def __init__(self, runs: RunList):
        """Draw the starts, check the model and turn the rows into tensors.

        The options were checked before.
        """
        options, problem, dtype = runs.options, runs.problem, runs.dtype
        self.keys = [root_key(np.uint32(seed)) for seed in runs.seeds]
        drawn = [problem.init(key_of(key, "start")) for key in self.keys]
        starts = jax.tree.map(lambda *a: np.stack([np.asarray(b) for b in a]), *drawn)
        starts = checked_starts(problem, starts, options.start)
        self.starts = jax.tree.map(lambda a: np.array(a, dtype), starts)
        self.rows = TorchRows.of(problem, runs.federation, options.batch_size, dtype)
        z = jax.tree.map(lambda a: a[0, ...], self.starts)
        check_module(self.rows, z)
        evaluator = TorchEvaluator(self.rows, runs.federation, options)
        with jax.enable_x64(options.float64):
            recorder = Recorder(evaluator, runs.methods[0].build(), z, runs.seeds)
        largest = runs.cohort * int(self.rows.size.max())
        super().__init__(runs, recorder, "torch", largest)

    def expected(self) -> Carry:
        return jax.tree.map(
            lambda *a: jax.ShapeDtypeStruct((len(a), *a[0].shape), a[0].dtype),
            *map(self.first, range(len(self.runs.seeds))),
        )

    def begin(self, resume: Run | None) -> tuple[Carry, int]:
        if resume:
            self.recorder.resume(resume.history, resume.ledger)
            return self.fetched(resume.carry), resume.round
        carries = [self.opened(s) for s in range(len(self.runs.seeds))]
        carry, tally = jax.tree.map(lambda *a: np.stack(a), *carries)
        self.recorder.open(tally)
        self.evaluate(carry, 0)
        return carry, 0

    def first(self, s: int) -> Carry:
        """Return the carry of run `s` before any exchange."""
        algorithm = self.runs.methods[s].build()
        z = jax.tree.map(lambda a: torch.from_numpy(a[s, ...].copy()), self.starts)
        z = projected(self.rows.problem, z)
        M = len(self.rows.start)
        spread = lambda a: np.repeat(arrays(a)[None], M, axis=0)
        memory = jax.tree.map(spread, algorithm.memory(z))
        state = arrays(algorithm.init(z))
        none = np.full((), np.nan, jax.tree.leaves(state.z)[0].dtype)
        return Carry(state=state, memory=memory, drift=none, broken=np.int32(-1))

    def opened(self, s: int) -> tuple[Carry, Tally]:
        """Return run `s` after the opening phases, in which all clients take part."""
        algorithm, carry = self.runs.methods[s].build(), self.first(s)
        if not algorithm.opening:
            return carry, no_counts(0)
        return self.round(s, algorithm, algorithm.opening, carry, 0, everyone=True)

    def advance(self, carry: Carry, first: int, last: int) -> tuple[Carry, Tally]:
        done = []
        for s, method in enumerate(self.runs.methods):
            algorithm = method.build()
            run = jax.tree.map(lambda a, s=s: a[s, ...], carry)
            total = no_counts(len(algorithm.phases))
            for t in range(first, last):
                run, tally = self.round(s, algorithm, algorithm.phases, run, t)
                total = jax.tree.map(np.add, total, tally)
            done.append((run._replace(memory=None), total))
        after, total = jax.tree.map(lambda *a: np.stack(a), *done)
        # Memories are the largest part of a carry. They are not copied, since the
        # rounds have written them in place.
        return after._replace(memory=carry.memory), total

    def round(
        self,
        s: int,
        algorithm: Algorithm,
        phases: tuple[Phase, ...],
        carry: Carry,
        t: int,
        everyone: bool = False,
    ) -> tuple[Carry, Tally]:
        """Compute round `t` of run `s`. Returns the new carry and the counts."""
        M, key = len(self.rows.start), self.keys[s]
        dropout = self.runs.options.dropout or None
        share = (M, None) if everyone else (self.runs.cohort, dropout)
        # `draw_members` is compiled for each new tuple of phases. The functions of a
        # phase are new objects in every chunk, so `plain` has phases without them.
        plain = tuple(Phase(p.name, keep, keep, resample=p.resample) for p in phases)
        members = jax.tree.map(np.asarray, members_of(plain, key, t, M, *share))
        answered = [int(m.answered.sum()) for m in members.values()]
        lost, memory = 0 in answered, carry.memory
        exchange = TorchExchange(
            rows=self.rows, members=members, lost=lost, key=key, t=t, memory=memory
        )
        with torch.no_grad():
            project = partial(projected, self.rows.problem)
            state = tensors(carry.state)
            start = ({}, carry.drift)
            state, (_, drift) = run_round(phases, state, exchange, start, project, t)
        state = arrays(state)
        if lost:
            state, drift = carry.state, carry.drift
        if algorithm.mean is not None and (t + 1) % REFRESH == 0:
            mean = jax.tree.map(lambda a: a.mean(0), memory)
            state = state._replace(**{algorithm.mean: mean})
        finite = all(np.isfinite(a).all() for a in jax.tree.leaves(state.z))
        broken = carry.broken if finite or carry.broken >= 0 else np.int32(t + 1)
        rows = [int(self.rows.size[m.ids[m.asked]].sum()) for m in members.values()]
        asked = [int(m.asked.sum()) for m in members.values()]
        after = Carry(
            state=state,
            memory=memory,
            drift=np.asarray(drift, carry.drift.dtype),
            broken=np.int32(broken),
        )
        count = partial(np.array, dtype=np.int32)  # 32 bits, as in compiled runs
        return after, Tally(
            sent=count(asked),
            replied=count(answered),
            rows=count(rows),
            lost=count(lost),
        )

    def fetched(self, tree: Any) -> Any:
        return jax.tree.map(lambda a: np.array(a), tree)


def check_module(rows: TorchRows, z: Point) -> None:
    """Raise unless the model and the loss return one value per row. Tries two rows."""
    for model in models_in(rows.problem):
        model.check(rows.table.features[:2])
    two = rows.cut(slice(0, 2), torch.arange(2))
    with torch.no_grad(), seeded(0):
        loss = partial(rows.problem.loss, tensors(z), two, None)
        check_losses(rows.problem, loss, torch.Tensor, len(two.label))
