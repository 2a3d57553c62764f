"""Child processes that answer one line of JSON for each line of input.

`contest` measures contestants with them, and `ask` runs a script for one answer.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
PATIENCE = 600.0  # seconds to wait for an answer


class Failed(Exception):
    """A child process ended or did not answer. The message has the reason."""


class Child:
    """A child process in a new process group, so that its descendants end with it."""

    def __init__(self, command: Sequence[str], extra: dict[str, str] | None = None):
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=os.environ | (extra or {}),
            start_new_session=True,
            bufsize=0,
        )
        self.rest = b""

    def answer(self, patience: float = PATIENCE) -> dict:
        """Wait for the next line of JSON that the child prints, and return it."""
        assert self.process.stdout
        pipe, until = self.process.stdout.fileno(), time.monotonic() + patience
        while b"\n" not in self.rest:
            if time.monotonic() > until:
                raise Failed(f"no answer in {patience:.0f} s")
            if select.select([pipe], [], [], 0.1)[0]:
                some = os.read(pipe, 1 << 16)
                if not some:
                    raise Failed(self.last_words())
                self.rest += some
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)

    def seconds(self, rounds: int) -> float:
        """Let the child run `rounds` rounds. Return its measured seconds per round."""
        assert self.process.stdin
        try:
            self.process.stdin.write(f"{rounds}\n".encode())
        except BrokenPipeError:
            raise Failed(self.last_words()) from None
        return float(self.answer()["seconds"])

    def last_words(self) -> str:
        """Return the last line of the child's standard error."""
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "it ended without a message"

    def stop(self) -> None:
        """Close the child's input, wait for its end, and kill its process group."""
        assert self.process.stdin
        assert self.process.stdout
        with suppress(OSError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


def ask(script: str, *arguments: object, extra: dict[str, str] | None = None) -> dict:
    """Run `script` in a new process. Return its answer, and the seconds it took."""
    clock = time.perf_counter()
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    child = Child(command, extra)
    try:
        answer = child.answer(patience=3600)
        return answer | {"process_seconds": time.perf_counter() - clock}
    finally:
        child.stop()
