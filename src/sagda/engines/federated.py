"""The same rounds over clients that are elsewhere: server and sites exchange letters.

`Site` is a client's part and `Coordinator` the server's; neither knows how letters
travel. An algorithm's text runs here as it does in the simulator.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sagda.check import BadValue
from sagda.core import Algorithm, Phase, Point, PyTree, Turn, keep, run_round
from sagda.data.federation import Federation
from sagda.engines.cohort import cohort_of
from sagda.engines.setup import Setup
from sagda.engines.simulate import draw_starts
from sagda.keys import key_of, root_key
from sagda.methods import Method
from sagda.problems.base import Problem
from sagda.protocol.client import Cache, Client
from sagda.protocol.messages import Instruction, Mismatch, Refusal, Reply
from sagda.protocol.server import Book, Member, Server
from sagda.protocol.wire import Parcel, Refused, Spec


class Plan(NamedTuple):
    """What server and sites agree on before the first round."""

    method: Method
    problem: Problem
    run: str
    config: str  # the digest of the configuration
    seed: int
    batch_size: int | None
    cohort: int
    float64: bool = False

    @property
    def algorithm(self) -> Algorithm:
        return self.method.build()

    @property
    def dtype(self) -> Any:
        return jnp.float64 if self.float64 else jnp.float32

    def start(self) -> Point:
        """z_0, as the simulator draws it: in single precision, whatever the run's."""
        with jax.enable_x64(False):
            keys = jax.vmap(root_key)(np.array([self.seed], np.uint32))
            z = jax.tree.map(lambda a: a[0], draw_starts(self.problem, keys))
        with jax.enable_x64(self.float64):
            z = jax.tree.map(lambda a: jnp.asarray(a, self.dtype), z)
            return on_host(self.problem.project(z))

    def check(self) -> None:
        """Memories may be renewed in the last phase of a round only."""
        for phase in self.algorithm.phases[:-1]:
            if phase.renew is not keep:
                raise BadValue(
                    f"{self.method.name} renews memories in phase {phase.name!r}; "
                    "federations can do so in the last phase of a round only."
                )


def on_host(tree: PyTree) -> Any:
    return jax.tree.map(np.asarray, tree)


class Specs(NamedTuple):
    """What each phase sends, by name of the phase."""

    down: dict[str, Spec]
    up: dict[str, Spec]
    memory: Spec

    @classmethod
    def of(cls, plan: Plan) -> "Specs":
        """By tracing one client through the phases, without data."""
        from sagda.costs import Probe

        algorithm, z = plan.algorithm, plan.start()
        with jax.enable_x64(plan.float64):
            state = jax.eval_shape(algorithm.init, z)
            memory = jax.eval_shape(algorithm.memory, z)
            now, probe = jnp.zeros((), jnp.int32), Probe(plan.batch_size)
            turn = Turn(now, root_key(0))
            down, up, first = {}, {}, memory
            for phases in (algorithm.opening, algorithm.phases):
                kept = first
                for phase in phases:
                    kept = first if phase.resample else kept
                    message = jax.eval_shape(phase.broadcast, state)
                    work = lambda message, kept, phase=phase: phase.client(
                        probe, message, kept, turn
                    )
                    reply, kept = jax.eval_shape(work, message, kept)
                    down[phase.name], up[phase.name] = Spec.of(message), Spec.of(reply)
                    fold = lambda state, reply, phase=phase: phase.server(
                        state, reply, 1.0, now
                    )
                    state = jax.eval_shape(fold, state, reply)
        return cls(down, up, Spec.of(first))


class Letter(NamedTuple):
    """An instruction or an answer, its numbers as bytes."""

    note: Instruction | Reply | Mismatch  # with a parcel in the place of numbers
    number: int = 0  # the client's, from which its randomness follows


class Kept(NamedTuple):
    """What a client carries from phase to phase of one attempt at a round."""

    incarnation: int
    round: int
    value: Any


