"""The audit log: one line for every message accepted or refused, and every change.

With the coordinator's register of keys, a line's `mark` and `seal` prove who sent what.
The log is for auditors. The run never reads it.
"""

import datetime
import json
import os
from pathlib import Path
from typing import Any

from sagda.federation.events import Event
from sagda.federation.protocol.letters import Letter

FILE = "audit.jsonl"
LOGGED = (Event.ACCEPTED, Event.REFUSED, Event.JOINED, Event.LEFT, Event.RESET)


class Audit:
    """A log file that only grows. Several processes may write to it."""

    def __init__(self, folder: Path):
        self.path = folder / FILE

    def __call__(self, event: Event, **details: Any) -> None:
        """Write a line for the events in `LOGGED`."""
        if event not in LOGGED:
            return
        letter = details.pop("letter", None)
        if isinstance(letter, Letter) and letter.mark:
            details |= {"mark": letter.mark.hex(), "seal": letter.seal}
            for field in ("round", "ticket"):
                if hasattr(letter.note, field):
                    details[field] = getattr(letter.note, field)
        self.write(event.value, **details)

    def write(self, what: str, **details: Any) -> None:
        """Append a line in one write, so that lines of two processes do not mix."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "what": what, **details}) + "\n"
        # O_APPEND puts each write at the end, whichever process wrote last.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        handle = os.open(self.path, flags, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
