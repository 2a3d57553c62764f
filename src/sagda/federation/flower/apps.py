"""Flower carries the letters: a ServerApp, a ClientApp, and the grid between them.

A client's process lives for one message, so a site
keeps what it must in its folder, and is known by its configured name: Flower's node ids
change from start to start.
"""

import logging
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from sagda.algorithms import ALGORITHMS
from sagda.check import BadValue
from sagda.federation.events import Event, Notify, nobody
from sagda.federation.flower.guards import guard
from sagda.federation.flower.retry import again
from sagda.federation.protocol.letters import (
    Bye,
    Evaluate,
    Fault,
    Instruction,
    Introduce,
    Introduction,
    Letter,
    mark_of,
)
from sagda.federation.protocol.messages import Refusal
from sagda.federation.protocol.wire import Part, Refused
from sagda.federation.server.results import FOLDER, OWN, REGISTER, run_federation
from sagda.federation.site.folder import SiteFolder
from sagda.federation.trust.site_keys import NAME, Register
from sagda.models.user_code import allow
from sagda.simulator.devices import keep_programs

POLL = 0.25  # seconds between looks for replies
NODES = 2.0  # seconds between looks for nodes
FIRST = 1 << 20  # bytes: an introduction is far shorter
FORGET = 600.0  # seconds until a reply that never came is given up
MOST_PARTS = 1000  # arrays in one letter
AT_ONCE = 32  # answers that are fetched at the same time
LONGEST_SEAL = 400  # characters
KIND = "sagda"  # how arrays are written: their plain bytes
log = logging.getLogger("flwr")


# Letters as messages.


def records(letter: Letter) -> RecordDict:
    """A letter as Flower's records: its text, and an array record per parcel."""
    note = ConfigRecord({"text": letter.text, "seal": letter.seal})
    content = RecordDict({"note": note})
    for name, parcel in letter.parcels.items():
        arrays = {
            key: Array(part.dtype, part.shape, KIND, part.data)
            for key, part in parcel.items()
        }
        content[name] = ArrayRecord(arrays)
    return content


def unread(content: Any, answers: bytes) -> tuple[Letter, str, dict[str, Any]]:
    """Who sealed a letter and what it holds, before anything in it is believed."""
    try:
        text, seal = content["note"]["text"], content["note"].get("seal", "")
        arrays = {n: r for n, r in content.items() if isinstance(r, ArrayRecord)}
        if sum(len(record) for record in arrays.values()) > MOST_PARTS:
            raise ValueError
        parcels = {
            name: {
                key: Part(array.dtype, tuple(array.shape), array.data)
                for key, array in record.items()
            }
            for name, record in arrays.items()
        }
        mark = mark_of(text, parcels, answers)
        blank = Letter(Fault("format", ""), mark=mark, seal=str(seal)[:LONGEST_SEAL])
    except Exception:
        raise Refused("format", "a message must hold a letter.") from None
    return blank, text, parcels


def message_type(note: Any) -> str:
    """One type per phase, so that each has a handler."""
    if isinstance(note, Instruction):
        return f"train.{note.phase}"
    kinds = {Evaluate: "evaluate", Introduce: "query.hello", Bye: "query.bye"}
    return kinds[type(note)]


def size_of(item: Any) -> int:
    """The bytes of a message as it travels, with all that is in it."""
    inside = item.children or {}
    return len(item.deflate()) + sum(size_of(child) for child in inside.values())


# The server.


class Sent(NamedTuple):
    """A message that is on its way."""

    name: str  # of the site; "?" and a node's id before it said who it is
    since: float
    mark: bytes


