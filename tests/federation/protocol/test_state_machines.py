"""The protocol's state machines under random faults: exact after every commit."""

import random

import pytest

from sagda.federation.protocol.client import Cache, ClientProtocol
from sagda.federation.protocol.messages import Mismatch, Refusal, Reply
from sagda.federation.protocol.server import Member, ServerProtocol, ServerState

STEPS = 120
NAMES = ("a", "b", "c", "d")


class Crash(Exception):
    """The server's process ends in the middle of a commit."""


class Violation(AssertionError):
    """An invariant does not hold."""


class World:
    """A server, clients, their disks and a network, with faults drawn from a seed."""

    def __init__(self, seed, server=ServerProtocol, client=ClientProtocol):
        self.rng = random.Random(seed)
        self.server_kind, self.client_kind = server, client
        first = {name: Member(number=i) for i, name in enumerate(NAMES[:2])}
        self.state = ServerState("run", "digest", 0, 0, (0, 0), first)
        self.disks = {name: Cache() for name in NAMES}
        self.wiped: set[str] = set()  # clients that have lost their disk
        self.mail: list[tuple[str, object]] = []
        self.sent = 0  # instructions so far; each one has its number as message
        self.number: dict[tuple, int] = {}  # by client and ticket: the instruction
        self.crashing: int | None = None  # saves of the server until it crashes
        self.server = None
        self.clients: dict[str, ClientProtocol] = {}
        self.start_server()
        for name in NAMES:
            self.start_client(name)

    # The functions that the state machines call.

    def save_state(self, state):
        if self.crashing is not None:
            self.crashing -= 1
            if self.crashing == 0:
                raise Crash
        self.state = state
        if self.crashing is not None and self.crashing < 0:
            raise Crash

    def compute(self, name):
        def work(told, memory, kept):
            new = self.rng.randrange(1 << 30)
            return (told.message, new - (memory or 0)), new, None

        return work

    def check(self, phase, payload):
        return None if len(payload) == 2 else Refusal("shape", "a pair is needed.")

    @staticmethod
    def renew(phase, memory, payload):
        return (memory or 0) + payload[1]

    def start_server(self):
        clock = self.rng.randrange(4)  # a clock that can go backwards
        arguments = self.save_state, self.check, self.renew
        self.crashing = None
        self.server = self.server_kind(self.state, clock, *arguments)

    def start_client(self, name):
        self.clients[name] = self.client_kind(
            self.disks[name],
            lambda cache: self.disks.__setitem__(name, cache),
            self.compute(name),
            lambda: self.rng.getrandbits(128),
        )

    # The events that are drawn at random.

    def issue(self):
        name = self.rng.choice(NAMES)
        self.sent += 1
        told = self.server.issue(name, "local", self.sent)
        if told is not None:
            self.number[name, told.ticket] = self.sent
            self.mail.append((name, told))

    def deliver(self):
        """Deliver or lose any message. A delivered message can arrive again later."""
        if not self.mail:
            return
        place = self.rng.randrange(len(self.mail))
        name, message = self.mail[place]
        fate = self.rng.random()
        if fate < 0.85:
            self.mail.pop(place)
        if fate < 0.1:
            return
        if isinstance(message, Reply | Mismatch):
            self.receive(name, message)
        else:
            answer = self.clients[name].handle(message)
            if answer is not None and self.rng.random() > 0.1:
                self.mail.append((name, answer))

    def receive(self, name, reply):
        refusal = self.server.receive(name, "local", reply)
        if refusal is None:
            told = self.number[name, reply.ticket]
            if reply.payload[0] != told:
                raise Violation("a reply to another instruction was accepted")

    def close(self):
        if not self.server.accepted:
            return
        if self.rng.random() < 0.15:
            self.server.abandon()
            return
        members = self.server.renewed("local")
        self.commit(members)

    def commit(self, members):
        if self.rng.random() < 0.2:
            self.crashing = self.rng.choice((1, 0))  # before or after it is durable
        total = sum(member.memory or 0 for member in members.values())
        try:
            self.server.commit((self.server.state.round + 1, total), members)
        except Crash:
            self.start_server()
        self.crashing = None
        self.verify()

    def crash_server(self):
        self.start_server()

    def crash_client(self):
        self.start_client(self.rng.choice(NAMES))

    def lose_disk(self):
        name = self.rng.choice(NAMES)
        self.disks[name] = Cache()
        self.wiped.add(name)
        self.start_client(name)

    def register(self):
        name, fate = self.rng.choice(NAMES), self.rng.random()
        if fate < 0.1:
            self.server.reset()
        else:
            (self.server.join if fate < 0.6 else self.server.leave)(name)
        numbers = [member.number for member in self.state.members.values()]
        if len(set(numbers)) != len(numbers):
            raise Violation(f"two members with one number: {numbers}")
        total = sum(member.memory or 0 for member in self.state.members.values())
        self.state = self.state._replace(variables=(self.state.round, total))
        self.server.state = self.state

    # The invariants.

    def verify(self):
        """Check that V is the sum of the memories in the table and in the files."""
        state, total = self.state, 0
        for name, member in state.members.items():
            held = self.effective(name, member)
            if held is None:
                if name not in self.wiped:
                    raise Violation(f"{name} lost the version that was accepted of it")
                held = member.memory
            if held != (member.memory or 0):
                raise Violation(f"{name} holds {held}, the table {member.memory}")
            total += held
        if state.variables != (state.round, total):
            raise Violation(
                f"state {state.variables}, sum {total} in round {state.round}"
            )

    def effective(self, name, member):
        """Return the memory in a client's file with the version in the table."""
        cache = self.disks[name]
        if member.version is None:
            return 0
        if cache.pending is not None and cache.pending.version == member.version:
            return cache.pending.memory
        if cache.committed == member.version:
            self.wiped.discard(name)
            return cache.memory
        return None

    def run(self, steps=STEPS):
        events = [self.issue, self.deliver, self.close, self.crash_server]
        events += [self.crash_client, self.lose_disk, self.register]
        weights = [30, 60, 8, 1.5, 2, 0.7, 1.5]
        for event in self.rng.choices(events, weights, k=steps):
            event()
        self.heal()

    def heal(self):
        """Check that each member is accepted within three rounds without faults."""
        self.mail.clear()
        waiting = set(self.state.members)
        for _ in range(3):
            self.server.abandon()
            for name in sorted(self.state.members):
                for _ in range(2):
                    self.sent += 1
                    told = self.server.issue(name, "local", self.sent)
                    if told is None:
                        break
                    self.number[name, told.ticket] = self.sent
                    answer = self.clients[name].handle(told)
                    if answer is not None:
                        self.receive(name, answer)
            waiting -= set(self.server.accepted)
            self.crashing = None
            if self.server.accepted:
                members = self.server.renewed("local")
                total = sum(member.memory or 0 for member in members.values())
                self.server.commit((self.server.state.round + 1, total), members)
                self.verify()
        if waiting:
            raise Violation(f"{sorted(waiting)} were never accepted again")


