"""The site's protocol machine: which instructions it obeys, which memory it keeps.

It implements R9 to R12 (see `sagda.federation.protocol`). It is not a site: files, rows
and algorithms are in `federation.site`, which drives this machine.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from sagda.federation.protocol.messages import (
    Instruction,
    Mismatch,
    Reply,
    Ticket,
    Version,
)


class PendingMemory(NamedTuple):
    """A memory that was computed, but that the server may never have accepted."""

    version: Version
    memory: Any
    reply: Reply


class Cache(NamedTuple):
    """A client's durable state, replaced as a whole or not at all."""

    committed: Version | None = None
    memory: Any = None  # the value of `committed`; None: the first value
    pending: PendingMemory | None = None
    high: Ticket | None = None  # the largest ticket that was acted on
    carried: Any = None  # passes from one phase of a round to the next


class ClientProtocol:
    """Acts on each instruction at most once, and promotes only accepted memories.

    Args:
        cache: the durable state.
        save: makes a cache durable; returns only when it is.
        compute: (instruction, memory, carried) -> (payload, new memory, carried).
        nonce: returns a fresh random number of 128 bits.
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

    def handle(self, instruction: Instruction) -> Reply | Mismatch | None:
        """The answer to an instruction; None if it must not be acted on."""
        if self.is_old(instruction):
            pending = self.cache.pending
            if pending is not None and pending.version.ticket == instruction.ticket:
                return pending.reply  # R9: the stored bits, never a second computation
            return None
        # Which memory does the server believe this site has?
        cache = self.reconciled(instruction)
        if cache is None:
            # The ticket is used up, so that the refresh must come under a larger one.
            self.persist(self.cache._replace(high=instruction.ticket))
            return Mismatch(
                run=instruction.run,
                config=instruction.config,
                ticket=instruction.ticket,
            )
        payload, memory, carried = self.compute(
            instruction, cache.memory, cache.carried
        )
        version = Version(instruction.ticket, self.nonce())
        reply = Reply(
            run=instruction.run,
            config=instruction.config,
            ticket=instruction.ticket,
            base=cache.committed,
            version=version,
            payload=payload,
            epoch=instruction.epoch,
        )
        # The new memory stays pending: only a later instruction tells whether the
        # server accepted it (R11). After a crash here the site repeats this reply (R9).
        pending = PendingMemory(version, memory, reply)
        self.persist(
            cache._replace(pending=pending, high=instruction.ticket, carried=carried)
        )
        return reply

    def is_old(self, instruction: Instruction) -> bool:
        """R9: whether the ticket is not larger than every ticket before."""
        return self.cache.high is not None and instruction.ticket <= self.cache.high

    def reconciled(self, instruction: Instruction) -> Cache | None:
        """The cache after the server's record; None if they do not match.

        Only this method changes the committed memory.
        """
        cache, accepted = self.cache, instruction.accepted
        if instruction.memory is not None:  # R7: the server sent the memory itself
            return cache._replace(
                committed=accepted, memory=instruction.memory, pending=None
            )
        pending = cache.pending
        if pending is not None and accepted == pending.version:  # R11: it was accepted
            return cache._replace(
                committed=pending.version, memory=pending.memory, pending=None
            )
        if accepted is None:  # R10: nothing was accepted, or all was reset
            return cache._replace(committed=None, memory=None, pending=None)
        if accepted == cache.committed:  # R11: the pending one was not accepted
            return cache._replace(pending=None)
        return None

    def persist(self, cache: Cache) -> None:
        """R12: durable before anything is answered."""
        self.save(cache)
        self.cache = cache
