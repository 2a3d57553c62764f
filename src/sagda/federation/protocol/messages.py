"""Tickets, versions, and the instructions and replies that contain them.

These are the messages of the two protocol machines. Comments name the rules R1 to R13
of `sagda.federation.protocol`. The other notes are in `protocol.letters`, which also
puts all of them into letters.
"""

from typing import Any, NamedTuple


class Ticket(NamedTuple):
    """The name of one instruction. It is larger than all tickets issued before."""

    incarnation: int  # the number of this start of the server (R1)
    counter: int  # the number of tickets since this start


class Version(NamedTuple):
    """The name of one value of v_i.

    A site that loses its file may compute a second value under the same ticket. The
    nonce distinguishes the two values.
    """

    ticket: Ticket  # of the instruction under which the site computed the value
    nonce: int  # a random number


class Instruction(NamedTuple):
    """A note of the server: compute this phase of this round."""

    run: str
    config: str  # the digest of the terms
    ticket: Ticket
    round: int
    phase: str
    accepted: Version | None  # the durable version in the table (R6)
    message: Any  # what the algorithm broadcasts in this phase
    memory: Any = None  # v_i itself, after a mismatch (R7)
    epoch: int = 0  # the number of resets of all v_i (R8)
    min_clients: int = 1  # with fewer answers, the server repeats the round (R4)


class Reply(NamedTuple):
    """A note of a site: its result for an instruction."""

    run: str
    config: str
    ticket: Ticket  # of the instruction
    base: Version | None  # the version of v_i before the phase
    version: Version  # the version of v_i after the phase
    payload: Any  # what the algorithm replies in this phase
    epoch: int = 0


class Mismatch(NamedTuple):
    """A note of a site whose cache does not have the version in the server's table.

    See rule R7 in `federation/protocol`.
    """

    run: str
    config: str
    ticket: Ticket


class Refusal(NamedTuple):
    """The reason why the server did not use an answer."""

    code: str  # a word for the kind of reason, by which refusals are counted
    text: str  # the reason as a sentence
