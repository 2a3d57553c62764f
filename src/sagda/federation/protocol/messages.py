"""What server and clients tell each other, beside the numbers themselves."""

from typing import Any, NamedTuple


class Ticket(NamedTuple):
    """Names one instruction; later ones compare as larger, for the life of a run."""

    incarnation: int  # of the server: each start has a larger one
    counter: int


class Version(NamedTuple):
    """Names one value of a client's memory.

    The nonce tells apart values that a client computed twice under one ticket, with its
    file lost in between.
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
    accepted: (
        Version | None
    )  # what the server has of this client; None: the first value
    message: Any  # all that the algorithm sends down
    memory: Any = None  # the client's memory itself, after it said that it lost it
    epoch: int = 0  # how often all memories were set back
    together: int = 1  # answers below which the server uses none of them


class Reply(NamedTuple):
    """From a client: its part, and the memory that it was computed from."""

    run: str
    config: str
    ticket: Ticket
    base: Version | None
    version: Version
    payload: Any
    epoch: int = 0


class Mismatch(NamedTuple):
    """From a client whose memory is not the one that the server has."""

    run: str
    config: str
    ticket: Ticket


class Refusal(NamedTuple):
    """Why a reply changed nothing: a code to count, and a sentence."""

    code: str
    text: str
