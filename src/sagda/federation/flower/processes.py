"""`Process`: a child process with a log file, ended together with all it has started.

Everything that a federation starts runs as a `Process`: Flower's SuperLink and nodes,
nginx, and the server and sites of the demonstration. A `Process` that ends is not
restarted here: `superlink` and `supernode` do that. This module imports neither flwr
nor JAX.
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
UNGUARDED = 78  # exit code of a node whose flwr lacks a function that a guard needs
# Flower must not send usage reports, check for updates, or install packages.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    # Seconds between Flower's checks for new tasks. The default is 1.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
PATIENCE = 10.0  # seconds that a process has to end before it is killed


def need_flower() -> None:
    """Raise `BadValue` unless the version of flwr that sagda needs is installed."""
    try:
        version = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    # `guards` replaces private functions of Flower, which other versions may lack.
    if version.split(".")[:2] != FLOWER_VERSION.split("."):
        raise BadValue(
            f"federations need flwr {FLOWER_VERSION}, found {version}; "
            "pip install 'sagda[flower]'."
        )


def program(name: str) -> str:
    """Return the path of a Flower command in this Python environment."""
    return str(Path(sys.executable).with_name(name))


# On Linux, a process can ask the kernel to send it SIGTERM (15) when its parent dies:
# prctl(PR_SET_PDEATHSIG = 1). This small program asks for it and then becomes the real
# command. The alternative in Python is `preexec_fn`. It can deadlock, because JAX has
# threads.
LEASH = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


class Process:
    """A running process, and all processes that it starts, with one log file.

    Args:
        command: the program, as an absolute path, and its arguments.
        home: a folder for Flower's own files (FLWR_HOME), made if needed.
        log: the file to which the output is appended.
        environment: variables to set, in addition to those of the current process.
    """

    def __init__(
        self, command: list[str], home: Path, log: Path, **environment: str
    ) -> None:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Flower starts its helper programs by name, so PATH must contain them.
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
                umask=0o077,  # only the owner may read the files that it writes
                # With a new session, `stop` can end the whole process group. Ctrl-C in
                # the terminal reaches only the parent process, which then calls `stop`.
                start_new_session=True,
            )
        self.pid = self.process.pid

    @property
    def code(self) -> int | None:
        """The exit code of the process, or None while it runs."""
        return self.process.poll()

    def wait_for_port(self, name: str, host: str, port: int, seconds: float) -> None:
        """Wait until the process accepts connections on a port.

        Raises `BadValue` if the process ends, or does not accept any in time.
        """
        deadline = time.monotonic() + seconds
        while not network.listens(host, port):
            if self.code is not None or time.monotonic() > deadline:
                self.stop()
                raise BadValue(f"{name} did not start: {self.last_lines()}")
            time.sleep(0.1)

    def finish(self, seconds: float) -> int | None:
        """Wait for the end of the process, at most `seconds`. Return its exit code."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.stop()
        return self.code

    def stop(self, patience: float = PATIENCE) -> None:
        """End the process and its process group. Kill them after `patience` seconds."""
        if self.code is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
        deadline = time.monotonic() + PATIENCE / 2
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < deadline:
                os.killpg(self.pid, 0)  # raises once the whole group has ended
                time.sleep(0.1)
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()

    def output(self) -> str:
        """Return the content of the log file."""
        return self.log.read_text(errors="replace")

    def last_lines(self, count: int = 3) -> str:
        """Return the last lines of the log, joined. They usually say why it ended."""
        lines = self.output().strip().splitlines()
        return " / ".join(line.strip() for line in lines[-count:])


def lives(pid: int, word: str = "") -> bool:
    """Return True if process `pid` runs and has `word` in its command line.

    The system reuses process ids. So give `word` before you kill a process whose id you
    have read from a file.
    """
    try:
        os.kill(pid, 0)  # sends nothing, and raises if there is no such process
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return not word  # another user's process, or a system without /proc
    # The command line of a zombie (ended, but not reaped) is empty.
    return bool(line) and word.encode() in line
