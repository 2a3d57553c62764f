"""`FederatedRounds`: the server's part, round by round, over the protocol's machine."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sagda.core import Phase, run_round
from sagda.federation import filters
from sagda.federation.events import Event, Notify, nobody
from sagda.federation.plan import Plan, Specs, added, on_host, phase_of
from sagda.federation.protocol.letters import Fault, Letter
from sagda.federation.protocol.messages import Mismatch, Refusal, Reply
from sagda.federation.protocol.server import Member, ServerProtocol, ServerState
from sagda.federation.protocol.wire import Refused
from sagda.federation.server.traffic import Traffic
from sagda.federation.transport import Transport
from sagda.keys import key_of, root_key
from sagda.simulator.cohort import cohort_of

AROUND = 1 << 20  # bytes of an answer that are not arrays
Record = dict[str, Any]
# Refusals that only a false answer gets: fewer liars are left for a filter to find.
POISON = (
    "nonfinite", "norm", "format", "keys", "dtype", "shape", "size", "unsigned",
    "stranger", "signature", "name", "run", "config", "version",
)  # fmt: skip


class TooFew(Exception):
    """A phase ended with fewer answers than a round needs."""


def first_state(plan: Plan, names: Iterable[str]) -> ServerState:
    """A run at its start: numbers follow the order of names."""
    members = {name: Member(number=i) for i, name in enumerate(sorted(names))}
    algorithm, z = plan.algorithm, plan.start()
    with jax.enable_x64(plan.float64):
        state = on_host(algorithm.init(z))
    if algorithm.mean is not None:
        state = state._replace(**{algorithm.mean: None})
    return ServerState(plan.run, plan.config, 0, 0, state, members, ledger=Traffic())


def largest_answer(specs: Specs, rows: Mapping[str, int]) -> int:
    """Bytes: a phase's reply or the counts of every row's score, and the framing."""
    phases = max(spec.bytes for spec in specs.up.values())
    rows_of_largest = max(rows.values(), default=0)
    return AROUND + 2 * max(phases, specs.point.bytes) + 64 * rows_of_largest


def floats(tree: Any) -> list[np.ndarray]:
    arrays = [np.asarray(a) for a in jax.tree.leaves(tree)]
    return [a for a in arrays if a.dtype.kind == "f"]


class FederatedRounds:
    """Rounds over a transport.

    Args:
        plan: what was agreed on.
        book: where to begin, or to go on.
        transport: how letters travel.
        save: (book, records) makes both durable at once; records say what was done.
        terms: what clients are told of the plan.
        rows: by name, the rows of a client, where known: for counting samples.
        clock: seconds since the epoch.
        min_clients: answers that every phase of a round needs, one or more.
        bound: on the length of a reply, or None.
        filter: which answers are believed: see `sagda.federation.filters`.
        faulty: how many may be false, for multi-krum.
        factor: times the usual length that an answer may have.
        notify: is called with every event.
    """

    def __init__(
        self,
        plan: Plan,
        book: ServerState,
        transport: Transport,
        save: Callable[[ServerState, list[Record]], None],
        *,
        terms: str = "",
        rows: Mapping[str, int] | None = None,
        clock: int = 0,
        min_clients: int = 1,
        bound: float | None = None,
        filter: str = "none",
        faulty: int = 0,
        factor: float = 30.0,
        notify: Notify = nobody,
    ):
        plan.check()
        self.plan, self.specs, self.transport = plan, Specs.of(plan), transport
        self.terms, self.rows, self.notify = terms, rows or {}, notify
        self.min_clients, self.bound = min_clients, bound
        self.filter, self.faulty, self.factor = filter, faulty, factor
        self.algorithm = plan.algorithm
        with jax.enable_x64(plan.float64):
            self.first = on_host(self.algorithm.memory(plan.start()))
        self.stateful = bool(jax.tree.leaves(self.first))
        self.records: list[Record] = []
        self.sifted: set[str] = set()  # left out by the filter in this attempt
        self.failed = 0  # attempts at the present round that were abandoned
        self.ledger: Traffic = book.ledger or Traffic()
        self.keep = save
        self.server = ServerProtocol(book, clock, self.save, self.look_at, self.renew)

    @property
    def book(self) -> ServerState:
        return self.server.book

    # What the machine asks for.

    def save(self, book: ServerState) -> None:
        self.keep(book, self.records)
        self.records = []

    def look_at(self, phase: str, parcel: Any) -> Refusal | None:
        try:
            self.specs.up[phase].unpack(parcel, self.bound)
        except Refused as refused:
            return refused.refusal
        return None

    def renew(self, phase: str, memory: Any, parcel: Any) -> Any:
        if not self.stateful:
            return None
        own = phase_of(self.algorithm, phase)
        memory = self.first if memory is None else memory
        with jax.enable_x64(self.plan.float64):
            return on_host(own.renew(memory, self.specs.up[phase].unpack(parcel)))

    # Rounds.

    def run(self, rounds: int, attempts: int = 5) -> Any:
        """The server's state after `rounds` rounds in all; a failed one is repeated.

        `TooFew` if one fails that many times; what was committed before stays.
        """
        left = attempts
        while self.book.round < rounds:
            left = attempts if self.attempt() else left - 1
            if not left:
                raise TooFew(
                    f"round {self.book.round} failed {attempts} times: fewer than "
                    f"{self.min_clients} clients answered."
                )
        return self.state

    @property
    def state(self) -> Any:
        """The server's state, with the mean of all memories where it has one."""
        return self.with_mean(self.book.state, self.book.members)

    def attempt(self) -> bool:
        """One round, or first the opening; False if abandoned, and nothing changed."""
        if not self.book.members:
            return False
        opening = bool(self.algorithm.opening) and not self.book.opened
        phases = self.algorithm.opening if opening else self.algorithm.phases
        t, started = self.book.round, time.monotonic()
        asked: list[str] | None = self.book.order if opening else None
        ever: set[str] = set(asked or ())  # asked in this round
        accepted_in: dict[str, list[str]] = {}
        self.sifted.clear()

        def exchange(phase: Phase, message: Any, carry: Any) -> Any:
            nonlocal asked
            if not opening and (asked is None or phase.resample):
                asked = self.cohort(phase)
                ever.update(asked)
            accepted = self.ask(phase.name, on_host(message), asked or [])
            if len(accepted) < self.min_clients:
                raise TooFew
            asked = accepted_in[phase.name] = sorted(accepted)
            spec = self.specs.up[phase.name]
            replies = [spec.unpack(accepted[name].payload) for name in asked]
            share = len(replies) / len(self.book.members)
            return jax.tree.map(self.mean, *replies), share, phase.name

        try:
            with jax.enable_x64(self.plan.float64):
                now = jnp.asarray(t, jnp.int32)
                project = self.plan.problem.project
                state, last = run_round(
                    phases, self.state, exchange, None, project, now
                )
                members = dict(self.book.members)
                if self.stateful:
                    members = self.server.renewed(last)
            if not all(np.isfinite(a).all() for a in floats((state, members))):
                self.notify(Event.DIVERGED, round=t)
                raise TooFew
        except TooFew:
            self.server.abandon()
            self.failed += 1
            self.ledger = self.ledger.lose()
            self.notify(Event.ABANDONED, round=t)
            return False
        if self.algorithm.mean is not None:
            state = state._replace(**{self.algorithm.mean: None})
        heard = [*accepted_in[last], *self.sifted]  # who is not believed was there
        members = self.server.attended(members, ever, heard)
        self.ledger = self.ledger.spend(time.monotonic() - started)
        self.records.append(
            {
                "round": None if opening else t,
                "epoch": self.book.epoch,
                "members": {n: m.number for n, m in self.book.members.items()},
                "accepted": accepted_in,
            }
        )
        self.failed, rounds = 0, 0 if opening else 1
        self.server.commit(on_host(state), members, rounds, self.ledger)
        self.notify(Event.COMMITTED, round=self.book.round, accepted=accepted_in)
        return True

    def cohort(self, phase: Phase) -> list[str]:
        """S_t; a round that is repeated draws another one, lest it wait for ever."""
        order, root = self.book.order, root_key(self.plan.seed)
        if self.failed:
            root = key_of(root, "attempt", self.failed)
        m = min(self.plan.cohort, len(order))
        ids = cohort_of(root, self.book.round, phase, len(order), m)
        return [order[i] for i in np.asarray(ids)]

    def ask(self, phase: str, message: Any, names: list[str]) -> dict[str, Reply]:
        """One exchange; who lost its memory is sent it and asked once more."""
        self.server.abandon()
        caught: set[str] = set()
        parcel = self.specs.down[phase].pack(message)
        for _ in range(2):
            letters = {}
            for name in names:
                told = self.server.issue(name, phase, parcel)
                if told is not None:
                    if told.memory is not None:
                        told = told._replace(memory=self.specs.memory.pack(told.memory))
                    number = self.book.members[name].number
                    told = told._replace(together=self.min_clients)
                    letters[name] = Letter(told, number, self.terms)
            self.notify(Event.ASKED, phase=phase, names=sorted(letters))
            for name, letter in self.counted(phase, letters):
                note = letter.note
                if isinstance(note, Reply | Mismatch):
                    refusal = self.server.receive(name, phase, note)
                elif isinstance(note, Fault):
                    refusal = Refusal(*note)
                else:
                    kind = type(note).__name__
                    refusal = Refusal("format", f"{name} answered with a {kind}.")
                if refusal is None:
                    self.ledger = self.ledger.replied(phase)
                    self.notify(Event.ACCEPTED, name=name, phase=phase, letter=letter)
                else:
                    self.refuse(name, refusal, letter)
                    if refusal.code in POISON:
                        caught.add(name)
            names = [name for name in names if name in self.server.lost_memory]
            if not names:
                break
        self.sift(phase, len(caught))
        return dict(self.server.accepted)

    def sift(self, phase: str, caught: int) -> None:
        """Leave out what the filter does not believe; it was never accepted.

        `caught`: liars that were refused already; fewer are left to be found.
        """
        accepted, spec = self.server.accepted, self.specs.up[phase]
        faulty = max(0, self.faulty - caught)
        if len(accepted) < filters.least(self.filter, faulty):
            raise TooFew
        replies = {name: spec.unpack(accepted[name].payload) for name in accepted}
        out = filters.left_out(self.filter, faulty, self.factor, replies)
        for name, why in out.items():
            self.server.reject(name)
            self.sifted.add(name)
            self.refuse(name, Refusal("filtered", why))

    def note(self, record: Record) -> None:
        """Make a record durable, and the ledger with it."""
        self.records.append(record)
        self.server.change(self.book.members, ledger=self.ledger)

    def refuse(self, name: str, refusal: Refusal, letter: Letter | None = None) -> None:
        self.ledger = self.ledger.refuse(refusal.code)
        code, text = refusal
        self.notify(Event.REFUSED, name=name, code=code, text=text, letter=letter)

    def counted(self, phase: str, letters: Mapping[str, Letter]) -> Iterable[Any]:
        """An exchange, with what it sends and brings in the ledger."""
        framing = self.transport.framing
        for name, letter in letters.items():
            self.ledger = self.ledger.sent(phase, letter.bytes, self.rows.get(name, 0))
        for name, letter in self.exchange(letters):
            self.ledger = self.ledger.came(letter.bytes)
            yield name, letter
        self.ledger = self.ledger.framed(self.transport.framing - framing)

    def exchange(
        self, letters: Mapping[str, Letter], seconds: float | None = None
    ) -> Iterator[tuple[str, Letter]]:
        """Send letters through the transport, which bounds the answers' size."""
        largest = largest_answer(self.specs, self.rows)
        return self.transport.exchange(letters, largest=largest, seconds=seconds)

    # Means.

    def mean(self, *arrays: np.ndarray) -> np.ndarray:
        """In the order of names and in double precision, so that arrival is nothing."""
        return (added(*arrays) / len(arrays)).astype(arrays[0].dtype)

    def memories(self, members: Mapping[str, Member]) -> list[Any]:
        """Every member's memory, in the order of names."""
        held = [members[name].memory for name in sorted(members)]
        return [self.first if memory is None else memory for memory in held]

    def with_mean(self, state: Any, members: Mapping[str, Member]) -> Any:
        """The mean of all memories from the table itself: V over M, never a drift."""
        field = self.algorithm.mean
        if field is None or not members:
            return state
        return state._replace(
            **{field: jax.tree.map(self.mean, *self.memories(members))}
        )
