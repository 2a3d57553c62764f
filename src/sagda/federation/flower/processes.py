"""Flower's processes as ours: started with what they need, ended with all they started.

Nothing here imports flwr or JAX.
"""

import contextlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from sagda.check import BadValue

FLOWER_VERSION = "1.41"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    # A task waits for less than Flower's second until its process is started.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
PATIENCE = 10.0  # seconds for a process to end by itself


def need_flower() -> None:
    """Raise `BadValue` unless the version of Flower that sagda works with is there."""
    try:
        version = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        raise BadValue(
            "federations need Flower: pip install 'sagda[flower]'."
        ) from None
    # `guards` replaces private parts of Flower, which other versions may not have.
    if version.split(".")[:2] != FLOWER_VERSION.split("."):
        raise BadValue(
            f"federations need flwr {FLOWER_VERSION}, found flwr {version}; "
            "pip install 'sagda[flower]'."
        )


def program(name: str) -> str:
    """One of Flower's commands, from this environment."""
    return str(Path(sys.executable).with_name(name))


# On Linux the kernel ends a process whose parent is gone, if it is asked to; asking in
# the child between fork and exec is no choice, since JAX has threads.
LEASH = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


class Process:
    """A process and all that it starts, with one log file."""

    def __init__(
        self, command: list[str], home: Path, log: Path, **environment: str
    ) -> None:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        own = {"FLWR_HOME": str(home), "PATH": path, **environment}
        self.log = log
        if sys.platform == "linux":
            command = [sys.executable, "-c", LEASH, *command]
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with os.fdopen(os.open(log, flags, 0o600), "ab") as output:
            self.process = subprocess.Popen(
                command,
                env=os.environ | QUIET | own,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                umask=0o077,  # what it leaves is for its owner
                # A group of its own: a Ctrl-C is for whoever started it to pass on.
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        return self.process.poll()

    def stop(self, patience: float = PATIENCE) -> None:
        """End it and all of its group; they may not outlive us."""
        if self.code is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
        deadline = time.monotonic() + PATIENCE / 2
        while self.group_lives() and time.monotonic() < deadline:
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def group_lives(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def words(self) -> str:
        return self.log.read_text(errors="replace")

    def last_words(self, lines: int = 3) -> str:
        text = self.words().strip().splitlines()
        return " / ".join(line.strip() for line in text[-lines:])


def lives(pid: int) -> bool:
    """Whether a process is there and not only waiting to be counted as dead."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state not in ("Z", "X")


def named(pid: int, word: str) -> bool:
    """Whether a process that is there has a word in its command line."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return word.encode() in line and lives(pid)
