"""The server's part of an algorithm, round by round, over a transport.

`FederatedRounds` connects three things: the algorithm's code (`core.run_round`), the
protocol machine that decides which replies count (`protocol.server`), and a transport.
It makes no decisions about who takes part: see `server.federated_run`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sagda.core import Phase, run_round
from sagda.federation import filters
from sagda.federation.events import Event, Notify, nobody
from sagda.federation.plan import Plan, Specs, added, on_host, phase_of
from sagda.federation.protocol.letters import Fault, Letter
from sagda.federation.protocol.messages import Instruction, Mismatch, Refusal, Reply
from sagda.federation.protocol.server import Member, ServerProtocol, ServerState
from sagda.federation.protocol.wire import Refused
from sagda.federation.server.store import Record, memories_of
from sagda.federation.server.traffic import Traffic
from sagda.federation.terms import Options
from sagda.federation.transport import Transport
from sagda.keys import key_of, root_key
from sagda.simulator.cohort import cohort_of

UNFILTERED = Options(min_clients=1, filter="none")  # every answer is used
AROUND = 1 << 20  # bytes of an answer that are not arrays
# Refusals that only a false answer gets. Multi-Krum then has fewer liars left to find.
POISON = (
    "nonfinite", "norm", "format", "keys", "dtype", "shape", "size", "unsigned",
    "stranger", "signature", "name", "run", "config", "version",
)  # fmt: skip


class TooFew(Exception):
    """A phase ended with fewer answers than a round needs (R4)."""


def first_state(plan: Plan, names: Iterable[str]) -> ServerState:
    """The server's state before round 0. Members are numbered in the order of names."""
    members = {name: Member(number=i) for i, name in enumerate(sorted(names))}
    return ServerState(
        run=plan.run,
        config=plan.config,
        incarnation=0,
        round=0,
        variables=plan.initial_variables(),
        members=members,
        traffic=Traffic(),
    )


def no_answer(name: str, note: Any) -> Refusal:
    """Why a note is refused that is not of the kind that was asked for."""
    if isinstance(note, Fault):
        return Refusal(note.code, note.text)
    kind = type(note).__name__
    return Refusal("format", f"{name} answered with a note of kind {kind}.")


