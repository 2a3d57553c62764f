"""Tickets, versions, and the instructions and replies that carry them.

These are the messages of the two protocol machines. `protocol.letters` has the other
messages (introductions, evaluations, farewells), and says how all of them travel.
"""

from typing import Any, NamedTuple


class Ticket(NamedTuple):
    """Names one instruction. Later tickets compare as larger for the life of a run."""

    incarnation: int  # of the server; larger at every start (R1)
    counter: int


class Version(NamedTuple):
    """Names one value of a client's memory.

    The nonce distinguishes two values that a client computed under one ticket, because
    it lost its file in between.
    """

    ticket: Ticket
    nonce: int


class Instruction(NamedTuple):
    """From the server: do your part in this phase."""

    run: str
    config: str  # the digest of the configuration
    ticket: Ticket
    round: int
    phase: str
    accepted: Version | None  # the durable version in the table (R6)
    message: Any  # what the algorithm broadcasts in this phase
    memory: Any = None  # the client's memory itself, after a mismatch (R7)
    epoch: int = 0  # how often all memories were reset (R8)
    min_clients: int = 1  # with fewer answers the server uses none of them (R4)


class Reply(NamedTuple):
    """From a client: the result of its part, and the version that it started from."""

    run: str
    config: str
    ticket: Ticket
    base: Version | None  # of the memory before
    version: Version  # of the memory after
    payload: Any
    epoch: int = 0


class Mismatch(NamedTuple):
    """From a client whose memory is not the version in the server's table (R7)."""

    run: str
    config: str
    ticket: Ticket


class Refusal(NamedTuple):
    """Why a reply changed nothing: a code to count, and a sentence."""

    code: str
    text: str
