"""`Interrupt`: turn Ctrl-C and SIGTERM into a request to stop a run.

It only records the signal. `execution.py` asks for it and stops the run.
"""

import signal
from types import FrameType
from typing import Any


class Interrupt:
    """A context manager that records the first SIGINT or SIGTERM.

    A second signal raises `KeyboardInterrupt`. Calling the object returns True if a
    stop was requested. Runs call it between chunks of rounds, so that they can write a
    checkpoint before they stop.
    """

    def __init__(self) -> None:
        self.number = 0  # the number of the first signal; 0 before any signal
        self.before: dict[int, Any] = {}  # the handlers to restore

    def __enter__(self) -> "Interrupt":
        both = signal.SIGINT, signal.SIGTERM
        self.before = {number: signal.signal(number, self.handle) for number in both}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Record the first signal, and raise `KeyboardInterrupt` at the second."""
        if self.number:
            raise KeyboardInterrupt
        self.number = number

    def __call__(self) -> bool:
        return self.number != 0
