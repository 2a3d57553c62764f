"""Processes of one run under watch: who starts them, and who says how they ended.

JAX ends a process that has lost its peers at once, without asking. So the command
that a user types only watches: it starts the process that computes, or several, and
says in a sentence what became of them. Nothing here imports JAX.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from sagda.link import LINK, LOST, Place

GRACE = 3.0  # seconds for the others to end by themselves
BY_HAND = "the same command on every machine"


class Ended(Exception):
    """A process ended before the run did."""

    def __init__(self, sentence: str, code: int = 1):
        super().__init__(sentence)
        self.code = code


@dataclass
class Worker:
    """A process that computes, as its watcher sees it."""

    index: int
    process: subprocess.Popen
    line: socket.socket
    heard: bytes = b""
    notes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def start(
        cls, index: int, arguments: list[str], again: str, silent: bool
    ) -> "Worker":
        ours, theirs = socket.socketpair()
        environment = os.environ | {LINK: f"{theirs.fileno()} {again}"}
        nowhere = subprocess.DEVNULL
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "sagda.cli", *arguments],
                env=environment,
                stdin=nowhere,
                stdout=nowhere if silent else None,
                stderr=nowhere if silent else None,
                pass_fds=(theirs.fileno(),),
                # A Ctrl-C reaches the watcher alone, which passes it on.
                start_new_session=True,
            )
        ours.setblocking(False)
        return cls(index, process, ours)

    def listen(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while more := self.line.recv(4096):
                self.heard += more
        *lines, self.heard = self.heard.split(b"\n")
        for line in lines:
            word, _, text = line.decode().partition(" ")
            self.notes[word] = text

    @property
    def code(self) -> int | None:
        """How it ended: as it said, or as the system says."""
        status = self.process.poll()
        self.listen()
        if status is not None and "leaving" in self.notes:
            return int(self.notes["leaving"].split()[0])
        return status

    @property
    def sentence(self) -> str:
        return self.notes.get("leaving", "").partition(" ")[2]

    @property
    def blame(self) -> int:
        """Small for the one that ended first, large for those it took along."""
        code = self.code or 0
        if code == 0:
            return 4
        if "leaving" in self.notes:
            return 3 if code == LOST else 1
        # JAX ends a process without peers by SIGABRT, or with 1.
        return 2 if code in (-signal.SIGABRT, 1) else 0

    @property
    def end(self) -> str:
        code = self.code or 0
        if code == LOST:
            return "lost the others"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Watcher:
    """Watches processes to their end and passes signals on."""

    def __init__(self, commands: dict[int, list[str]], again: str, silent: bool):
        """`again`: how to go on with a folder; `silent`: only process 0 may print."""
        self.asked = 0
        self.workers = [
            Worker.start(i, command, again, silent and i > 0)
            for i, command in commands.items()
        ]

    def ask(self, number: int, frame: FrameType | None) -> None:
        twice, self.asked = self.asked, number
        for worker in self.workers:
            hard = twice or "connected" not in worker.notes
            worker.process.send_signal(signal.SIGKILL if hard else number)

    def watch(self) -> None:
        """Until all have ended; what one leaves behind does not outlive it for long."""
        asked = signal.SIGINT, signal.SIGTERM
        before = [signal.signal(number, self.ask) for number in asked]
        ended = None
        try:
            while any(worker.code is None for worker in self.workers):
                if ended is None and any(worker.code for worker in self.workers):
                    ended = time.monotonic()
                if ended is not None and time.monotonic() - ended > GRACE:
                    break
                time.sleep(0.05)
        finally:
            for worker in self.workers:
                worker.kill()
            for number, handler in zip(asked, before, strict=True):
                signal.signal(number, handler)

    @property
    def culprit(self) -> Worker:
        return min(self.workers, key=lambda worker: worker.blame)

    @property
    def folder(self) -> Path | None:
        found = [w.notes["folder"] for w in self.workers if "folder" in w.notes]
        return Path(found[0]) if found else None


def newest(folder: Path | None) -> str:
    """The newest checkpoint, in words."""
    if folder is None:
        return "the run had not begun"
    from sagda.checkpoint import read_manifest

    path = folder / "checkpoint" / "manifest.json"
    if not path.exists():
        return f"no checkpoint was kept in {folder} yet"
    kept = read_manifest(path)["algorithms"]
    rounds = ", ".join(f"{name} at round {e['round']}" for name, e in kept.items())
    return f"the newest checkpoint in {folder} has {rounds}"


def watch_one(arguments: list[str], place: Place) -> int:
    """One process of a run whose others are started elsewhere."""
    process = place.process
    watcher = Watcher({process: arguments}, BY_HAND, silent=False)
    watcher.watch()
    (worker,) = watcher.workers
    code = worker.code or 0
    if watcher.asked and code != 0:
        return 128 + watcher.asked
    if "leaving" in worker.notes and code != LOST:
        return code
    if "connected" not in worker.notes:
        raise Ended(
            f"process {process} did not meet the others at {place.coordinator} within "
            f"{place.seconds} seconds; check the address and that all were started.",
            code=2,
        )
    what = f"died ({worker.end})" if worker.blame == 0 else "lost the others"
    where = newest(watcher.folder)
    if process > 0:
        where = f"process 0 keeps the checkpoints, in {watcher.folder}"
    raise Ended(f"process {process} {what}; {where}; go on with: {BY_HAND}")


def launch(arguments: list[str], processes: int, debug: bool) -> int:
    """A run's processes on this machine; when one dies, the others are ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cores = max(1, len(os.sched_getaffinity(0)) // processes)
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(cores))
    common = ["--coordinator", f"127.0.0.1:{port}", "--processes", str(processes)]
    commands = {
        i: [*arguments, *common, "--process", str(i), *["--debug"] * debug]
        for i in range(processes)
    }
    again = f"sagda launch --processes {processes} -- resume {{}}"
    watcher = Watcher(commands, again, silent=not debug)
    watcher.watch()
    culprit, folder = watcher.culprit, watcher.folder
    code = culprit.code or 0
    if code == 0:
        return 0
    if watcher.asked:
        return 128 + watcher.asked
    if culprit.blame == 1:
        if culprit.index == 0:
            return code  # it has said why
        raise Ended(f"process {culprit.index}: {culprit.sentence}", code)
    then = f"go on with: {again.format(folder)}" if folder else "start again."
    raise Ended(
        f"process {culprit.index} died ({culprit.end}) and the others were ended; "
        f"{newest(folder)}; {then}"
    )
