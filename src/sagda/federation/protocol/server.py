"""The server's protocol machine: tickets, accepted replies, and the table of members.

It implements R1 to R8 and R13 (see `sagda.federation.protocol`). It runs no algorithm
and sends nothing: `federation.server.rounds` drives it.
"""

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
    """An entry of the server's table: a client's memory and its version."""

    version: Version | None = None
    memory: Any = None  # None: the first value
    missed: int = 0  # rounds in a row in which it was asked and not accepted
    number: int = 0  # its index in draws, fixed for as long as it is a member


class ServerState(NamedTuple):
    """The server's durable state; a commit replaces it as a whole (R5)."""

    run: str
    config: str  # the digest of the configuration
    incarnation: int
    round: int
    variables: Any  # the algorithm's state, without the mean of all memories (V / M)
    members: Mapping[str, Member]  # M of them
    epoch: int = 0  # how often all memories were reset
    traffic: Any = None  # what was exchanged so far
    opened: bool = False  # whether the opening exchange is done

    @property
    def order(self) -> list[str]:
        """The names of members by number: the order in which cohorts are drawn."""
        return sorted(self.members, key=lambda name: self.members[name].number)


class ServerProtocol:
    """Issues tickets, accepts what they allow, and commits rounds.

    Args:
        state: the newest durable state.
        clock: seconds since 1970; incarnations follow it, and never go back.
        save: makes a state durable; returns only when it is.
        check: (phase, payload) -> a refusal, or None if the payload is as specified.
        renew: (phase, memory, payload) -> the client's memory after this reply.

    `accepted` holds the replies of the present exchange. They change nothing until
    `commit`.
    """

    def __init__(
        self,
        state: ServerState,
        clock: int,
        save: Callable[[ServerState], None],
        check: Callable[[str, Any], Refusal | None],
        renew: Callable[[str, Any, Any], Any],
    ):
        self.save, self.check, self.renew = save, check, renew
        self.state = self.incarnated(state, clock)
        save(self.state)
        self.counter = (
            0  # of tickets since this start: R1 makes them larger than before
        )
        self.live: dict[str, Ticket] = {}  # each member's only valid ticket (R2)
        self.accepted: dict[str, Reply] = {}
        self.lost_memory: set[str] = set()  # members that answered with a mismatch (R7)

    def incarnated(self, state: ServerState, clock: int) -> ServerState:
        """R1: the state with a larger incarnation; `__init__` saves it at once."""
        return state._replace(incarnation=max(state.incarnation + 1, clock))

    def issue(self, name: str, phase: str, message: Any) -> Instruction | None:
        """R2: an instruction under a new ticket; None if a reply was accepted."""
        if name in self.accepted or name not in self.state.members:
            return None
        self.counter += 1
        self.live[name] = ticket = Ticket(self.state.incarnation, self.counter)
        member = self.state.members[name]  # R6: `state` holds durable versions only
        return Instruction(
            run=self.state.run,
            config=self.state.config,
            ticket=ticket,
            round=self.state.round,
            phase=phase,
            accepted=member.version,
            message=message,
            memory=member.memory if name in self.lost_memory else None,  # R7
            epoch=self.state.epoch,
        )

    def receive(self, name: str, phase: str, reply: Reply | Mismatch) -> Refusal | None:
        """R3: None if the reply is accepted, else why not.

        The order matters: a mismatch needs a live ticket, or an old one could make the
        server send a memory.
        """
        if name not in self.state.members:
            return Refusal("unknown", f"{name} is not registered.")
        if reply.run != self.state.run:
            return Refusal("run", f"{name} answered for another run.")
        if not self.is_live(name, reply.ticket):
            return Refusal("ticket", f"{name} answered a ticket that is not its last.")
        if reply.config != self.state.config:
            return Refusal("config", f"{name} has another configuration.")
        if isinstance(reply, Mismatch):
            return self.mismatched(name)
        if reply.epoch != self.state.epoch:
            return Refusal("epoch", f"{name} answered for an epoch before the reset.")
        if name in self.accepted:
            return Refusal("twice", f"{name} has already answered.")
        if reply.base != self.state.members[name].version:
            return Refusal("base", f"{name} started from another version.")
        if reply.version.ticket != reply.ticket:
            return Refusal("version", f"{name} named its version after another ticket.")
        if (refusal := self.check(phase, reply.payload)) is not None:
            return refusal
        # Nothing durable changes yet: `commit` does that for the whole round.
        self.accepted[name] = reply
        self.lost_memory.discard(name)
        return None

    def is_live(self, name: str, ticket: Ticket) -> bool:
        """R3: whether this is the client's last ticket."""
        return self.live.get(name) == ticket

    def reject(self, name: str) -> None:
        """Take back an accepted reply, before anything was committed."""
        self.accepted.pop(name, None)
        self.live.pop(name, None)

    def mismatched(self, name: str) -> Refusal:
        """R7: the next instruction carries the memory itself."""
        self.lost_memory.add(name)
        return Refusal("mismatch", f"{name} does not have the server's version.")

    def abandon(self) -> None:
        """R4: forget the tickets and replies of this exchange."""
        self.live.clear()
        self.accepted.clear()

    def renewed(self, phase: str) -> dict[str, Member]:
        """The members after the accepted replies of this phase, not yet committed."""
        members = dict(self.state.members)
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
        """The members with `missed` counted on, or set to 0 for those that answered."""
        counted, present = dict(members), set(answered)
        for name in asked:
            if name in counted:
                missed = 0 if name in present else counted[name].missed + 1
                counted[name] = counted[name]._replace(missed=missed)
        return counted

    def commit(
        self,
        variables: Any,
        members: Mapping[str, Member],
        rounds: int = 1,
        traffic: Any = None,
    ) -> None:
        """R5: make the whole outcome of a round durable at once.

        The opening exchange commits 0 rounds.
        """
        self.change(
            members,
            round=self.state.round + rounds,
            variables=variables,
            traffic=traffic,
            opened=self.state.opened or rounds == 0,
        )
        self.abandon()

    def join(self, name: str) -> None:
        """Add a member with the first memory: M grows by one."""
        if name not in self.state.members:
            # Above all numbers in use, so that no two members draw alike.
            taken = [member.number for member in self.state.members.values()]
            member = Member(number=max(taken, default=-1) + 1)
            self.change(dict(self.state.members) | {name: member})

    def leave(self, name: str) -> None:
        """R13: remove the member and its memory in one commit."""
        if name in self.state.members:
            members = {k: v for k, v in self.state.members.items() if k != name}
            self.reject(name)
            self.lost_memory.discard(name)
            self.change(members)

    def reset(self) -> None:
        """R8: open a new epoch, in which every memory has its first value."""
        self.abandon()
        members = {
            name: member._replace(version=None, memory=None)
            for name, member in self.state.members.items()
        }
        self.change(members, epoch=self.state.epoch + 1)

    def change(self, members: Mapping[str, Member], **fields: Any) -> None:
        """Commit a table of members and other fields: saved first, then in force."""
        state = self.state._replace(members=dict(members), **fields)
        self.save(state)
        self.state = state

    def absent(self, rounds: int) -> list[str]:
        """Members that did not answer in at least `rounds` rounds in a row."""
        members = self.state.members
        return sorted(name for name in members if members[name].missed >= rounds)
