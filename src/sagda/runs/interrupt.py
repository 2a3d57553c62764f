"""`Interrupt`: turns Ctrl-C and SIGTERM into a polite request to stop a run."""

import signal
from types import FrameType
from typing import Any


class Interrupt:
    """While active, the first SIGINT or SIGTERM is noted, and the second one raises.

    Calling it tells whether a stop was requested. Runs ask between chunks of rounds, so
    that they can write a checkpoint before they stop.
    """

    def __init__(self) -> None:
        self.number = 0  # of the first signal
        self.before: dict[int, Any] = {}  # the handlers to restore

    def __enter__(self) -> "Interrupt":
        both = signal.SIGINT, signal.SIGTERM
        self.before = {number: signal.signal(number, self.handle) for number in both}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number

    def __call__(self) -> bool:
        return self.number != 0
