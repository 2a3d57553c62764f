"""`Process`: child processes with a log file, ended together with all they started.

Everything that a federation starts runs as a `Process`: Flower's SuperLink and nodes,
nginx, and the demonstration's server and sites. Whoever starts one decides whether to
start it again: see `superlink` and `supernode`. Nothing here imports flwr or JAX.
"""

import contextlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from sagda import network
from sagda.check import BadValue

FLOWER_VERSION = "1.41"
UNGUARDED = 78  # exit code of a node whose Flower lacks a part that a guard needs
# Flower must not report to its makers, look for updates, or install packages.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    # Seconds between Flower's polls for tasks to start a process for. Default: 1.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
PATIENCE = 10.0  # seconds that a process has to end before it is killed


def need_flower() -> None:
    """Raise `BadValue` unless the version of Flower that sagda works with is there."""
    try:
        version = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    # `guards` replaces private parts of Flower, which other versions may not have.
    if version.split(".")[:2] != FLOWER_VERSION.split("."):
        raise BadValue(
            f"federations need flwr {FLOWER_VERSION}, found {version}; "
            "pip install 'sagda[flower]'."
        )


def program(name: str) -> str:
    """The path of one of Flower's commands in this Python environment."""
    return str(Path(sys.executable).with_name(name))


# On Linux a process can ask the kernel for SIGTERM (15) when its parent dies: prctl's
# PR_SET_PDEATHSIG (1). This small program asks and then becomes the real command. The
# alternative, Python's `preexec_fn`, can deadlock because JAX has threads.
LEASH = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


class Process:
    """A running process and all that it starts, with one log file.

    Args:
        command: the program, as an absolute path, and its arguments.
        home: a folder for Flower's own files (FLWR_HOME), made if needed.
        log: the file to which its output is appended.
        environment: variables that are set in addition to this process's own.
    """

    def __init__(
        self, command: list[str], home: Path, log: Path, **environment: str
    ) -> None:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Flower starts its own helpers by name, from this Python environment.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        settings = {"FLWR_HOME": str(home), "PATH": path, **environment}
        self.log = log
        if sys.platform == "linux":
            command = [sys.executable, "-c", LEASH, *command]
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with os.fdopen(os.open(log, flags, 0o600), "ab") as output:
            self.process = subprocess.Popen(
                command,
                env=os.environ | QUIET | settings,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                umask=0o077,  # only its owner may read what it writes
                # A session of its own, so that `stop` can end the whole group and a
                # Ctrl-C in the terminal reaches only us, who pass it on.
                start_new_session=True,
            )
        self.pid = self.process.pid

    @property
    def code(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self.process.poll()

    def wait_for_port(self, name: str, host: str, port: int, seconds: float) -> None:
        """Return when the process accepts connections. Raise `BadValue` if it fails."""
        deadline = time.monotonic() + seconds
        while not network.listens(host, port):
            if self.code is not None or time.monotonic() > deadline:
                self.stop()
                raise BadValue(f"{name} did not start: {self.last_lines()}")
            time.sleep(0.1)

    def finish(self, seconds: float) -> int | None:
        """The exit code, once the process has ended. Stops it after `seconds`."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.stop()
        return self.code

    def stop(self, patience: float = PATIENCE) -> None:
        """End the process and its whole group, by force after `patience` seconds."""
        if self.code is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
        deadline = time.monotonic() + PATIENCE / 2
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < deadline:
                os.killpg(self.pid, 0)  # raises once no process of the group is left
                time.sleep(0.1)
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()

    def output(self) -> str:
        """The whole log file."""
        return self.log.read_text(errors="replace")

    def last_lines(self, count: int = 3) -> str:
        """The end of the log file, on one line: usually why the process ended."""
        lines = self.output().strip().splitlines()
        return " / ".join(line.strip() for line in lines[-count:])


def lives(pid: int, word: str = "") -> bool:
    """Whether a process runs, and has `word` in its command line.

    Process ids are used again: give a word before you kill one that a file names.
    """
    try:
        os.kill(pid, 0)  # sends nothing, and raises if there is no such process
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return not word  # another user's process, or a system without /proc
    # The line of a process that is dead but not yet reaped is empty.
    return bool(line) and word.encode() in line
