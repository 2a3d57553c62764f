"""The simulator for PyTorch models: the same text, run as it stands, client by client.

Cohorts, drop-outs and rows are drawn from the same keys as in the compiled engine.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from sagda import check
from sagda.check import BadValue
from sagda.core import Algorithm, Objective, Phase, Point, PyTree, Turn, keep, run_round
from sagda.data.federation import Federation, Table
from sagda.data.objective import Xi, drawn
from sagda.engines.checks import check_feasible, check_starts, given_starts
from sagda.engines.cohort import Members, draw_members
from sagda.engines.evaluate import Evaluation, Seen
from sagda.engines.loop import Loop
from sagda.engines.recorder import Recorder
from sagda.engines.rounds import REFRESH, Carry, Tally
from sagda.engines.run import Callback, Run, checked_resume
from sagda.engines.setup import Ops, numbers
from sagda.inner import norm_sq
from sagda.keys import Key, key_of, root_key
from sagda.methods import Method
from sagda.problems.base import Problem
from sagda.pytorch import arrays, models_in, real, seeded, tensors

BLOCK = 4096  # rows that an evaluation looks at together

draw_rows = jax.jit(drawn, static_argnums=(2, 3))
members_of = jax.jit(draw_members, static_argnums=(0, 3, 4))
client_keys = jax.jit(
    lambda key, t, name, ids: jax.vmap(lambda i: key_of(key, t, name, i))(ids),
    static_argnums=2,
)


class Rows(NamedTuple):
    """All clients' rows as tensors, and what their losses are."""

    problem: Any  # a `Problem` whose loss takes tensors; for noise it has no key, but
    # PyTorch's own generator, which is at the sample's place
    table: Any  # [rows, ...]
    start: np.ndarray
    size: np.ndarray
    batch_size: int | None

    @classmethod
    def of(
        cls,
        problem: Problem,
        federation: Federation,
        batch_size: int | None,
        dtype: Any,
    ) -> "Rows":
        data = tensors(numbers(problem.columns(federation)), dtype)
        return cls(problem, data, federation.start, federation.size, batch_size)

    def cut(self, rows: Any, position: Any) -> Any:
        batch = jax.tree.map(lambda column: column[rows], self.table)
        if isinstance(batch, Table):
            batch = batch._replace(position=position)
        return batch

    def objective(self, i: int) -> "Client":
        return Client(self, int(self.start[i]), int(self.size[i]))


class Client(Objective):
    """f_i by PyTorch."""

    def __init__(self, rows: Rows, start: int, size: int):
        self.rows, self.start, self.size = rows, start, size

    def draw(self, key: Key, count: int | None = None) -> Xi:
        xi = draw_rows(key, self.size, self.rows.batch_size, count)
        return jax.tree.map(np.asarray, xi)

    def whole(self, key: Key) -> Xi:
        return self.draw(key)._replace(position=None)

    def grad(self, z: Point, xi: Xi) -> Point:
        if xi.position is None:
            batch = self.rows.cut(
                slice(self.start, self.start + self.size), torch.arange(self.size)
            )
        else:
            position = torch.from_numpy(xi.position.astype(np.int64))
            batch = self.rows.cut(self.start + position, position)
        problem = self.rows.problem
        with seeded(*xi.seed.tolist()):
            found = gradient(lambda z: problem.loss(z, batch, None).mean(), z)
        return problem.treat(found)

    def project(self, z: Point) -> Point:
        return projected(self.rows.problem, z)


def gradient(value: Any, z: Any) -> Any:
    """The gradient of `value` at a tree of tensors."""
    leaves, structure = jax.tree.flatten(z)
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    with torch.enable_grad():
        total = value(jax.tree.unflatten(structure, leaves))
        found = torch.autograd.grad(total, leaves, allow_unused=True)
    found = [
        torch.zeros_like(a) if g is None else g
        for a, g in zip(leaves, found, strict=True)
    ]
    return jax.tree.unflatten(structure, found)


def projected(problem: Problem, z: Point) -> Point:
    """The feasible point nearest to z; JAX does it, for what is held in sets is small.

    What is held in none stays as it is.
    """
    back = lambda a, b: torch.from_numpy(np.array(a)).to(b)
    near = lambda project, tree: jax.tree.map(back, project(arrays(tree)), tree)
    if type(problem).project is not Problem.project:
        return near(problem.project, z)
    x_in, y_in = problem.sets()
    return Point(
        z.x if x_in is None else near(x_in.project, z.x),
        z.y if y_in is None else near(y_in.project, z.y),
    )