def survive(count, first=0, **kinds):
    for seed in range(first, first + count):
        try:
            World(seed, **kinds).run()
        except Violation as found:
            raise Violation(f"seed {seed}: {found}") from None


def test_two_thousand_schedules_of_faults_leave_everything_exact():
    survive(2_000)


@pytest.mark.slow
def test_a_hundred_thousand_schedules_of_faults_leave_everything_exact():
    survive(100_000, first=10_000)


class SameIncarnation(ServerProtocol):
    """Breaks rule R1: each start of the server has the same incarnation."""

    def incarnated(self, state, clock):
        return state._replace(incarnation=1)


class AnyTicket(ServerProtocol):
    """Breaks rules R2 and R3: a reply to an old ticket is accepted."""

    def is_live(self, name, ticket):
        return name in self.live


class TwoWrites(ServerProtocol):
    """Breaks rule R5: the table is written first, and the state after it."""

    def commit(self, state, members, rounds=1, traffic=None):
        self.save(self.state._replace(members=dict(members)))
        super().commit(state, members)


class TellsEarly(ServerProtocol):
    """Breaks rule R6: a client is told an accepted version before it is durable."""

    def issue(self, name, phase, message):
        reply = self.accepted.pop(name, None)
        told = super().issue(name, phase, message)
        if reply is not None and told is not None:
            self.accepted[name] = reply
            return told._replace(accepted=reply.version)
        return told