class Site:
    """A client: its rows stay here.

    Args:
        plan: what was agreed on.
        rows: a federation of one client.
        cache: what its disk holds.
        save: makes a cache durable.
        nonce: fresh random numbers.
    """

    def __init__(
        self,
        plan: Plan,
        rows: Federation,
        cache: Cache,
        save: Callable[[Cache], None],
        nonce: Callable[[], int],
    ):
        plan.check()
        self.plan, self.specs, algorithm = plan, Specs.of(plan), plan.algorithm
        self.phases = {p.name: p for p in (*algorithm.opening, *algorithm.phases)}
        # Those that begin with the client's memory, not with what a phase before kept.
        self.fresh = {p.name for p in self.phases.values() if p.resample}
        self.fresh |= {p.name for p in algorithm.opening} | {algorithm.phases[0].name}
        with jax.enable_x64(plan.float64):
            self.setup = Setup.of(
                plan.problem, rows, plan.dtype, cohort=1, batch_size=plan.batch_size
            )
            self.first = on_host(algorithm.memory(plan.start()))
        self.number = 0
        self.machine = Client(cache, save, self.compute, nonce)

    def handle(self, letter: Letter) -> Letter | None:
        """The answer to an instruction, or None."""
        told = letter.note
        assert isinstance(told, Instruction)
        self.number = letter.number
        message = self.specs.down[told.phase].unpack(told.message)
        memory = None
        if told.memory is not None:
            memory = self.specs.memory.unpack(told.memory)
        answer = self.machine.handle(told._replace(message=message, memory=memory))
        return None if answer is None else Letter(answer, letter.number)

    def compute(
        self, told: Instruction, memory: Any, kept: Kept | None
    ) -> tuple[Parcel, Any, Kept]:
        """The algorithm's own text, on this site's rows."""
        phase = self.phases[told.phase]
        memory = self.first if memory is None else memory
        same = kept is not None and kept[:2] == (told.ticket.incarnation, told.round)
        if phase.name in self.fresh:
            value = memory
        elif same and kept is not None:
            value = kept.value
        else:
            raise BadValue(f"phase {phase.name!r} came before the one that it needs.")
        with jax.enable_x64(self.plan.float64):
            run = program(phase.name)
            root = root_key(self.plan.seed)
            reply, value, new = on_host(
                run(self.setup, self.plan.method, root, self.number, told.round,
                    told.message, value, memory)
            )  # fmt: skip
        parcel = self.specs.up[phase.name].pack(reply)
        return parcel, new, Kept(told.ticket.incarnation, told.round, value)


@cache
def program(name: str) -> Callable:
    """A phase's work; rates are arguments, so the phase is built inside."""

    def work(setup, method, root, number, t, message, kept, memory):
        own = phase_of(method.build(), name)
        turn = Turn(t, key_of(root, t, name, number))
        reply, kept = own.client(setup.objective(0), message, kept, turn)
        return reply, kept, own.renew(memory, reply)

    return jax.jit(work)


def phase_of(algorithm: Algorithm, name: str) -> Phase:
    (own,) = [p for p in (*algorithm.opening, *algorithm.phases) if p.name == name]
    return own


class Transport(Protocol):
    """How letters travel: any order, some never."""

    def exchange(self, letters: Mapping[str, Letter]) -> Iterator[tuple[str, Letter]]:
        """Send each its letter; what came back before the deadline, as it comes."""
        ...


class TooFew(Exception):
    """A phase ended with fewer answers than a round needs."""