class GridSites:
    """The sites behind a grid, by name.

    Args:
        grid: Flower's.
        timeout: seconds that an exchange may take.
        register: the keys of those who may take part; None: nothing is signed.
        notify: is called with every introduction that is accepted or refused.
    """

    def __init__(
        self,
        grid: Grid,
        timeout: float,
        register: Register | None = None,
        notify: Notify = nobody,
    ):
        self.grid, self.timeout, self.register = grid, timeout, register
        self.notify, self.seconds = notify, timeout  # of the present exchange
        self.framing = 0
        self.largest = FIRST  # bytes of a reply, until the run is settled
        self.threads = ThreadPoolExecutor(AT_ONCE)
        self.pulls: dict[str, Future] = {}  # by message id
        self.online: set[int] = set()
        self.node: dict[str, int] = {}  # by name, where it was seen last
        self.greeted: set[int] = set()
        self.came: list[Introduction] = []
        self.open: dict[str, Sent] = {}  # by message id
        self.looked = -NODES

    def arrivals(self, *, moments: bool = False) -> list[Introduction]:
        self.greet(moments)
        for _ in self.replies():
            pass
        came, self.came = self.came, []
        return came

    def barred(self, names: Iterable[str]) -> list[str]:
        """Who of these has no key in the register any more.

        A register without any is a mistake of someone's, and nobody's variate goes.
        """
        if self.register is None:
            return []
        admitted = self.register.now()
        return [name for name in names if admitted and name not in admitted]

    def greet(self, moments: bool = False) -> None:
        """Ask nodes that nobody knows who they are."""
        if time.monotonic() - self.looked < NODES:
            return
        self.looked = time.monotonic()
        self.online = set(again(self.grid.get_node_ids)())
        self.greeted &= self.online  # who comes back is asked again
        new = self.online - self.greeted
        self.greeted |= new
        hello = lambda: Letter(Introduce(secrets.token_hex(16), moments))
        self.push([(f"?{node}", node, hello()) for node in sorted(new)])

    def push(self, post: list[tuple[str, int, Letter]]) -> list[str]:
        """Send letters; the ids of those that could be sent."""
        messages = []
        for _, node, letter in post:
            kind = message_type(letter.note)
            ttl = max(2 * self.timeout, 60.0)
            message = Message(
                records(letter), dst_node_id=node, message_type=kind, ttl=ttl
            )
            self.framing += size_of(message) - letter.bytes
            messages.append(message)
        try:
            ids = list(self.grid.push_messages(messages)) if messages else []
        except httpx.HTTPStatusError:
            log.warning("sagda: letters could not be sent; the round is repeated.")
            ids = [""] * len(messages)
        sent = []
        for (name, node, letter), key in zip(post, ids, strict=False):
            if key:
                mark = mark_of(letter.text, letter.parcels)
                self.open[key] = Sent(name, time.monotonic(), mark)
                sent.append(key)
            else:
                self.greeted.discard(node)
        return sent

    def replies(self) -> Iterator[tuple[str, str, Letter]]:
        """What has come: (id of the letter that it answers, name, letter)."""
        if not self.open:
            return
        for key, letter in self.pulled():
            name = self.open.pop(key).name  # so that nothing is answered twice
            if name.startswith("?"):
                self.introduce(int(name[1:]), letter)
            elif name:
                yield key, name, letter
        now, patience = time.monotonic(), max(FORGET, 3 * self.timeout)
        self.open = {k: v for k, v in self.open.items() if now - v.since < patience}

    def pulled(self) -> list[tuple[str, Letter]]:
        """Letters that have come, by the id that they answer.

        One at a time, each in a thread of its own: Flower raises whatever it finds in a
        message that is broken, waits for one that is half there, and hands out what
        answers nothing. The others must not suffer for it.
        """
        for key in self.open:
            if key not in self.pulls:
                self.pulls[key] = self.threads.submit(self.pull, key)
        wait(self.pulls.values(), POLL)
        done = [key for key, pull in self.pulls.items() if pull.done()]
        found = {key: self.pulls.pop(key).result() for key in done}
        return [
            (key, self.opened(message, self.open[key]))
            for key, message in found.items()
            if message is not None and key in self.open
        ]

    def pull(self, key: str) -> Message | Letter | None:
        """The answer to one letter, if it is there."""
        try:
            for message in again(self.grid.pull_messages)([key]):
                if message.metadata.reply_to_message_id == key:
                    return message
                log.warning("sagda: a message that answers nothing was dropped.")
        except httpx.HTTPError:
            raise  # the SuperLink is gone, and so are we
        except Exception as error:
            log.warning("sagda: a message cannot be opened: %s", type(error).__name__)
            return Letter(Fault("format", "a message that cannot be opened."))
        return None

    def opened(self, message: Message | Letter, sent: Sent) -> Letter:
        if isinstance(message, Letter):
            return message
        if message.has_error():
            code = "gone" if message.error.code == 5 else "error"
            return Letter(Fault(code, str(message.error.reason)[:200]))
        try:
            blank, text, parcels = unread(message.content, sent.mark)
        except Refused as refused:
            return Letter(Fault(*refused.refusal))
        letter = blank
        try:
            # Who says so comes first: of a stranger nothing is read.
            said = self.register and self.register.who(blank.seal, blank.mark)
            letter = Letter.read(text, parcels)
            letter = letter._replace(mark=blank.mark, seal=blank.seal)
            new = sent.name.startswith("?")
            name = getattr(letter.note, "name", said) if new else sent.name
            if said and said != name:
                raise Refused("name", f"{said} answered as another site.")
        except Refused as refused:
            letter = letter._replace(note=Fault(*refused.refusal))
        self.framing += size_of(message) - letter.bytes
        return letter

    def introduce(self, node: int, letter: Letter) -> None:
        """A node has said who it is; the newest place of a name is the one."""
        note = letter.note
        if (refusal := unfit(note)) is not None:
            if not isinstance(note, Introduction):
                self.greeted.discard(node)  # perhaps it can say so later
            code, text = refusal
            self.notify(
                Event.REFUSED, name=f"node {node}", code=code, text=text, letter=letter
            )
            return
        self.notify(Event.ACCEPTED, name=note.name, phase="hello", letter=letter)
        before = self.node.get(note.name)
        if before is not None and before != node and before in self.online:
            log.warning(
                "sagda: %s is now at node %s; were two started?", note.name, node
            )
        self.node[note.name] = node
        self.came.append(note)

    def exchange(
        self,
        letters: Mapping[str, Letter],
        *,
        largest: int,
        seconds: float | None = None,
    ) -> Iterator[tuple[str, Letter]]:
        """Send each its letter; yield what comes back, until all have or time is up."""
        self.largest = largest
        self.seconds = self.timeout if seconds is None else seconds
        self.greet()
        post = []
        for name, letter in letters.items():
            node = self.node.get(name)
            if node is None or node not in self.online:
                yield name, Letter(Fault("absent", f"{name} is not connected."))
            else:
                post.append((name, node, letter))
        waiting = set(self.push(post))
        deadline = time.monotonic() + self.seconds
        while waiting:
            for key, name, letter in self.replies():
                waiting.discard(key)
                if isinstance(letter.note, Fault) and letter.note.code == "gone":
                    self.greeted.discard(self.node.pop(name, 0))
                yield name, letter
            if not waiting:
                break
            if time.monotonic() > deadline:
                for key in waiting:
                    name = self.open[key].name if key in self.open else "a site"
                    yield name, Letter(Fault("late", f"{name} did not answer in time."))
                break
            self.greet()
            time.sleep(POLL)


