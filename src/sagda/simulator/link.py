"""A process among several: its place, and its line to whoever watches it."""

import contextlib
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from cyclopts import Parameter

from sagda import check
from sagda.check import BadValue

LINK = "SAGDA_LINK"  # how a process finds who watches it, and how to start it again
LOST = 70  # exit code of a process whose peers are gone
ASKS = signal.SIGINT, signal.SIGTERM
# Exit codes of a stop that was asked for.
STOPS = 128 + signal.SIGINT, 128 + signal.SIGTERM
# What JAX and gloo say when a peer is gone.
SIGNS = ("gloo", "nccl", "coordination", "unavailable", "deadline_exceeded")


def is_loss(error: Exception) -> bool:
    """Whether an exception means that another process is gone."""
    return any(sign in str(error).lower() for sign in SIGNS)


class Place(NamedTuple):
    """One of the processes of a run."""

    coordinator: str
    processes: int
    process: int
    seconds: int  # that they wait for each other


@dataclass
class Machines:
    """The place of a process as flags."""

    coordinator: Annotated[
        str | None,
        Parameter(help="HOST:PORT of process 0, where several share the run."),
    ] = None
    processes: Annotated[
        int | None, Parameter(help="How many processes share the run.")
    ] = None
    process: Annotated[int | None, Parameter(help="Which of them this is, from 0.")] = (
        None
    )
    connect_seconds: Annotated[
        int, Parameter(help="How long they wait for each other at the start.")
    ] = 120

    @property
    def place(self) -> Place | None:
        """None where one process does everything."""
        where, many, which = self.coordinator, self.processes, self.process
        if where is None and many is None and which is None:
            return None
        if where is None or many is None or which is None:
            raise BadValue(
                "--coordinator, --processes and --process must be given together."
            )
        host, _, port = where.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise BadValue(
                f"`coordinator` must look like 10.0.0.1:9876, got {where!r}."
            )
        check.integer("processes", many, low=1)
        check.integer("process", which, low=0, high=many - 1, what=", the last of them")
        check.integer("connect_seconds", self.connect_seconds, low=1)
        return Place(where, many, which, self.connect_seconds)


class Link:
    """A process's line to its watcher; when the watcher is gone, so is the process."""

    def __init__(self, line: socket.socket, again: str):
        self.line, self.again = line, again
        self.sentence = ""
        # Outside a run there is nothing to keep: Ctrl-C ends this process as SIGTERM
        # does, and a code in STOPS says that all processes stopped together.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        threading.Thread(target=self.listen, daemon=True).start()

    @classmethod
    def inherited(cls) -> "Link | None":
        number, _, again = os.environ.pop(LINK, "").partition(" ")
        return cls(socket.socket(fileno=int(number)), again) if number else None

    def listen(self) -> None:
        with contextlib.suppress(OSError):
            self.line.recv(1)
        os._exit(1)

    def tell(self, word: str, text: str = "") -> None:
        with contextlib.suppress(OSError):
            self.line.sendall(f"{word} {' '.join(text.split())}\n".encode())

    def quieten(self) -> None:
        """Keep what libraries print away from this process's own output."""
        for number, name in ((1, "stdout"), (2, "stderr")):
            setattr(sys, name, os.fdopen(os.dup(number), "w", buffering=1))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)

    def leave(self, code: int) -> None:
        """End this process: with the others if they end too, else soon."""
        together = code == 0 or code in STOPS
        if together:
            # What asks only now is too late; whoever insists sends SIGKILL.
            for number in ASKS:
                signal.signal(number, signal.SIG_IGN)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        self.tell("leaving", f"{code} {self.sentence}")
        if code != LOST and "jax" in sys.modules:
            import jax

            # JAX aborts a process whose peer left without this, also while it writes.
            meeting = threading.Thread(target=jax.distributed.shutdown, daemon=True)
            meeting.start()
            meeting.join(None if together else 5)
        os._exit(code)