def finite(tree: Any) -> bool:
    """Whether no float of a tree is NaN or infinite."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return all(np.isfinite(a).all() for a in arrays if a.dtype.kind == "f")


def mean(*arrays: np.ndarray) -> np.ndarray:
    """The mean in double precision, rounded to the arrays' own type.

    Callers give arrays in the order of names, so the order of arrival changes no bit
    (R5).
    """
    return (added(*arrays) / len(arrays)).astype(arrays[0].dtype)


@dataclass
class Exchanges:
    """The exchanges of one attempt at a round: who is asked, and who was accepted."""

    asked: list[str] | None  # in the present phase; None: a cohort is still to be drawn
    ever: set[str] = field(default_factory=set)  # in any phase of this attempt
    accepted: dict[str, list[str]] = field(default_factory=dict)  # by phase, sorted


class FederatedRounds:
    """Runs rounds over a transport, each committed before the next one starts.

    Args:
        plan: the settled run.
        state: the server's state to start or resume from.
        transport: carries the letters.
        save: (state, records) makes both durable at once.
        terms: the terms that every letter to a site contains.
        rows: the number of rows by site, where known. It counts samples and bounds the
            size of answers.
        clock: seconds since 1970.
        options: how many answers a round needs, and which of them it uses.
        notify: is called with every event.
        cohort: (phase) -> the names to ask, in place of the draw by the run's seed.
    """

    def __init__(
        self,
        plan: Plan,
        state: ServerState,
        transport: Transport,
        save: Callable[[ServerState, list[Record]], None],
        *,
        terms: str = "",
        rows: Mapping[str, int] | None = None,
        clock: int = 0,
        options: Options = UNFILTERED,
        notify: Notify = nobody,
        cohort: Callable[[Phase], list[str]] | None = None,
    ):
        plan.check()
        self.plan, self.specs, self.transport = plan, Specs.of(plan), transport
        self.terms, self.rows, self.notify = terms, dict(rows or {}), notify
        self.options = options
        self.algorithm, self.first = plan.algorithm, plan.initial_memory()
        self.has_memory = bool(jax.tree.leaves(self.first))
        self.records: list[Record] = []  # of the next commit
        self.filtered: set[str] = set()  # left out by the filter in this attempt
        self.failed = 0  # attempts at the present round that were abandoned
        self.traffic: Traffic = state.traffic
        self.cohort = self.draw if cohort is None else cohort
        self.save_with_records = save
        self.protocol = ServerProtocol(state, clock, self.save, self.check, self.renew)

    @property
    def state(self) -> ServerState:
        """The newest durable state."""
        return self.protocol.state

    @property
    def variables(self) -> Any:
        """The algorithm's state, with the mean of all memories if it has one."""
        name, state = self.algorithm.mean, self.state
        if name is None or not state.members:
            return state.variables
        # V / M comes from the table itself, so that errors cannot add up.
        memories = memories_of(state.members, self.first)
        return state.variables._replace(**{name: jax.tree.map(mean, *memories)})

    # What the protocol machine calls.

    def save(self, state: ServerState) -> None:
        """Make a state durable, together with the records since the last commit."""
        self.save_with_records(state, self.records)
        self.records = []

    def check(self, phase: str, parcel: Any) -> Refusal | None:
        """R3: why a payload is refused, if it is."""
        try:
            self.specs.up[phase].unpack(parcel, self.options.bound)
        except Refused as refused:
            return refused.refusal
        return None

    def renew(self, phase: str, memory: Any, parcel: Any) -> Any:
        """A member's memory after its reply: the algorithm's own rule."""
        if not self.has_memory:
            return None
        memory = self.first if memory is None else memory
        reply = self.specs.up[phase].unpack(parcel)
        with jax.enable_x64(self.plan.float64):
            return on_host(phase_of(self.algorithm, phase).renew(memory, reply))

    # Rounds.

    def attempt(self) -> bool:
        """Run and commit one round (before round 0 the opening, if there is one).

        Returns False if the round was abandoned, and changed nothing (R4).
        """
        if not self.state.members:
            return False
        t, started = self.state.round, time.monotonic()
        opening = bool(self.algorithm.opening) and not self.state.opened
        # Every member takes part in the opening; cohorts are drawn in rounds.
        exchanges = Exchanges(self.state.order if opening else None)
        self.filtered.clear()
        try:
            variables, members = self.compute(opening, exchanges)
        except TooFew:
            self.protocol.abandon()
            self.failed += 1
            self.traffic = self.traffic.plus(lost=1)
            self.notify(Event.ABANDONED, round=t)
            return False
        self.traffic = self.traffic.plus(seconds=time.monotonic() - started)
        self.records.append(
            {
                "round": None if opening else t,
                "epoch": self.state.epoch,
                "members": {n: m.number for n, m in self.state.members.items()},
                "accepted": exchanges.accepted,
            }
        )
        self.failed = 0
        self.protocol.commit(variables, members, 0 if opening else 1, self.traffic)
        self.notify(
            Event.COMMITTED, round=self.state.round, accepted=exchanges.accepted
        )
        return True

    def compute(
        self, opening: bool, exchanges: Exchanges
    ) -> tuple[Any, dict[str, Member]]:
        """The algorithm's state and the members after a round, not yet committed."""
        algorithm, t = self.algorithm, self.state.round
        phases = algorithm.opening if opening else algorithm.phases

        def exchange(phase: Phase, message: Any, carry: Any) -> Any:
            # `run_round` calls this once a phase: broadcast in, mean of replies out.
            if exchanges.asked is None or (phase.resample and not opening):
                exchanges.asked = self.cohort(phase)
            exchanges.ever.update(exchanges.asked)
            accepted = self.ask(phase.name, on_host(message), exchanges.asked)
            if len(accepted) < self.options.min_clients:
                raise TooFew
            # Only accepted sites are asked in the next phase: they carry its values.
            names = exchanges.asked = exchanges.accepted[phase.name] = sorted(accepted)
            spec = self.specs.up[phase.name]
            replies = [spec.unpack(accepted[name].payload) for name in names]
            share = len(replies) / len(self.state.members)
            return jax.tree.map(mean, *replies), share, phase.name

        with jax.enable_x64(self.plan.float64):
            now = jnp.asarray(t, jnp.int32)
            project = self.plan.problem.project
            variables, last = run_round(
                phases, self.variables, exchange, None, project, now
            )
            members = dict(self.state.members)
            if self.has_memory:
                members = self.protocol.renewed(last)
        if not finite((variables, members)):
            self.notify(Event.DIVERGED, round=t)
            raise TooFew
        if algorithm.mean is not None:
            # V is computed from the table at each commit, never carried along.
            variables = variables._replace(**{algorithm.mean: None})
        # A site whose answer was filtered did answer: it is not absent.
        answered = [*exchanges.accepted[last], *self.filtered]
        members = self.protocol.attended(members, exchanges.ever, answered)
        return on_host(variables), members

    def draw(self, phase: Phase) -> list[str]:
        """S_t: the cohort that the run's seed draws.

        A repeated round draws another one, or it would wait for the same absent sites.
        """
        order, root = self.state.order, root_key(self.plan.seed)
        if self.failed:
            root = key_of(root, "attempt", self.failed)
        m = min(self.plan.cohort, len(order))
        ids = cohort_of(root, self.state.round, phase, len(order), m)
        return [order[i] for i in np.asarray(ids)]

    # Exchanges.

    def ask(self, phase: str, message: Any, names: list[str]) -> dict[str, Reply]:
        """One exchange: the accepted replies by name.

        A site with a mismatch is sent its memory, and asked a second time (R7).
        """
        self.protocol.abandon()
        liars: set[str] = set()  # refused for an answer that only a liar gives
        parcel = self.specs.down[phase].pack(message)
        for _ in range(2):
            letters = {}
            for name in names:
                instruction = self.protocol.issue(name, phase, parcel)
                if instruction is not None:
                    letters[name] = self.letter(name, instruction)
            self.notify(Event.ASKED, phase=phase, names=sorted(letters))
            for name, letter in self.counted(phase, letters):
                refusal = no_answer(name, letter.note)
                if isinstance(letter.note, Reply | Mismatch):
                    refusal = self.protocol.receive(name, phase, letter.note)
                if refusal is None:
                    self.traffic = self.traffic.plus(answers={phase: 1})
                    self.notify(Event.ACCEPTED, name=name, phase=phase, letter=letter)
                else:
                    self.refuse(name, refusal, letter)
                    if refusal.code in POISON:
                        liars.add(name)
            names = [name for name in names if name in self.protocol.lost_memory]
            if not names:
                break
        self.leave_out(phase, len(liars))
        return dict(self.protocol.accepted)

    def letter(self, name: str, instruction: Instruction) -> Letter:
        """An instruction as a letter, its memory packed."""
        memory = instruction.memory
        if memory is not None:
            memory = self.specs.memory.pack(memory)
        least = self.options.min_clients
        note = instruction._replace(memory=memory, min_clients=least)
        return Letter(note, self.state.members[name].number, self.terms)

    def leave_out(self, phase: str, liars: int) -> None:
        """Take back the accepted replies that the filter does not believe.

        `liars` were refused before, so multi-krum must find fewer. To leave a reply out
        is exact: the member's old v_i stays in V, and its site drops the pending one
        (R11).
        """
        accepted, spec = self.protocol.accepted, self.specs.up[phase]
        filter, factor = self.options.filter, self.options.norm_factor
        faulty = max(0, self.options.faulty - liars)
        if len(accepted) < filters.least(filter, faulty):
            raise TooFew
        replies = {name: spec.unpack(accepted[name].payload) for name in accepted}
        reasons = filters.left_out(filter, faulty, factor, replies)
        for name, why in reasons.items():
            self.protocol.reject(name)
            self.filtered.add(name)
            self.refuse(name, Refusal("filtered", why))

    def refuse(self, name: str, refusal: Refusal, letter: Letter | None = None) -> None:
        """Count a refused answer and notify the listener."""
        self.traffic = self.traffic.plus(refused={refusal.code: 1})
        code, text = refusal
        self.notify(Event.REFUSED, name=name, code=code, text=text, letter=letter)

    def counted(
        self, phase: str, letters: Mapping[str, Letter]
    ) -> Iterator[tuple[str, Letter]]:
        """An exchange whose letters are counted in `traffic`."""
        framing = self.transport.framing
        for name, letter in letters.items():
            rows = {phase: self.rows.get(name, 0)}
            self.traffic = self.traffic.plus(
                down=letter.bytes, asked={phase: 1}, rows=rows
            )
        for name, letter in self.exchange(letters):
            self.traffic = self.traffic.plus(up=letter.bytes)
            yield name, letter
        self.traffic = self.traffic.plus(framing=self.transport.framing - framing)

    def exchange(
        self, letters: Mapping[str, Letter], seconds: float | None = None
    ) -> Iterator[tuple[str, Letter]]:
        """Send letters through the transport, which bounds the size of answers."""
        # An answer is a reply, or a gradient with counts by score of every row.
        specs = [self.specs.point, *self.specs.up.values()]
        arrays = 2 * max(spec.bytes for spec in specs)
        largest = AROUND + arrays + 64 * max(self.rows.values(), default=0)
        return self.transport.exchange(letters, largest=largest, seconds=seconds)

    # Commits outside of rounds.

    def note(self, record: Record) -> None:
        """Commit a record, together with the traffic so far."""
        self.records.append(record)
        self.protocol.change(self.state.members, traffic=self.traffic)

    def join(self, name: str, rows: int) -> None:
        """Add a member that has `rows` rows."""
        self.rows[name] = rows
        self.protocol.join(name)

    def remove(self, name: str) -> None:
        """R13: remove a member with its v_i, and record it."""
        self.records.append({"left": name})
        self.protocol.leave(name)

    def reset(self) -> None:
        """R8: set every v_i back to its first value, and record it."""
        self.records.append({"reset": self.state.epoch + 1})
        self.protocol.reset()
