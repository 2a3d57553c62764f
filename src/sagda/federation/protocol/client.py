"""The client's side: one file, and the rules by which it changes."""

from collections.abc import Callable
from typing import Any, NamedTuple

from sagda.federation.protocol.messages import (
    Instruction,
    Mismatch,
    Reply,
    Ticket,
    Version,
)


class Pending(NamedTuple):
    """A memory that was computed, but that the server may never have accepted."""

    version: Version
    memory: Any
    reply: Reply


class Cache(NamedTuple):
    """What a client keeps on its disk; replaced as a whole, or not at all."""

    committed: Version | None = None
    memory: Any = None  # None: the first value, which every client can compute
    pending: Pending | None = None
    high: Ticket | None = None  # the largest ticket ever acted upon
    kept: Any = None  # what passes to the next phase of one round


class ClientProtocol:
    """Acts on instructions, each at most once, and never believes more than it may.

    Args:
        cache: what its disk holds.
        save: makes a cache durable; returns only when it is.
        compute: (instruction, memory, kept) -> (payload, new memory, kept).
        nonce: a fresh random number of 128 bits.
    """

    def __init__(
        self,
        cache: Cache,
        save: Callable[[Cache], None],
        compute: Callable[[Instruction, Any, Any], tuple[Any, Any, Any]],
        nonce: Callable[[], int],
    ):
        self.cache = cache
        self.save, self.compute, self.nonce = save, compute, nonce

    def handle(self, told: Instruction) -> Reply | Mismatch | None:
        """The answer to an instruction; None where it must not be acted upon."""
        if self.is_old(told):
            pending = self.cache.pending
            if pending is not None and pending.version.ticket == told.ticket:
                return pending.reply  # the same answer again, not another one
            return None
        known = self.reconciled(told)
        if known is None:
            self.keep(self.cache._replace(high=told.ticket))
            return Mismatch(told.run, told.config, told.ticket)
        payload, memory, kept = self.compute(told, known.memory, known.kept)
        version = Version(told.ticket, self.nonce())
        about = told.run, told.config, told.ticket, known.committed
        reply = Reply(*about, version, payload, told.epoch)
        pending = Pending(version, memory, reply)
        self.keep(known._replace(pending=pending, high=told.ticket, kept=kept))
        return reply

    def is_old(self, told: Instruction) -> bool:
        """R9: an instruction not after the last one was acted upon, or overtaken."""
        return self.cache.high is not None and told.ticket <= self.cache.high

    def reconciled(self, told: Instruction) -> Cache | None:
        """R11: the cache as the server's record decides it; None if it cannot be.

        Memories change here only: what was pending becomes the client's own when the
        server says that it accepted it, and is dropped when it says it did not.
        """
        cache = self.cache
        if told.memory is not None:
            return cache._replace(
                committed=told.accepted, memory=told.memory, pending=None
            )
        if cache.pending is not None and told.accepted == cache.pending.version:
            pending = cache.pending
            return cache._replace(
                committed=pending.version, memory=pending.memory, pending=None
            )
        if told.accepted is None:
            return cache._replace(committed=None, memory=None, pending=None)
        if told.accepted == cache.committed:
            return cache._replace(pending=None)
        return None

    def keep(self, cache: Cache) -> None:
        """R12: durable before anything is answered."""
        self.save(cache)
        self.cache = cache