@contextlib.contextmanager
def precision(float64: bool) -> Iterator[None]:
    """What plain numbers become, in PyTorch and in JAX."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if float64 else torch.float32)
    try:
        with jax.enable_x64(float64):
            yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def evaluating(problem: Any) -> Iterator[None]:
    """Layers such as dropout do nothing meanwhile, and no gradients are kept."""
    models = models_in(problem)
    for model in models:
        model.train(False)
    try:
        with torch.no_grad():
            yield
    finally:
        for model in models:
            model.train(True)


class EagerLook:
    """An evaluation of every run, in blocks of rows."""

    def __init__(
        self,
        rows: Rows,
        federation: Federation,
        test: Table | None,
        metrics: tuple[str, ...],
    ):
        self.rows, self.metrics = rows, metrics
        self.batch_size, self.owner = rows.batch_size, federation.owner
        self.clients = federation.clients
        feature = jax.tree.leaves(rows.table)[0]
        self.weight = torch.from_numpy(federation.weight).to(feature.dtype)
        self.label = np.asarray(getattr(federation.data, "label", None))
        columns = None if test is None else Table(test.features, test.label)
        self.test = tensors(columns, feature.numpy().dtype)
        self.test_label = None if test is None else np.asarray(test.label)

    def blocks(self) -> Any:
        count = len(self.weight)
        for at in range(0, count, BLOCK):
            part = slice(at, min(at + BLOCK, count))
            position = torch.from_numpy(self.position[part])
            yield self.rows.cut(part, position), self.weight[part]

    @property
    def position(self) -> np.ndarray:
        return np.arange(len(self.weight)) - self.rows.start[self.owner]

    def __call__(self, seen: Seen) -> Evaluation:
        found = []
        with evaluating(self.rows.problem):
            for s in range(len(jax.tree.leaves(seen)[0])):
                own = jax.tree.map(lambda a, s=s: a[s, ...], seen)
                found.append(self.one(own._replace(z=tensors(own.z))))
        columns, scores, tests = zip(*found, strict=True)
        stacked = {name: np.array([c[name] for c in columns]) for name in columns[0]}
        some = lambda values: None if values[0] is None else list(values)
        return Evaluation(stacked, some(scores), some(tests))

    def one(self, seen: Seen) -> Evaluation:
        problem, z = self.rows.problem, seen.z
        values = [problem.loss(z, rows, None) for rows, _ in self.blocks()]
        losses = torch.cat(values).double().numpy()
        weight = self.weight.double().numpy()
        M = self.clients
        each = np.bincount(self.owner, M * weight * losses, minlength=M)
        columns = {"f": weight @ losses, "worst_client_loss": each.max()}
        y = self.best_y(z.x) if problem.measures_phi else None
        if y is None:
            grad = self.grad(z)
            columns |= {"grad_x_sq": float(norm_sq(grad.x))}
            columns |= {"grad_y_sq": float(norm_sq(grad.y))}
        else:
            best = Point(z.x, y)
            phi = sum(float(w @ problem.loss(best, r, None)) for r, w in self.blocks())
            columns |= {"grad_phi_sq": float(norm_sq(self.grad(best).x)), "phi": phi}
            columns["gap"] = phi - columns["f"]
        if type(problem).metrics is not Problem.metrics:
            whole = self.rows.cut(slice(None), torch.from_numpy(self.position))
            found = problem.metrics(z, whole, self.weight)
            columns |= {name: float(value) for name, value in found.items()}
        columns |= {name: self.optional(name, seen, columns) for name in self.metrics}
        score = lambda rows: problem.score(z.x, rows)
        scores = [score(rows) for rows, _ in self.blocks()]
        whole = None if scores[0] is None else torch.cat(scores).numpy()
        tests = None if self.test is None else score(self.test)
        return Evaluation(columns, whole, None if tests is None else tests.numpy())

    def grad(self, z: Point) -> Point:
        """Of f, summed over blocks."""
        problem = self.rows.problem
        parts = [
            gradient(lambda z, r=r, w=w: w @ problem.loss(z, r, None), z)
            for r, w in self.blocks()
        ]
        return reduce(Point.__add__, parts)

    def best_y(self, x: PyTree) -> PyTree | None:
        """In closed form, from sums over blocks; None where there is none."""
        problem = self.rows.problem
        parts = [problem.inner_sums(x, r, w) for r, w in self.blocks()]
        if parts[0] is None:
            return None
        sums = jax.tree.map(lambda *a: sum(a), *parts)
        like = jax.tree.leaves(x)[0].dtype
        y = tensors(problem.y_from(arrays(sums)))
        return jax.tree.map(lambda a: a.to(like), y)

    def optional(self, name: str, seen: Seen, columns: dict[str, Any]) -> float:
        if name == "drift":
            return float(seen.drift)
        if name == "potential":
            return columns["phi"] - columns["f"] / 10
        lag = 0.0
        for i in range(self.clients):
            f = self.rows.objective(i)
            v_i = jax.tree.map(lambda a, i=i: torch.from_numpy(a[i, ...]), seen.memory)
            lag += float(norm_sq(v_i - f.grad(seen.z, f.whole(root_key(0)))))
        return lag / self.clients


class EagerLoop(Loop):
    """Rounds one after the other; runs too. Carries are arrays with runs first."""

    def __init__(
        self,
        rows: Rows,
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
        self.layout, self.seeds, self.compile_seconds = "eager", len(methods), 0.0

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
            own = jax.tree.map(lambda a, i=i: torch.from_numpy(a[i, ...]), memory)
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

    def fetched(self, tree: Any) -> Any:
        """A copy, which later rounds leave alone."""
        return jax.tree.map(lambda a: np.array(a), tree)


def no_counts(phases: int) -> Tally:
    none = np.zeros(phases, np.int32)
    return Tally(none, none, none, np.zeros((), np.int32))


def eager_loop(
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
) -> EagerLoop:
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
    rows = Rows.of(problem, federation, batch_size, dtype)
    z = jax.tree.map(lambda a: a[0, ...], starts)
    check_module(rows, z)
    look = EagerLook(rows, federation, test, metrics)
    with jax.enable_x64(float64):
        recorder = Recorder(look, methods[0].build(), z, seeds, metrics)
    return EagerLoop(rows, methods, keys, starts, recorder, setting, cohort, dropout)


def check_module(rows: Rows, z: Point) -> None:
    """What a module and a loss give for two rows must fit."""
    for model in models_in(rows.problem):
        model.check(rows.table.features[:2])
    two = rows.cut(slice(0, 2), torch.arange(2))
    with torch.no_grad():
        losses = rows.problem.loss(tensors(z), two, None)
    count = len(two.label)
    if tuple(losses.shape) != (count,):
        raise BadValue(
            f"the loss of {type(rows.problem).__name__} must have one value per row, "
            f"got shape {tuple(losses.shape)} for {count} rows."
        )


def client_part(
    rows: Rows, phase: Phase, message: Any, kept: Any, memory: Any, turn: Turn
) -> tuple[Any, Any, Any]:
    """A phase at a site: the reply, what is kept, and the renewed memory."""
    double = jax.tree.leaves(rows.table)[0].dtype == torch.float64
    with precision(double), torch.no_grad():
        own = tensors(memory)
        reply, kept = phase.client(
            rows.objective(0), tensors(message), tensors(kept), turn
        )
        return arrays((reply, kept, phase.renew(own, reply)))


def eager_scores(problem: Any, x: Any, features: Any, block: int) -> np.ndarray:
    """[rows], in double precision."""
    x, parts = tensors(x, np.float64), [np.zeros(0)]
    with precision(True), evaluating(problem):
        for at in range(0, len(features), block):
            rows = tensors(np.asarray(features[at : at + block]), np.float64)
            parts.append(problem.score(x, Table(rows, None)).numpy())
    return np.concatenate(parts)


def value_and_grad(value: Any) -> Any:
    """As JAX's, for functions of tensors."""

    def both(first: Any, *others: Any) -> tuple[Any, Any]:
        return value(first, *others), gradient(lambda z: value(z, *others), first)

    return both


TORCH = Ops(torch.stack, value_and_grad)


def eager_sums(ask: Any, problem: Any, rows: Federation, z: Point) -> tuple[Any, Any]:
    """What a site is asked of its rows, and their scores, in double precision."""
    table = tensors(numbers(rows.data), np.float64)
    if isinstance(table, Table):
        table = table._replace(position=torch.arange(len(rows.weight)))
    weight, z = tensors(rows.weight, np.float64), tensors(z, np.float64)
    with precision(True), evaluating(problem):
        found = ask(problem, z, table, weight, TORCH)
        scores = problem.score(z.x, table)
        return arrays(found), None if scores is None else scores.numpy()
