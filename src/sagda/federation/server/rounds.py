"""The server's part of an algorithm: it computes and commits rounds over a transport.

`FederatedRounds` connects the code of the algorithm (`core.run_round`), the protocol
machine that accepts or refuses replies (`protocol.server`), and a transport. It does
not decide who takes part: see `server.federated_run`.
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
AROUND = 1 << 20  # limit of the bytes of an answer that are not arrays
# Codes of refusals that an honest site does not get. Each such refusal means that
# Multi-Krum has one false reply less to find.
POISON = (
    "nonfinite", "norm", "format", "keys", "dtype", "shape", "size", "unsigned",
    "stranger", "signature", "name", "run", "config", "version",
)  # fmt: skip


class TooFew(Exception):
    """Raised if a round must be abandoned: it has too few answers, or it diverged.

    See rule R4 in `federation/protocol`.
    """


def first_state(plan: Plan, names: Iterable[str]) -> ServerState:
    """Return the server's state before round 0, with the sites `names` as members.

    The numbers of the members are 0, 1, 2, ... in the order of their names.
    """
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
    """Return the refusal for a note that does not answer the letter that was sent."""
    if isinstance(note, Fault):
        return Refusal(note.code, note.text)
    kind = type(note).__name__
    return Refusal("format", f"{name} answered with a note of the wrong kind, {kind}.")


def finite(tree: Any) -> bool:
    """Return whether all floats of a tree are finite (no NaN, no infinity)."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return all(np.isfinite(a).all() for a in arrays if a.dtype.kind == "f")


def mean(*arrays: np.ndarray) -> np.ndarray:
    """Return the mean of the arrays, computed in double precision.

    The result is rounded to the type of the arrays. Callers pass the arrays sorted by
    name. The result is therefore bit-for-bit the same, whatever the order of arrival
    (rule R5 in `federation/protocol`).
    """
    return (added(*arrays) / len(arrays)).astype(arrays[0].dtype)


@dataclass
class Attempt:
    """The members that were asked and accepted in one attempt at a round, by name."""

    # Members asked in the present phase. None: the cohort is not drawn yet.
    asked: list[str] | None
    # Members asked in any phase of this attempt.
    ever: set[str] = field(default_factory=set)
    # Members with an accepted reply, sorted, by phase.
    accepted: dict[str, list[str]] = field(default_factory=dict)


