"""`GridSites`: the sites behind Flower's grid, addressed by name.

Flower's grid knows nodes by number, delivers messages through the SuperLink's database,
and has no push: both ends poll. This module adds what a federation needs on top: which
node is which site, deadlines, and seals that are checked before anything is read.

It does not know what a round is: see `sagda.federation.server.rounds`. Limits on what a
single message may hold are in `guards`, because Flower unpacks messages before this
module sees them.
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
INTRODUCTION_BYTES = 1 << 20  # limit of a reply until the run is settled
GIVE_UP = 600.0  # seconds after which a missing reply is no longer polled for
MIN_TTL = 60.0  # seconds for which the SuperLink keeps a message
THREADS = 32  # replies that are fetched at the same time
NODE_UNAVAILABLE = 5  # Flower's error code: the node sends no heartbeat
log = logging.getLogger("flwr")


class Pending(NamedTuple):
    """A letter that was sent and not answered yet."""

    node: int
    site: str  # empty: the node has not introduced itself yet
    since: float  # of the monotonic clock
    mark: bytes  # of the letter; the seal of its answer covers it


class GridSites:
    """The sites behind Flower's grid, by name.

    Flower's node ids can change whenever a node starts, so a name is bound to the node
    that introduced itself with it last. The newest node of a name wins.

    Args:
        grid: Flower's grid, in the ServerApp's process.
        timeout: seconds that an exchange may take.
        register: the public keys of the admitted sites. None: nothing is signed.
        notify: called with every introduction that is accepted or refused.
    """

    def __init__(
        self, grid: Grid, timeout: float, register: Register | None, notify: Notify
    ):
        self.grid, self.timeout = grid, timeout
        self.register, self.notify = register, notify
        self.framing = 0
        # Limits of the last exchange, which `guards` reads from the pulling threads.
        self.largest = INTRODUCTION_BYTES  # bytes of a reply
        self.seconds = timeout  # until an incomplete message is given up
        self.threads = ThreadPoolExecutor(THREADS)
        # Both by the id of the message that was sent. A pull outlives a call of
        # `replies`, because Flower may block in it for minutes.
        self.pending: dict[str, Pending] = {}
        self.pulls: dict[str, Future[Message | Letter | None]] = {}
        self.online: set[int] = set()  # nodes, when they were last listed
        self.greeted: set[int] = set()  # online nodes that were asked for their name
        self.node_of: dict[str, int] = {}
        self.introductions: list[Introduction] = []  # not yet taken by `arrivals`
        self.listed = -LISTING

    def arrivals(self, *, moments: bool = False) -> list[Introduction]:
        """The sites that introduced themselves since the last call."""
        self.greet(moments)
        # Late answers to earlier exchanges are dropped here: nobody waits for them.
        list(self.replies())
        introductions, self.introductions = self.introductions, []
        return introductions

    def barred(self, names: Iterable[str]) -> list[str]:
        """The given sites that the register no longer admits.

        An empty register is taken for an operator's error: it bars nobody, so no
        control variate is lost.
        """
        admitted = self.register.now() if self.register else {}
        return [name for name in names if admitted and name not in admitted]

    def greet(self, moments: bool = False) -> None:
        """Ask new nodes for their name, every `LISTING` seconds at most."""
        if time.monotonic() - self.listed < LISTING:
            return
        self.listed = time.monotonic()
        self.online = set(again(self.grid.get_node_ids)())
        strangers = sorted(self.online - self.greeted)
        # A node that is offline now is asked again: it can be another site then.
        self.greeted = set(self.online)
        # Every question has its own nonce, so a recorded answer cannot be replayed.
        introduce = lambda: Letter(Introduce(secrets.token_hex(16), moments))
        self.push([(node, "", introduce()) for node in strangers])

    def push(self, outgoing: list[tuple[int, str, Letter]]) -> dict[str, str]:
        """Send letters to nodes of sites. Returns the sites by message id.

        Letters that the SuperLink did not take have no id.
        """
        # Flower's default is 12 hours: a site that comes back would first work through
        # letters of rounds that are long over.
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
            # Not tried again here: some letters may have gone out, and a second copy
            # would be a second question. The round is repeated as a whole.
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
                self.greeted.discard(node)  # introduced anew, in case it has changed
        return sent

    def replies(self) -> Iterator[tuple[str, str, Letter]]:
        """Replies that have arrived: (id of the question, name of the site, letter).

        It waits `POLL` seconds for them. Introductions go to `introductions` instead.
        Replies that were too late for an earlier exchange are included.
        """
        # Each message is pulled by its own call in its own thread. Flower's
        # `pull_messages` fails for all ids if one message cannot be unpacked, and waits
        # for all while one is incomplete: a single bad site would silence the others.
        for key in self.pending:
            if key not in self.pulls:
                self.pulls[key] = self.threads.submit(self.pull, key)
        wait(self.pulls.values(), POLL)
        for key in [key for key, pull in self.pulls.items() if pull.done()]:
            message = self.pulls.pop(key).result()
            # A question may have been given up while its pull was running.
            if message is None or key not in self.pending:
                continue
            # Removed before it is used, so that no question is answered twice.
            question = self.pending.pop(key)
            letter = self.opened(message, question)
            if question.site:
                yield key, question.site, letter
            else:
                self.introduce(question.node, letter)
        oldest = time.monotonic() - max(GIVE_UP, 3 * self.timeout)
        self.pending = {k: p for k, p in self.pending.items() if p.since > oldest}

    def pull(self, key: str) -> Message | Letter | None:
        """The answer to a question, or None if it has not arrived. Runs in a thread."""
        try:
            for message in again(self.grid.pull_messages)([key]):
                # A node can send messages that answer nothing, in any node's name.
                if message.metadata.reply_to_message_id == key:
                    return message
                log.warning("sagda: dropped a message that answers no letter.")
        except httpx.HTTPError:
            raise  # the SuperLink is gone, and this process must end with it
        except Exception as error:
            log.warning("sagda: cannot open a message: %s", type(error).__name__)
            return Letter(Fault("format", "a message that cannot be opened."))
        return None

    def opened(self, message: Message | Letter, question: Pending) -> Letter:
        """The letter in a message, or a `Fault` that says why there is none."""
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
            # The seal comes first: nothing is parsed that no admitted site has sealed.
            signer = self.register and self.register.who(unread.seal, unread.mark)
            letter = unread.read()
            # An introduction must carry its signer's name, an answer its site's seal.
            name = question.site or getattr(letter.note, "name", signer)
            if signer and signer != name:
                raise Refused("name", f"{signer} answered as another site.")
        except Refused as refused:
            # The audit log shows its mark and seal.
            fault = Fault(*refused.refusal)
            letter = Letter(fault, mark=unread.mark, seal=unread.seal)
        self.framing += size_of(message) - letter.bytes
        return letter

    def introduce(self, node: int, letter: Letter) -> None:
        """Bind a node to the name in its introduction, or report why it is refused."""
        note = letter.note
        if (refusal := flaw_in(note)) is not None:
            if not isinstance(note, Introduction):
                # No introduction arrived, so ask again: the site may be starting. One
                # with impossible counts stays refused until its node comes back.
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
        """Send each site its letter. Yields replies until all came or time is up.

        A site without a reply yields a `Fault`: "absent" if it is not connected, "gone"
        if its node stopped, "late" after the deadline. Replies to earlier exchanges
        are yielded as they come: the protocol's tickets distinguish them.
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
                # The questions stay pending: a late answer is fetched and dropped, so
                # that it does not stay in the SuperLink's database.
                for name in waiting.values():
                    yield name, Letter(Fault("late", f"{name} did not answer in time."))
                return
            if waiting:
                self.greet()  # a site can come back during a long exchange
                time.sleep(POLL)


def flaw_in(note: Any) -> Refusal | None:
    """Why a note is no valid introduction, or None if it is one.

    Every number is checked, because an introduction is the only letter whose numbers
    are used before a run has a specification to check them against.
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
