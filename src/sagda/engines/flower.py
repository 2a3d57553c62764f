"""Flower carries the letters: a ServerApp, a ClientApp, and the grid between them.

The only module that imports flwr. A client's process lives for one message, so a site
keeps what it must in its folder, and is known by its configured name: Flower's node ids
change from start to start.
"""

import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from google.protobuf.message import DecodeError

from sagda.algorithms import ALGORITHMS
from sagda.check import BadValue
from sagda.devices import keep_programs
from sagda.federated.desk import NAME, Desk
from sagda.federated.lead import FOLDER, lead
from sagda.federated.letters import (
    Bye,
    Census,
    Fault,
    Hello,
    Instruction,
    Letter,
    Look,
)
from sagda.protocol.wire import Part, Refused

POLL = 0.25  # seconds between looks for replies
NODES = 2.0  # seconds between looks for nodes
FORGET = 600.0  # seconds until a reply that never came is given up
BROKEN = (LookupError, ValueError, TypeError, AttributeError, DecodeError)
KIND = "sagda"  # how arrays are written: their plain bytes
log = logging.getLogger("flwr")


# Letters as messages.


def records(letter: Letter) -> RecordDict:
    """A letter as Flower's records: its text, and an array record per parcel."""
    content = RecordDict({"note": ConfigRecord({"text": letter.text})})
    for name, parcel in letter.parcels.items():
        arrays = {
            key: Array(part.dtype, part.shape, KIND, part.data)
            for key, part in parcel.items()
        }
        content[name] = ArrayRecord(arrays)
    return content


def read(content: Any) -> Letter:
    """The letter in a message, or `Refused`."""
    try:
        text = content["note"]["text"]
        parcels = {
            name: {
                key: Part(array.dtype, tuple(array.shape), array.data)
                for key, array in record.items()
            }
            for name, record in content.items()
            if isinstance(record, ArrayRecord)
        }
    except Exception:
        raise Refused("format", "a message must hold a letter.") from None
    return Letter.read(text, parcels)


def message_type(note: Any) -> str:
    """One type per phase, so that each has a handler."""
    if isinstance(note, Instruction):
        return f"train.{note.phase}"
    kinds = {Look: "evaluate", Hello: "query.hello", Bye: "query.bye"}
    return kinds[type(note)]


def size_of(item: Any) -> int:
    """The bytes of a message as it travels, with all that is in it."""
    inside = item.children or {}
    return len(item.deflate()) + sum(size_of(child) for child in inside.values())


# The server.


class GridSites:
    """The sites behind a grid, by name."""

    def __init__(self, grid: Grid, timeout: float):
        self.grid, self.timeout = grid, timeout
        self.framing = 0
        self.online: set[int] = set()
        self.node: dict[str, int] = {}  # by name, where it was seen last
        self.greeted: set[int] = set()
        self.came: list[Census] = []
        self.open: dict[str, tuple[str, float]] = {}  # message id: name, since when
        self.looked = -NODES

    def arrivals(self) -> list[Census]:
        self.greet()
        for _ in self.replies():
            pass
        came, self.came = self.came, []
        return came

    def greet(self) -> None:
        """Ask nodes that nobody knows who they are."""
        if time.monotonic() - self.looked < NODES:
            return
        self.looked = time.monotonic()
        self.online = set(self.grid.get_node_ids())
        self.greeted &= self.online  # who comes back is asked again
        new = self.online - self.greeted
        self.greeted |= new
        hello = Letter(Hello("any"))
        self.push([(f"?{node}", node, hello) for node in sorted(new)])

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
        ids = list(self.grid.push_messages(messages)) if messages else []
        sent = []
        for (name, node, _), key in zip(post, ids, strict=False):
            if key:
                self.open[key] = name, time.monotonic()
                sent.append(key)
            else:
                self.greeted.discard(node)
        return sent

    def replies(self) -> Iterator[tuple[str, str, Letter]]:
        """What has come: (id of the letter that it answers, name, letter)."""
        if not self.open:
            return
        for key, letter in self.pulled():
            name, _ = self.open.pop(key)
            if name.startswith("?"):
                self.introduce(int(name[1:]), letter.note)
            elif name:
                yield key, name, letter
        now, patience = time.monotonic(), max(FORGET, 3 * self.timeout)
        self.open = {k: v for k, v in self.open.items() if now - v[1] < patience}

    def pulled(self) -> list[tuple[str, Letter]]:
        """Letters that have come, by the id that they answer.

        One at a time: Flower raises whatever it finds in a message that is broken, and
        the others must not be lost with it.
        """
        found = []
        for key in list(self.open):
            try:
                found += [(key, self.opened(m)) for m in self.grid.pull_messages([key])]
            except BROKEN:
                fault = Fault("format", "a message that cannot be opened.")
                found.append((key, Letter(fault)))
        return found

    def opened(self, message: Message) -> Letter:
        if message.has_error():
            code = "gone" if message.error.code == 5 else "error"
            return Letter(Fault(code, str(message.error.reason)[:200]))
        try:
            letter = read(message.content)
        except Refused as refused:
            return Letter(Fault(*refused.refusal))
        self.framing += size_of(message) - letter.bytes
        return letter

    def introduce(self, node: int, note: Any) -> None:
        """A node has said who it is; the newest place of a name is the one."""
        if not isinstance(note, Census) or not NAME.fullmatch(note.name):
            self.greeted.discard(node)  # perhaps it can say so later
            return
        sizes = 1 <= note.rows < 2**31 and 1 <= note.features < 2**31
        if not sizes or not 0 <= note.positives <= note.rows:
            log.warning("sagda: %s has no rows to speak of.", note.name)
            return
        before = self.node.get(note.name)
        if before is not None and before != node and before in self.online:
            log.warning(
                "sagda: %s is now at node %s; were two started?", note.name, node
            )
        self.node[note.name] = node
        self.came.append(note)

    def exchange(self, letters: Mapping[str, Letter]) -> Iterator[tuple[str, Letter]]:
        """Send each its letter; yield what comes back, until all have or time is up."""
        self.greet()
        post = []
        for name, letter in letters.items():
            node = self.node.get(name)
            if node is None or node not in self.online:
                yield name, Letter(Fault("absent", f"{name} is not connected."))
            else:
                post.append((name, node, letter))
        waiting = set(self.push(post))
        deadline = time.monotonic() + self.timeout
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
                    name = self.open[key][0] if key in self.open else "a site"
                    yield name, Letter(Fault("late", f"{name} did not answer in time."))
                break
            self.greet()
            time.sleep(POLL)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """A run from the folder that the run's configuration names."""
    folder = os.environ.get(FOLDER) or context.run_config.get("folder")
    if not isinstance(folder, str):
        raise BadValue("the run configuration needs `folder`, the run's folder.")
    config = context.run_config.get("config") or None
    sites = lambda timeout: GridSites(grid, timeout)
    lead(
        Path(folder),
        sites,
        name=secrets.token_hex(8),
        config=None if config is None else Path(str(config)),
    )


# A client.


def handle(message: Message, context: Context) -> Message:
    """Any letter to this site, and its answer."""
    desk = None
    try:
        desk = Desk.of(context.node_config)
        keep_programs(desk.state / "programs")
        letter = desk.answer(read(message.content))
    except Exception as error:
        # What went wrong may name rows: it stays in this site's log.
        log.exception("sagda: a letter could not be answered.")
        refused = isinstance(error, Refused)
        code = error.refusal.code if refused else "site"
        letter = Letter(Fault(code, f"{type(error).__name__} at the site."))
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
