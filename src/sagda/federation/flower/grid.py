"""`GridSites`: the sites behind Flower's grid, addressed by name.

Flower's grid identifies nodes by number. The SuperLink stores all messages in its
database, which the server and the nodes poll. This module adds the names of sites,
deadlines, and the check of seals (signatures of sites) before a letter is parsed.

The order of letters in a round is in `sagda.federation.server.rounds`. Limits on the
size of a single message are in `guards`, because Flower unpacks a message before this
module receives it.
"""

import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import httpx
import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from sagda.federation.events import Event, Notify
from sagda.federation.flower.messages import (
    MESSAGE_TYPES,
    UnreadLetter,
    records_of,
    size_of,
)
from sagda.federation.flower.retry import again
from sagda.federation.protocol.letters import (
    Fault,
    Introduce,
    Introduction,
    Letter,
    mark_of,
)
from sagda.federation.protocol.messages import Refusal
from sagda.federation.protocol.wire import Refused
from sagda.federation.trust.site_keys import NAME, Register

POLL = 0.25  # seconds between polls for replies
LISTING = 2.0  # seconds between polls for new nodes
INTRODUCTION_BYTES = 1 << 20  # limit of a reply before the run starts
GIVE_UP = 600.0  # seconds after which a missing reply is no longer polled for
MIN_TTL = 60.0  # seconds for which the SuperLink stores a message, at least
THREADS = 32  # replies that are fetched at the same time
NODE_UNAVAILABLE = 5  # Flower's error code: the node sends no heartbeat
log = logging.getLogger("flwr")


class Pending(NamedTuple):
    """A letter that was sent and not answered yet."""

    node: int  # Flower's number of the node
    site: str  # empty: the node has not introduced itself yet
    since: float  # when the letter was sent, by the monotonic clock
    mark: bytes  # the digest of the letter; the seal of the answer covers it


