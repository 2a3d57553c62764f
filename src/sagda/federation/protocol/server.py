"""The server's side: the book that a commit makes durable, and who may change it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from sagda.federation.protocol.messages import (
    Instruction,
    Mismatch,
    Refusal,
    Reply,
    Ticket,
    Version,
)


class Member(NamedTuple):
    """A registered client: its memory, and which version of it that is."""

    version: Version | None = None
    memory: Any = None  # None: the first value
    missed: int = 0  # rounds in a row in which it was asked and not accepted
    number: int = 0  # its place in draws, the same for as long as it is a member


class ServerState(NamedTuple):
    """All that outlives the server: one commit replaces it as a whole."""

    run: str
    config: str
    incarnation: int
    round: int
    state: Any  # without the mean of all memories, which is V over M
    members: Mapping[str, Member]  # its length is M
    epoch: int = 0  # how often all memories were set back
    ledger: Any = None  # what was exchanged so far
    opened: bool = False  # whether the opening exchange is done

    @property
    def order(self) -> list[str]:
        """The members in the order of their numbers, as cohorts are drawn."""
        return sorted(self.members, key=lambda name: self.members[name].number)


class ServerProtocol:
    """Issues tickets, accepts what they allow, and commits rounds.

    Args:
        book: the newest durable book.
        clock: seconds since the epoch; incarnations follow it, but never fall behind.
        save: makes a book durable; returns only when it is.
        check: (phase, payload) -> a refusal, or None if the payload is as specified.
        renew: (phase, memory, payload) -> the client's memory after this reply.
    """

    def __init__(
        self,
        book: ServerState,
        clock: int,
        save: Callable[[ServerState], None],
        check: Callable[[str, Any], Refusal | None],
        renew: Callable[[str, Any, Any], Any],
    ):
        self.save, self.check, self.renew = save, check, renew
        self.book = self.born(book, clock)
        save(self.book)
        self.counter = 0
        self.live: dict[str, Ticket] = {}
        self.accepted: dict[str, Reply] = {}
        self.lost_memory: set[str] = set()

    def born(self, book: ServerState, clock: int) -> ServerState:
        """R1: every start has a larger incarnation, durable before the first ticket."""
        return book._replace(incarnation=max(book.incarnation + 1, clock))

    def issue(self, name: str, phase: str, message: Any) -> Instruction | None:
        """R2: a new ticket retires the old one; none for who was accepted already."""
        if name in self.accepted or name not in self.book.members:
            return None
        self.counter += 1
        self.live[name] = ticket = Ticket(self.book.incarnation, self.counter)
        member = self.book.members[name]  # R6: only what is durable is told
        memory = member.memory if name in self.lost_memory else None
        return Instruction(
            self.book.run,
            self.book.config,
            ticket,
            self.book.round,
            phase,
            member.version,
            message,
            memory,
            self.book.epoch,
        )

    def receive(self, name: str, phase: str, reply: Reply | Mismatch) -> Refusal | None:
        """None if the reply is accepted; it then counts once, wholly, at the commit."""
        if name not in self.book.members:
            return Refusal("unknown", f"{name} is not registered.")
        if reply.run != self.book.run:
            return Refusal("run", f"{name} answered another run.")
        if not self.is_live(name, reply.ticket):
            return Refusal("ticket", f"{name} answered a ticket that is not its last.")
        if reply.config != self.book.config:
            return Refusal("config", f"{name} has another configuration.")
        if isinstance(reply, Mismatch):
            return self.mismatched(name)
        if reply.epoch != self.book.epoch:
            return Refusal("epoch", f"{name} answered before all was set back.")
        if self.is_second(name):
            return Refusal("twice", f"{name} had answered already.")
        if reply.base != self.book.members[name].version:
            return Refusal("base", f"{name} started from another memory.")
        if reply.version.ticket != reply.ticket:
            return Refusal("version", f"{name} named its memory after another ticket.")
        if (refusal := self.check(phase, reply.payload)) is not None:
            return refusal
        self.accepted[name] = reply
        self.lost_memory.discard(name)
        return None

    def is_live(self, name: str, ticket: Ticket) -> bool:
        """R3: only the last ticket of a client is good."""
        return self.live.get(name) == ticket

    def is_second(self, name: str) -> bool:
        """R3: and only once."""
        return name in self.accepted

    def reject(self, name: str) -> None:
        """What was accepted is not believed after all; nothing was committed yet."""
        self.accepted.pop(name, None)
        self.live.pop(name, None)

    def mismatched(self, name: str) -> Refusal:
        """R7: the next instruction brings the memory itself."""
        self.lost_memory.add(name)
        return Refusal("mismatch", f"{name} has not the memory that the server has.")

    def abandon(self) -> None:
        """Nothing of this round counts; it is run again with new tickets."""
        self.live.clear()
        self.accepted.clear()

    def renewed(self, phase: str) -> dict[str, Member]:
        """The members after this phase, in the order of names."""
        members = dict(self.book.members)
        for name in sorted(self.accepted):
            reply, before = self.accepted[name], members[name]
            memory = self.renew(phase, before.memory, reply.payload)
            members[name] = before._replace(version=reply.version, memory=memory)
        return members

    def attended(
        self,
        members: Mapping[str, Member],
        asked: Iterable[str],
        answered: Iterable[str],
    ) -> dict[str, Member]:
        """Who was asked in this round and did not answer has missed one more."""
        out, here = dict(members), set(answered)
        for name in asked:
            if name in out:
                missed = 0 if name in here else out[name].missed + 1
                out[name] = out[name]._replace(missed=missed)
        return out

    def commit(
        self,
        state: Any,
        members: Mapping[str, Member],
        rounds: int = 1,
        ledger: Any = None,
    ) -> None:
        """R5: the round's whole outcome becomes durable at once, and only then true.

        An opening exchange is no round: it commits none.
        """
        book = self.book._replace(
            round=self.book.round + rounds,
            state=state,
            members=dict(members),
            ledger=ledger,
            opened=self.book.opened or rounds == 0,
        )
        self.save(book)
        self.book = book
        self.abandon()

    def join(self, name: str) -> None:
        """One more member with the first memory: M grows, V does not change."""
        if name not in self.book.members:
            taken = [member.number for member in self.book.members.values()]
            new = Member(number=max(taken, default=-1) + 1)
            self.change(dict(self.book.members) | {name: new})

    def leave(self, name: str) -> None:
        """R13: the member and its memory go in one commit; M and V both shrink."""
        if name in self.book.members:
            members = {k: v for k, v in self.book.members.items() if k != name}
            self.live.pop(name, None)
            self.accepted.pop(name, None)
            self.lost_memory.discard(name)
            self.change(members)

    def reset(self) -> None:
        """A new epoch: every memory is the first one again, in one commit."""
        self.abandon()
        fresh = {
            name: member._replace(version=None, memory=None)
            for name, member in self.book.members.items()
        }
        self.change(fresh, epoch=self.book.epoch + 1)

    def change(self, members: Mapping[str, Member], **more: Any) -> None:
        book = self.book._replace(members=dict(members), **more)
        self.save(book)
        self.book = book

    def absent(self, rounds: int) -> list[str]:
        """Members that were asked in vain in so many rounds, one after the other."""
        return sorted(
            name
            for name, member in self.book.members.items()
            if member.missed >= rounds
        )