class FederatedRounds:
    """Runs rounds over a transport. Each round is committed before the next one starts.

    Args:
        plan: the settled run.
        state: the server's state from which to start or resume.
        transport: carries the letters.
        save: (state, records) -> None. Makes both durable in one step.
        terms: the terms as JSON, which every letter to a site contains.
        rows: the number of rows by site, where known. It is used to count samples and
            to limit the size of answers.
        clock: seconds since 1970, from which the new incarnation is made.
        options: the least number of answers of a round, and the filter.
        notify: is called with every event.
        cohort: (phase) -> the names to ask. None: drawn from the seed of the run.
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
        self.records: list[Record] = []  # log lines that the next commit will write
        self.filtered: set[str] = set()  # names that the filter left out, this attempt
        self.failed = 0  # the number of abandoned attempts at the present round
        self.traffic: Traffic = state.traffic
        self.cohort = self.draw if cohort is None else cohort
        self.save_with_records = save
        self.protocol = ServerProtocol(state, clock, self.save, self.check, self.renew)

    @property
    def state(self) -> ServerState:
        """Return the newest durable state."""
        return self.protocol.state

    @property
    def variables(self) -> Any:
        """Return the state of the algorithm, with the mean V / M if it uses one.

        V is the sum of the control variates v_i of all M members.
        """
        name, state = self.algorithm.mean, self.state
        if name is None or not state.members:
            return state.variables
        # The mean is computed from the table each time, so rounding errors cannot add
        # up over the rounds.
        memories = memories_of(state.members, self.first)
        return state.variables._replace(**{name: jax.tree.map(mean, *memories)})

    # What the protocol machine calls.

    def save(self, state: ServerState) -> None:
        """Make a state durable, with the records since the last commit."""
        self.save_with_records(state, self.records)
        self.records = []

    def check(self, phase: str, parcel: Any) -> Refusal | None:
        """Return a refusal if a payload is not as specified, or None if it is."""
        try:
            self.specs.up[phase].unpack(parcel, self.options.bound)
        except Refused as refused:
            return refused.refusal
        return None

    def renew(self, phase: str, memory: Any, parcel: Any) -> Any:
        """Return v_i of a member after its reply, by the rule of the algorithm."""
        if not self.has_memory:
            return None
        memory = self.first if memory is None else memory
        reply = self.specs.up[phase].unpack(parcel)
        with jax.enable_x64(self.plan.float64):
            return on_host(phase_of(self.algorithm, phase).renew(memory, reply))

    # Rounds.

    def attempt(self) -> bool:
        """Run and commit one round. Return False if the round was abandoned.

        Before round 0, this runs and commits the opening exchange, if the algorithm has
        one. An abandoned round changes nothing (rule R4 in `federation/protocol`).
        """
        if not self.state.members:
            return False
        t, started = self.state.round, time.monotonic()
        opening = bool(self.algorithm.opening) and not self.state.opened
        # Every member takes part in the opening. In a round, `compute` draws a cohort.
        attempt = Attempt(self.state.order if opening else None)
        self.filtered.clear()
        try:
            variables, members = self.compute(opening, attempt)
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
                "accepted": attempt.accepted,
            }
        )
        self.failed = 0
        self.protocol.commit(variables, members, 0 if opening else 1, self.traffic)
        self.notify(Event.COMMITTED, round=self.state.round, accepted=attempt.accepted)
        return True

    def compute(self, opening: bool, attempt: Attempt) -> tuple[Any, dict[str, Member]]:
        """Return the state of the algorithm and the members after a round.

        Nothing is committed here. Raises `TooFew` if the round must be abandoned.
        """
        algorithm, t = self.algorithm, self.state.round
        phases = algorithm.opening if opening else algorithm.phases

        def exchange(phase: Phase, message: Any, carry: Any) -> Any:
            # `run_round` calls this once per phase. `message` is the broadcast, and the
            # result is the mean of the replies.
            if attempt.asked is None or (phase.resample and not opening):
                attempt.asked = self.cohort(phase)
            attempt.ever.update(attempt.asked)
            accepted = self.ask(phase.name, on_host(message), attempt.asked)
            if len(accepted) < self.options.min_clients:
                raise TooFew
            # The next phase asks only these sites: they have stored the values that it
            # needs.
            names = attempt.asked = attempt.accepted[phase.name] = sorted(accepted)
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
            # The mean V / M is not part of the state: it is computed from the table.
            variables = variables._replace(**{algorithm.mean: None})
        # A site whose answer was filtered has answered, so it does not count as absent.
        answered = [*attempt.accepted[last], *self.filtered]
        members = self.protocol.attended(members, attempt.ever, answered)
        return on_host(variables), members

    def draw(self, phase: Phase) -> list[str]:
        """Return the cohort S_t of the present round t, drawn from the seed of the run.

        A repeated round draws another cohort. Otherwise it would wait for the same
        absent sites again.
        """
        order, root = self.state.order, root_key(self.plan.seed)
        if self.failed:
            root = key_of(root, "attempt", self.failed)
        m = min(self.plan.cohort, len(order))
        ids = cohort_of(root, self.state.round, phase, len(order), m)
        return [order[i] for i in np.asarray(ids)]

    # Exchanges.

    def ask(self, phase: str, message: Any, names: list[str]) -> dict[str, Reply]:
        """Run one exchange, and return the accepted replies by name.

        A site that answers with a mismatch is asked a second time, with its v_i in the
        letter (rule R7 in `federation/protocol`).
        """
        self.protocol.abandon()
        liars: set[str] = set()  # sites with a refusal that honest sites do not get
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
        """Return the letter with an instruction to the member `name`."""
        memory = instruction.memory
        if memory is not None:
            memory = self.specs.memory.pack(memory)
        least = self.options.min_clients
        note = instruction._replace(memory=memory, min_clients=least)
        return Letter(note, self.state.members[name].number, self.terms)

    def leave_out(self, phase: str, liars: int) -> None:
        """Apply the filter: reject the accepted replies that it leaves out.

        `liars` is the number of false replies that were refused before, so Multi-Krum
        has fewer to find. V stays exact: the old v_i of a rejected member stays in the
        table, and its site deletes the pending one (rule R11 in `federation/protocol`).
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
        """Send letters with `send`, and count its letters in `traffic`."""
        framing = self.transport.framing
        for name, letter in letters.items():
            rows = {phase: self.rows.get(name, 0)}
            self.traffic = self.traffic.plus(
                down=letter.bytes, asked={phase: 1}, rows=rows
            )
        for name, letter in self.send(letters):
            self.traffic = self.traffic.plus(up=letter.bytes)
            yield name, letter
        self.traffic = self.traffic.plus(framing=self.transport.framing - framing)

    def send(
        self, letters: Mapping[str, Letter], seconds: float | None = None
    ) -> Iterator[tuple[str, Letter]]:
        """Send letters, and yield (name, answer) as answers arrive.

        The transport does not read answers above a size that this method computes.
        """
        # An answer is a reply, or the answer to a question. The factor 2 is for double
        # precision. The 64 bytes per row are for counts by score and single losses.
        specs = [self.specs.point, *self.specs.up.values()]
        arrays = 2 * max(spec.bytes for spec in specs)
        largest = AROUND + arrays + 64 * max(self.rows.values(), default=0)
        return self.transport.exchange(letters, largest=largest, seconds=seconds)

    # Commits outside of rounds.

    def note(self, record: Record) -> None:
        """Commit a line of the log, and the traffic since the last commit."""
        self.records.append(record)
        self.protocol.change(self.state.members, traffic=self.traffic)

    def join(self, name: str, rows: int) -> None:
        """Add a member whose site has `rows` rows."""
        self.rows[name] = rows
        self.protocol.join(name)

    def remove(self, name: str) -> None:
        """Remove a member and its v_i, with a line in the log."""
        self.records.append({"left": name})
        self.protocol.leave(name)

    def reset(self) -> None:
        """Begin a new epoch, in which every v_i has its first value; log it."""
        self.records.append({"reset": self.state.epoch + 1})
        self.protocol.reset()
