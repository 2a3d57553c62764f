"""The server's protocol machine: tickets, accepted replies, and the table of members.

It implements the rules R1 to R8 and R13 of `sagda.federation.protocol`, which explains
the words used here. It runs no algorithm and sends nothing: `federation.server.rounds`
does that, and calls this machine.
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
    """The entry of one site in the server's table."""

    version: Version | None = None
    memory: Any = None  # the control variate v_i; None: the first value
    missed: int = 0  # rounds in a row in which the site was asked without an answer
    number: int = 0  # the index in random draws, which does not change


class ServerState(NamedTuple):
    """The durable state of the server.

    A commit replaces it as a whole (rule R5 in `federation/protocol`).
    """

    run: str
    config: str  # the digest of the terms
    incarnation: int
    round: int  # the number of committed rounds
    variables: Any  # the state of the algorithm, without the mean V / M
    members: Mapping[str, Member]  # by name
    epoch: int = 0  # the number of resets of all v_i
    traffic: Any = None  # counts of messages and bytes
    opened: bool = False  # whether the opening exchange is committed

    @property
    def order(self) -> list[str]:
        """Return the names of all members, sorted by number for random draws."""
        return sorted(self.members, key=lambda name: self.members[name].number)


class ServerProtocol:
    """Issues tickets, accepts or refuses replies, and commits rounds.

    Args:
        state: the newest durable state.
        clock: seconds since 1970, from which the new incarnation is made.
        save: makes a state durable. It returns only when the state is durable.
        check: (phase, payload) -> a refusal, or None if the payload is as specified.
        renew: (phase, memory, payload) -> v_i of the member after this reply.

    `accepted` holds the accepted replies of the present exchange. The state changes
    only when they are committed.
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
        # The number of tickets since this start. It may begin at 0 again: a larger
        # incarnation makes every new ticket larger than all before (R1).
        self.counter = 0
        self.live: dict[str, Ticket] = {}  # the live ticket of each member (R2)
        self.accepted: dict[str, Reply] = {}
        self.lost_memory: set[str] = set()  # members that answered with a mismatch (R7)

    def incarnated(self, state: ServerState, clock: int) -> ServerState:
        """Return `state` with a larger incarnation, which `__init__` saves at once.

        See rule R1 in `federation/protocol`.
        """
        return state._replace(incarnation=max(state.incarnation + 1, clock))

    def issue(self, name: str, phase: str, message: Any) -> Instruction | None:
        """Return an instruction for a member, under a new ticket.

        Returns None if a reply was accepted in this exchange (rule R2 in
        `federation/protocol`), or if `name` is no member.
        """
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
        """Accept a reply and return None, or return why it is refused.

        See rule R3 in `federation/protocol`.
        """
        if name not in self.state.members:
            return Refusal("unknown", f"{name} is not a member of this run.")
        if reply.run != self.state.run:
            return Refusal("run", f"{name} answered for another run.")
        # This check comes before the mismatch: otherwise an old mismatch could make the
        # server send v_i once more.
        if not self.is_live(name, reply.ticket):
            return Refusal("ticket", f"{name} answered an old ticket.")
        if reply.config != self.state.config:
            return Refusal("config", f"{name} has other terms than the server.")
        if isinstance(reply, Mismatch):
            return self.mismatched(name)
        if reply.epoch != self.state.epoch:
            return Refusal("epoch", f"{name} answered for an epoch before the reset.")
        if name in self.accepted:
            return Refusal("twice", f"{name} has already answered in this exchange.")
        if reply.base != self.state.members[name].version:
            text = f"{name} started from a version of v_i that is not in the table."
            return Refusal("base", text)
        if reply.version.ticket != reply.ticket:
            text = f"{name} sent a version with another ticket than its reply."
            return Refusal("version", text)
        if (refusal := self.check(phase, reply.payload)) is not None:
            return refusal
        # The durable state does not change here: `commit` changes it, once per round.
        self.accepted[name] = reply
        self.lost_memory.discard(name)
        return None

    def is_live(self, name: str, ticket: Ticket) -> bool:
        """Return whether this is the live ticket of the member, its newest one."""
        return self.live.get(name) == ticket

    def reject(self, name: str) -> None:
        """Remove the accepted reply and the ticket of a member, before the commit."""
        self.accepted.pop(name, None)
        self.live.pop(name, None)

    def mismatched(self, name: str) -> Refusal:
        """Return a refusal, and let the next instruction contain v_i itself.

        See rule R7 in `federation/protocol`.
        """
        self.lost_memory.add(name)
        return Refusal(
            "mismatch", f"{name} does not have the version of v_i in the table."
        )

    def abandon(self) -> None:
        """Remove the live tickets and accepted replies of this exchange."""
        self.live.clear()
        self.accepted.clear()

    def renewed(self, phase: str) -> dict[str, Member]:
        """Return the table of members after the accepted replies of `phase`.

        Nothing is committed here.
        """
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
        """Return the members with new counts `missed`, without a commit.

        The count of a member in `asked` grows by 1, or becomes 0 if it `answered`.
        """
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
        """Make the results of a round durable in one step.

        See rule R5 in `federation/protocol`.

        Args:
            variables: the new state of the algorithm, without the mean V / M.
            members: the new table.
            rounds: 1 for a round, 0 for the opening exchange.
            traffic: the new counts of messages and bytes.
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
        """Add a member with the first value of v_i. M grows by one."""
        if name not in self.state.members:
            # Above all numbers in use, so that no two members have the same draws.
            taken = [member.number for member in self.state.members.values()]
            member = Member(number=max(taken, default=-1) + 1)
            self.change(dict(self.state.members) | {name: member})

    def leave(self, name: str) -> None:
        """Remove a member and its v_i in one commit.

        See rule R13 in `federation/protocol`.
        """
        if name in self.state.members:
            members = {k: v for k, v in self.state.members.items() if k != name}
            self.reject(name)
            self.lost_memory.discard(name)
            self.change(members)

    def reset(self) -> None:
        """Begin a new epoch, in which every v_i has its first value.

        See rule R8 in `federation/protocol`.
        """
        self.abandon()
        members = {
            name: member._replace(version=None, memory=None)
            for name, member in self.state.members.items()
        }
        self.change(members, epoch=self.state.epoch + 1)

    def change(self, members: Mapping[str, Member], **fields: Any) -> None:
        """Commit a new table of members, and new values of other fields of the state.

        The new state is used only after it is durable.
        """
        state = self.state._replace(members=dict(members), **fields)
        self.save(state)
        self.state = state

    def absent(self, rounds: int) -> list[str]:
        """Return the members without an answer in at least `rounds` rounds in a row."""
        members = self.state.members
        return sorted(name for name in members if members[name].missed >= rounds)