def unfit(note: Any) -> Refusal | None:
    """Why this is no introduction, if so."""
    if isinstance(note, Fault):
        return Refusal(*note)
    if not isinstance(note, Introduction) or not NAME.fullmatch(note.name):
        return Refusal("format", "an introduction must hold a name and counts.")
    sizes = 1 <= note.rows < 2**31 and 1 <= note.features < 2**31
    if not sizes or not 0 <= note.positives <= note.rows:
        return Refusal("census", f"{note.name} has no rows to speak of.")
    for column, low in ((note.mean, -np.inf), (note.squares, 0)):
        told = np.asarray(column, np.float64)
        fine = np.isfinite(told).all() and (told >= low).all()
        if not fine or len(told) != (note.features if note.mean else 0):
            return Refusal("census", f"{note.name} told moments that no rows have.")
    return None


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """A run from the folder that the run's configuration names."""
    folder = os.environ.get(FOLDER) or context.run_config.get("folder")
    if not isinstance(folder, str):
        raise BadValue("the run configuration needs `folder`, the run's folder.")
    config = context.run_config.get("config") or None
    keys, own = os.environ.get(REGISTER), os.environ.get(OWN)
    if own is not None:
        allow(own)
    register = None if keys is None else Register(Path(keys))

    def connect(timeout: float, notify: Notify) -> GridSites:
        sites = GridSites(grid, timeout, register, notify)
        guard(lambda: sites.largest, lambda: sites.seconds)
        return sites

    run_federation(
        Path(folder),
        connect,
        name=secrets.token_hex(8),
        config=None if config is None else Path(str(config)),
    )


# A client.


def handle(message: Message, context: Context) -> Message:
    """Any letter to this site, and its answer."""
    signer, asked = None, b""
    try:
        desk = SiteFolder.of(context.node_config)
        keep_programs(desk.state / "programs")
        signer = desk.signer
        blank, text, parcels = unread(message.content, b"")
        asked = blank.mark
        letter = desk.answer(Letter.read(text, parcels))
    except Exception as error:
        # What went wrong may name rows: it stays in this site's log.
        log.exception("sagda: a letter could not be answered.")
        refused = isinstance(error, Refused)
        code = error.refusal.code if refused else "site"
        letter = Letter(Fault(code, f"{type(error).__name__} at the site."))
    if signer is not None:
        mark = mark_of(letter.text, letter.parcels, asked)
        letter = letter._replace(seal=signer.seal(mark))
    return Message(records(letter), reply_to=message)


def phase_names() -> list[str]:
    """Of every registered algorithm."""
    built = [make().build() for make in ALGORITHMS.values()]
    phases = [p for algorithm in built for p in (*algorithm.opening, *algorithm.phases)]
    return sorted({phase.name for phase in phases})


def client_app() -> ClientApp:
    """A handler per phase, one for evaluations, two for coming and going."""
    app = ClientApp()
    for name in phase_names():
        app.train(name)(handle)
    app.evaluate()(handle)
    app.query("hello")(handle)
    app.query("bye")(handle)
    return app


client = client_app()