class GridSites:
    """A transport that sends letters to sites by name, over Flower's grid.

    Flower's node ids can change whenever a node starts. So each name is bound to the
    node that introduced itself under this name last.

    Args:
        grid: Flower's grid, in the ServerApp's process.
        timeout: seconds that an exchange may take.
        register: the public keys of the admitted sites. None: answers are not signed.
        notify: called with every introduction that is accepted or refused.
    """

    def __init__(
        self, grid: Grid, timeout: float, register: Register | None, notify: Notify
    ):
        self.grid, self.timeout = grid, timeout
        self.register, self.notify = register, notify
        self.framing = 0
        # Limits of the current exchange. `guards` reads them in the threads that pull.
        self.largest = INTRODUCTION_BYTES  # bytes of a reply
        self.seconds = timeout  # to wait for the missing part of a message
        self.threads = ThreadPoolExecutor(THREADS)
        # The keys of both are ids of messages that were sent. A pull can last longer
        # than a call of `replies`, because Flower may block in it for minutes.
        self.pending: dict[str, Pending] = {}
        self.pulls: dict[str, Future[Message | Letter | None]] = {}
        self.online: set[int] = set()  # nodes that the last listing had
        self.greeted: set[int] = set()  # online nodes that were asked for their name
        self.node_of: dict[str, int] = {}
        self.introductions: list[Introduction] = []  # not yet returned by `arrivals`
        self.listed = -LISTING

    def arrivals(self, *, moments: bool = False) -> list[Introduction]:
        """Return the introductions that were accepted since the last call.

        New sites are asked for the moments of their features if `moments` is true.
        """
        self.greet(moments)
        # This drops late answers to earlier exchanges, which nobody waits for.
        list(self.replies())
        introductions, self.introductions = self.introductions, []
        return introductions

    def barred(self, names: Iterable[str]) -> list[str]:
        """Return the sites among `names` that the register no longer admits.

        An empty register bars nobody. It is probably an operator's error, and removing
        all sites would lose all control variates.
        """
        admitted = self.register.now() if self.register else {}
        return [name for name in names if admitted and name not in admitted]

    def greet(self, moments: bool = False) -> None:
        """Ask new nodes for their name, at most once in `LISTING` seconds."""
        if time.monotonic() - self.listed < LISTING:
            return
        self.listed = time.monotonic()
        self.online = set(again(self.grid.get_node_ids)())
        strangers = sorted(self.online - self.greeted)
        # A node that is offline now will be asked again when it is back, because it
        # can then be another site.
        self.greeted = set(self.online)
        # Every letter has a fresh nonce, so a recorded answer cannot be replayed.
        introduce = lambda: Letter(Introduce(secrets.token_hex(16), moments))
        self.push([(node, "", introduce()) for node in strangers])

    def push(self, outgoing: list[tuple[int, str, Letter]]) -> dict[str, str]:
        """Send letters, given as (node, site, letter). Return the sites by message id.

        The result lacks the letters that the SuperLink did not accept.
        """
        # With Flower's default of 12 hours, a site that reconnects would first answer
        # the letters of rounds that ended long ago.
        ttl = max(2 * self.timeout, MIN_TTL)
        messages = [
            Message(
                records_of(letter),
                dst_node_id=node,
                message_type=MESSAGE_TYPES[type(letter.note)],
                ttl=ttl,
            )
            for node, _, letter in outgoing
        ]
        self.framing += sum(map(size_of, messages))
        self.framing -= sum(letter.bytes for *_, letter in outgoing)
        try:
            ids = list(self.grid.push_messages(messages))
        except httpx.HTTPStatusError:
            # No retry here: some letters may have been sent, and a site would answer
            # the second copy too. Instead, the server repeats the whole round.
            log.warning("sagda: letters could not be sent; the round is repeated.")
            ids = [""] * len(messages)
        sent = {}
        for (node, site, letter), key in zip(outgoing, ids, strict=False):
            if key:
                mark = mark_of(letter.text, letter.parcels)
                self.pending[key] = Pending(
                    node=node, site=site, since=time.monotonic(), mark=mark
                )
                sent[key] = site
            else:
                self.greeted.discard(node)  # ask for its name again
        return sent

    def replies(self) -> Iterator[tuple[str, str, Letter]]:
        """Yield the replies that have arrived, as (message id, site, reply).

        The id is the one of the message that the reply answers. The method waits up to
        `POLL` seconds. It also yields replies that were too late for an earlier
        exchange. Introductions are not yielded but added to `self.introductions`.
        """
        # Each message is pulled by a separate call in a separate thread. Flower's
        # `pull_messages` fails for all ids if one message cannot be unpacked, and waits
        # for all if one is incomplete. So a single bad site would block the others.
        for key in self.pending:
            if key not in self.pulls:
                self.pulls[key] = self.threads.submit(self.pull, key)
        wait(self.pulls.values(), POLL)
        for key in [key for key, pull in self.pulls.items() if pull.done()]:
            message = self.pulls.pop(key).result()
            # The letter may have been given up while its pull was running.
            if message is None or key not in self.pending:
                continue
            # Remove the letter first, so that only one answer to it is accepted.
            question = self.pending.pop(key)
            letter = self.opened(message, question)
            if question.site:
                yield key, question.site, letter
            else:
                self.introduce(question.node, letter)
        oldest = time.monotonic() - max(GIVE_UP, 3 * self.timeout)
        self.pending = {k: p for k, p in self.pending.items() if p.since > oldest}

    def pull(self, key: str) -> Message | Letter | None:
        """Return the answer to message `key`, or None if it has not arrived yet.

        This runs in a thread. A message that Flower cannot unpack becomes a `Fault`.
        """
        try:
            for message in again(self.grid.pull_messages)([key]):
                # A node can send unrequested messages under the name of any node.
                if message.metadata.reply_to_message_id == key:
                    return message
                log.warning("sagda: dropped a message that answers no letter.")
        except httpx.HTTPError:
            raise  # the SuperLink has ended, and this process must end too
        except Exception as error:
            log.warning("sagda: cannot open a message: %s", type(error).__name__)
            return Letter(Fault("format", "a message that cannot be opened."))
        return None

    def opened(self, message: Message | Letter, question: Pending) -> Letter:
        """Return the letter in `message`, or a `Fault` that says why it is refused.

        `question` is the letter that the message answers.
        """
        if isinstance(message, Letter):
            return message
        if message.has_error():
            code = "gone" if message.error.code == NODE_UNAVAILABLE else "error"
            return Letter(Fault(code, str(message.error.reason)[:200]))
        try:
            unread = UnreadLetter.of(message.content, question.mark)
        except Refused as refused:
            return Letter(Fault(*refused.refusal))
        try:
            # The seal is checked first: only text from admitted sites is parsed.
            signer = self.register and self.register.who(unread.seal, unread.mark)
            letter = unread.read()
            # The signer must be the site that was asked, or that introduces itself.
            name = question.site or getattr(letter.note, "name", signer)
            if signer and signer != name:
                raise Refused("name", f"{signer} answered as another site.")
        except Refused as refused:
            # The audit log records the mark and the seal of the refused answer.
            fault = Fault(*refused.refusal)
            letter = Letter(fault, mark=unread.mark, seal=unread.seal)
        self.framing += size_of(message) - letter.bytes
        return letter

    def introduce(self, node: int, letter: Letter) -> None:
        """Bind `node` to the name in its introduction.

        A letter that is no valid introduction is reported to the listener instead.
        """
        note = letter.note
        if (refusal := flaw_in(note)) is not None:
            if not isinstance(note, Introduction):
                # No introduction arrived, so ask again: the site may be starting. An
                # introduction with impossible counts is refused until the node
                # reconnects.
                self.greeted.discard(node)
            refused = refusal._asdict()
            self.notify(Event.REFUSED, name=f"node {node}", **refused, letter=letter)
            return
        self.notify(Event.ACCEPTED, name=note.name, phase="hello", letter=letter)
        previous = self.node_of.get(note.name)
        if previous != node and previous in self.online:
            log.warning(
                "sagda: %s is now at node %s; was it started twice?", note.name, node
            )
        self.node_of[note.name] = node
        self.introductions.append(note)

    def exchange(
        self,
        letters: Mapping[str, Letter],
        *,
        largest: int,
        seconds: float | None = None,
    ) -> Iterator[tuple[str, Letter]]:
        """Send each site its letter. Yield (site, reply) as the replies arrive.

        For a site that does not reply, the letter is a `Fault` with one of these codes:

        - absent: the site is not connected.
        - gone: the node of the site has stopped.
        - late: the reply did not arrive before the deadline.

        Late replies to earlier exchanges are yielded too. The protocol distinguishes
        them by their tickets.

        Args:
            letters: the letters by site name.
            largest: bytes that one reply may have.
            seconds: until the exchange ends. None: the `timeout` of this transport.
        """
        self.largest = largest
        self.seconds = self.timeout if seconds is None else seconds
        self.greet()
        outgoing = []
        for name, letter in letters.items():
            node = self.node_of.get(name)
            if node is None or node not in self.online:
                yield name, Letter(Fault("absent", f"{name} is not connected."))
            else:
                outgoing.append((node, name, letter))
        waiting = self.push(outgoing)
        deadline = time.monotonic() + self.seconds
        while waiting:
            for key, name, letter in self.replies():
                waiting.pop(key, None)
                if isinstance(letter.note, Fault) and letter.note.code == "gone":
                    self.greeted.discard(self.node_of.pop(name, 0))
                yield name, letter
            if time.monotonic() > deadline:
                # The letters stay pending: a late answer is fetched and dropped, so
                # that it does not stay in the SuperLink's database.
                for name in waiting.values():
                    yield name, Letter(Fault("late", f"{name} did not answer in time."))
                return
            if waiting:
                self.greet()  # a site can reconnect during a long exchange
                time.sleep(POLL)


def flaw_in(note: Any) -> Refusal | None:
    """Return why `note` is no valid introduction, or None if it is valid.

    Every number is checked here. The arrays of other letters are checked against the
    specification of the run, but an introduction arrives before the run has one.
    """
    if isinstance(note, Fault):
        return Refusal(*note)
    if not isinstance(note, Introduction) or not NAME.fullmatch(note.name):
        return Refusal("format", "an introduction must hold a name and counts.")
    sizes = 1 <= note.rows < 2**31 and 1 <= note.features < 2**31
    if not sizes or not 0 <= note.positives <= note.rows:
        return Refusal(
            "census",
            f"{note.name} must have at least one row and one feature, and at most as "
            "many positive rows as rows.",
        )
    for moments, low in ((note.mean, -np.inf), (note.squares, 0)):
        column = np.asarray(moments, np.float64)
        valid = np.isfinite(column).all() and (column >= low).all()
        if not valid or len(column) != (note.features if note.mean else 0):
            return Refusal("census", f"{note.name} sent moments that no rows can have.")
    return None
