"""The site's protocol machine: which instructions it answers, and from which v_i.

It implements the rules R9 to R12 of `sagda.federation.protocol`, which explains the
words used here. It reads no files and no rows, and runs no algorithm: `federation.site`
does that, and calls this machine.
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
    """A value of v_i that the site computed, with the reply that contains it.

    The site does not know if the server accepted it.
    """

    version: Version
    memory: Any
    reply: Reply


class Cache(NamedTuple):
    """The durable state of a site in one run. It is replaced as a whole."""

    committed: Version | None = None
    memory: Any = None  # v_i of the committed version; None: the first value
    pending: PendingMemory | None = None
    high: Ticket | None = None  # the largest ticket that the site acted on
    carried: Any = None  # passed from one phase of a round to the next


class ClientProtocol:
    """Acts on each instruction at most once, and commits only accepted values of v_i.

    Args:
        cache: the durable state at the start.
        save: makes a cache durable. It returns only when the cache is durable.
        compute: (instruction, memory, carried) -> (payload, new memory, carried).
        nonce: returns a new random number of 128 bits.
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
        """Return the answer to `instruction`, or None if it must be ignored."""
        if self.is_old(instruction):
            pending = self.cache.pending
            if pending is not None and pending.version.ticket == instruction.ticket:
                return pending.reply  # R9: the stored reply, never a second computation
            return None
        # Begin from the version of v_i that the server names.
        cache = self.reconciled(instruction)
        if cache is None:
            # The ticket counts as used: the server sends v_i under a larger one.
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
        # The new v_i is pending until a later instruction tells if the server accepted
        # it (R11). After a crash at this line, the site repeats this reply (R9).
        pending = PendingMemory(version, memory, reply)
        self.persist(
            cache._replace(pending=pending, high=instruction.ticket, carried=carried)
        )
        return reply

    def is_old(self, instruction: Instruction) -> bool:
        """Return whether the site has acted on this ticket or a later one.

        See rule R9 in `federation/protocol`.
        """
        return self.cache.high is not None and instruction.ticket <= self.cache.high

    def reconciled(self, instruction: Instruction) -> Cache | None:
        """Return the cache with the version that the server names as the committed one.

        Returns None if the cache does not have this version. Only this method changes
        the committed value (rules R7, R10 and R11 in `federation/protocol`).
        """
        cache, accepted = self.cache, instruction.accepted
        if instruction.memory is not None:  # R7: the server sent v_i itself
            return cache._replace(
                committed=accepted, memory=instruction.memory, pending=None
            )
        pending = cache.pending
        if pending is not None and accepted == pending.version:  # R11: accepted
            return cache._replace(
                committed=pending.version, memory=pending.memory, pending=None
            )
        if accepted is None:  # R10: nothing was accepted, or all v_i were reset
            return cache._replace(committed=None, memory=None, pending=None)
        if accepted == cache.committed:  # R11: the pending version was not accepted
            return cache._replace(pending=None)
        return None

    def persist(self, cache: Cache) -> None:
        """Make `cache` durable. The site answers only after that.

        See rule R12 in `federation/protocol`.
        """
        self.save(cache)
        self.cache = cache