class KeepsSilent(ServerProtocol):
    """Breaks rule R7: the server does not send the memory after a mismatch."""

    def mismatched(self, name):
        return Refusal("mismatch", "")


class ActsAgain(ClientProtocol):
    """Breaks rule R9: the client acts on old tickets."""

    def is_old(self, told):
        return False


class CommitsAtOnce(ClientProtocol):
    """Breaks rule R11: the client commits each new memory, accepted or not."""

    def reconciled(self, told):
        pending = self.cache.pending
        if pending is None or told.memory is not None:
            return super().reconciled(told)
        return Cache(told.accepted, pending.memory, None, self.cache.high)


class Forgetful(ClientProtocol):
    """Breaks rule R12: the client answers before its new memory is durable."""

    def persist(self, cache):
        self.cache = cache


@pytest.mark.parametrize(
    "kinds",
    [
        {"server": SameIncarnation},
        {"server": AnyTicket},
        {"server": TwoWrites},
        {"server": TellsEarly},
        {"server": KeepsSilent},
        {"client": ActsAgain},
        {"client": CommitsAtOnce},
        {"client": Forgetful},
    ],
    ids=["R1", "R2 and R3", "R5", "R6", "R7", "R9", "R11", "R12"],
)
def test_without_a_rule_the_schedules_find_it_out(kinds):
    with pytest.raises(Violation):
        survive(2_000, **kinds)


def pair():
    """Return a world without faults, an instruction to client a, and its reply."""
    world = World(0)
    told = world.server.issue("a", "local", 7)
    return world, told, world.clients["a"].handle(told)


def test_a_reply_counts_once():
    world, _, reply = pair()
    assert world.server.receive("a", "local", reply) is None
    assert world.server.receive("a", "local", reply).code == "twice"


def test_a_reply_to_a_retired_ticket_is_refused():
    world, _, reply = pair()
    world.server.issue("a", "local", 8)
    assert world.server.receive("a", "local", reply).code == "ticket"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"run": "another"}, "run"),
        ({"config": "another"}, "config"),
        ({"payload": (1, 2, 3)}, "shape"),
    ],
)
def test_other_replies_are_refused_with_a_code(change, code):
    world, _, reply = pair()
    assert world.server.receive("a", "local", reply._replace(**change)).code == code
    assert world.server.receive("a", "local", reply) is None


def test_a_reply_from_another_memory_is_refused():
    world, _, reply = pair()
    wrong = reply._replace(base=reply.version)
    assert world.server.receive("a", "local", wrong).code == "base"


def test_strangers_are_refused():
    world, _, reply = pair()
    assert world.server.receive("z", "local", reply).code == "unknown"
    assert world.server.issue("z", "local", 1) is None


def test_an_instruction_that_comes_twice_gets_the_same_answer():
    world, told, reply = pair()
    assert world.clients["a"].handle(told) is reply
    world.start_client("a")  # restarts with the state on its disk
    assert world.clients["a"].handle(told) == reply


def test_who_was_long_away_is_named():
    world, _, reply = pair()
    server = world.server
    server.receive("a", "local", reply)
    members = server.attended(server.renewed("local"), ["a", "b"], ["a"])
    server.commit((1, 0), members)
    assert server.absent(1) == ["b"]
    assert server.absent(2) == []
    # A member misses a round only if it was asked. An answer sets the count to zero.
    assert server.attended(members, ["a"], ["a"])["b"].missed == 1
    assert server.attended(members, ["b"], ["b"])["b"].missed == 0
