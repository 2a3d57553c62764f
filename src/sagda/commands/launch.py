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
from enum import IntEnum
from pathlib import Path
from types import FrameType

from sagda.simulator.link import ASKS, LINK, LOST, STOPS, Place

GRACE = 3.0  # seconds for the others to end by themselves
ALONE = -signal.SIGABRT, 1  # how JAX ends a process without peers
BY_HAND = "the same command on every machine"


class Ended(Exception):
    """A process ended before the run did."""

    def __init__(self, sentence: str, code: int = 1):
        super().__init__(sentence)
        self.code = code


class Blame(IntEnum):
    """How a process ended; the smallest of a run's is why the run did."""

    DIED = 0  # by itself, without a word
    SAID = 1  # with a reason
    KILLED = 2  # by the watcher: it hung, or one of the above left it behind
    ABORTED = 3  # by JAX: one of the above was gone or silent
    LOST = 4  # the same, as the process itself noticed
    STOPPED = 5  # on request, as all do
    DONE = 6


@dataclass
class Worker:
    """A process that computes, as its watcher sees it."""

    index: int
    process: subprocess.Popen
    line: socket.socket
    heard: bytes = b""
    notes: dict[str, str] = field(default_factory=dict)
    sent: int = 0  # the last signal that it got from its watcher

    @classmethod
    def start(
        cls, index: int, arguments: list[str], again: str, silent: bool
    ) -> "Worker":
        ours, theirs = socket.socketpair()
        environment = os.environ | {LINK: f"{theirs.fileno()} {again}"}
        nowhere = subprocess.DEVNULL
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "sagda.commands.main", *arguments],
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
        with contextlib.suppress(OSError):  # nothing more to hear, or nobody
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
    def blame(self) -> Blame:
        """What it said counts first: by then its part in the run was over."""
        code = self.code or 0
        if code == 0:
            return Blame.DONE
        if "leaving" in self.notes:
            if code in STOPS:
                return Blame.STOPPED
            return Blame.LOST if code == LOST else Blame.SAID
        if code == -self.sent:
            return Blame.KILLED
        return Blame.ABORTED if code in ALONE else Blame.DIED

    @property
    def fell(self) -> bool:
        """Whether it ended in a way that leaves the others nothing to do.

        One that is done or has stopped waits for those that still write; where JAX
        ends it meanwhile, they are silent.
        """
        if self.code is None:
            return False
        return self.blame < Blame.STOPPED or self.process.returncode in ALONE

    @property
    def end(self) -> str:
        code = self.code or 0
        if code == LOST:
            return "lost the others"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def send(self, number: int) -> None:
        if self.process.poll() is None:
            self.sent = number
            self.process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.process.wait()
        self.listen()
        self.line.close()


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
            worker.send(signal.SIGKILL if hard else number)

    def watch(self) -> None:
        """Until all have ended; what one leaves behind does not outlive it for long."""
        before = [signal.signal(number, self.ask) for number in ASKS]
        ended = None
        try:
            while any(worker.code is None for worker in self.workers):
                if ended is None and any(worker.fell for worker in self.workers):
                    ended = time.monotonic()
                if ended is not None and time.monotonic() - ended > GRACE:
                    break
                time.sleep(0.05)
        finally:
            for worker in self.workers:
                worker.kill()
            for number, handler in zip(ASKS, before, strict=True):
                signal.signal(number, handler)

    @property
    def stop(self) -> int:
        """The exit code of a stop that was asked for, or 0."""
        return 128 + self.asked if self.asked else 0

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
    from sagda.runs.checkpoint import read_manifest

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
    died = worker.blame == Blame.DIED
    if watcher.stop and code != 0 and not died:
        return watcher.stop
    if "leaving" in worker.notes and code != LOST:
        return code
    if "connected" not in worker.notes:
        raise Ended(
            f"process {process} did not meet the others at {place.coordinator} within "
            f"{place.seconds} seconds; check the address and that all were started.",
            code=2,
        )
    what = f"died ({worker.end})" if died else "lost the others"
    where = newest(watcher.folder)
    if process > 0:
        where = f"process 0 keeps the checkpoints, in {watcher.folder}"
    sentence = f"process {process} {what}; {where}; go on with: {BY_HAND}"
    raise Ended(sentence, watcher.stop or 1)


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
    blame = culprit.blame
    if blame == Blame.DONE:
        return 0
    if watcher.stop and blame > Blame.SAID:
        return watcher.stop
    code = watcher.stop or culprit.code or 0
    if blame == Blame.STOPPED:
        return code
    if blame == Blame.SAID:
        if culprit.index == 0:
            return code  # it has said why
        raise Ended(f"process {culprit.index}: {culprit.sentence}", code)
    then = f"go on with: {again.format(folder)}" if folder else "start again."
    raise Ended(
        f"process {culprit.index} died ({culprit.end}) and the others were ended; "
        f"{newest(folder)}; {then}",
        watcher.stop or 1,
    )