class Coordinator:
    """The server: rounds over a transport, with the protocol's machine below.

    Args:
        plan: what was agreed on.
        names: the clients; a client's number is its place among them, sorted.
        transport: how letters travel.
        save: makes a book durable.
        book: where to go on; a fresh run if None.
        clock: seconds since the epoch.
        min_clients: answers that every phase of a round needs, one or more.
        bound: on the length of a reply, or None.
    """

    def __init__(
        self,
        plan: Plan,
        names: list[str],
        transport: Transport,
        save: Callable[[Book], None],
        *,
        book: Book | None = None,
        clock: int = 0,
        min_clients: int = 1,
        bound: float | None = None,
    ):
        plan.check()
        self.plan, self.specs, self.transport = plan, Specs.of(plan), transport
        self.names, self.min_clients, self.bound = sorted(names), min_clients, bound
        self.refused: dict[str, int] = {}  # by code
        algorithm, z = plan.algorithm, plan.start()
        self.first = on_host(algorithm.memory(z))
        self.stateful = bool(jax.tree.leaves(self.first))
        fresh = book is None
        if book is None:
            members = {name: Member() for name in self.names}
            with jax.enable_x64(plan.float64):
                state = on_host(algorithm.init(z))
            book = Book(plan.run, plan.config, 0, 0, state, members)
        self.server = Server(book, clock, save, self.look, self.renew)
        if fresh and algorithm.opening:
            self.attempt(algorithm.opening, opening=True)

    # What the machine asks for.

    def look(self, phase: str, parcel: Any) -> Refusal | None:
        try:
            self.specs.up[phase].unpack(parcel, self.bound)
        except Refused as refused:
            return refused.refusal
        return None

    def renew(self, phase: str, memory: Any, parcel: Any) -> Any:
        if not self.stateful:
            return None
        algorithm = self.plan.algorithm
        (own,) = [p for p in (*algorithm.opening, *algorithm.phases) if p.name == phase]
        memory = self.first if memory is None else memory
        with jax.enable_x64(self.plan.float64):
            return on_host(own.renew(memory, self.specs.up[phase].unpack(parcel)))

    # Rounds.

    def run(self, rounds: int, attempts: int = 5) -> Any:
        """The server's state after `rounds` rounds in all; a failed one is repeated.

        `TooFew` if one fails that many times; what was committed before stays.
        """
        left = attempts
        while self.server.book.round < rounds:
            left = attempts if self.attempt(self.plan.algorithm.phases) else left - 1
            if not left:
                raise TooFew(
                    f"round {self.server.book.round} failed {attempts} times: fewer "
                    f"than {self.min_clients} clients answered."
                )
        return self.server.book.state

    def attempt(self, phases: tuple[Phase, ...], opening: bool = False) -> bool:
        """One round; False if it was abandoned, and nothing changed."""
        server, plan, t = self.server, self.plan, self.server.book.round
        everyone = list(server.book.members)
        asked: list[str] | None = everyone if opening else None

        def exchange(phase: Phase, message: Any, carry: Any) -> Any:
            nonlocal asked
            if not opening and (asked is None or phase.resample):
                ids = cohort_of(
                    root_key(plan.seed), t, phase, len(self.names), plan.cohort
                )
                chosen = [self.names[i] for i in np.asarray(ids)]
                asked = [name for name in chosen if name in server.book.members]
            assert asked is not None
            accepted = self.ask(phase.name, on_host(message), asked)
            if len(accepted) < self.min_clients:
                raise TooFew
            asked = sorted(accepted)
            replies = [
                self.specs.up[phase.name].unpack(accepted[name].payload)
                for name in asked
            ]
            mean = jax.tree.map(self.mean, *replies)
            return mean, len(replies) / len(server.book.members), phase.name

        try:
            with jax.enable_x64(plan.float64):
                now = jnp.asarray(t, jnp.int32)
                state, last = run_round(
                    phases, server.book.state, exchange, None, plan.problem.project, now
                )
                members = dict(server.book.members)
                if self.stateful:
                    members = server.renewed(last)
                    state = self.with_mean(state, members)
        except TooFew:
            server.abandon()
            return False
        if opening:
            server.commit(on_host(state), members, rounds=0)
        else:
            server.commit(on_host(state), members)
        return True

    def ask(self, phase: str, message: Any, names: list[str]) -> dict[str, Reply]:
        """One exchange; who lost its memory is sent it and asked once more."""
        self.server.abandon()
        parcel = self.specs.down[phase].pack(message)
        for _ in range(2):
            letters = {}
            for name in names:
                told = self.server.issue(name, phase, parcel)
                if told is not None:
                    if told.memory is not None:
                        told = told._replace(memory=self.specs.memory.pack(told.memory))
                    letters[name] = Letter(told, self.names.index(name))
            for name, letter in self.transport.exchange(letters):
                note = letter.note
                if isinstance(note, Instruction):
                    refusal = Refusal("format", f"{name} sent an instruction.")
                else:
                    refusal = self.server.receive(name, phase, note)
                if refusal is not None:
                    self.refused[refusal.code] = self.refused.get(refusal.code, 0) + 1
            names = [name for name in names if name in self.server.lost_memory]
            if not names:
                break
        return dict(self.server.accepted)

    def mean(self, *arrays: np.ndarray) -> np.ndarray:
        """In the order of names and in double precision, so that arrival is nothing."""
        total = np.zeros(arrays[0].shape, np.float64)
        for array in arrays:
            total = total + array
        return (total / len(arrays)).astype(arrays[0].dtype)

    def with_mean(self, state: Any, members: Mapping[str, Member]) -> Any:
        """The mean of all memories from the table itself: V over M, never a drift."""
        field = self.plan.algorithm.mean
        if field is None:
            return state
        held = [
            self.first if members[name].memory is None else members[name].memory
            for name in sorted(members)
        ]
        return state._replace(**{field: jax.tree.map(self.mean, *held)})
