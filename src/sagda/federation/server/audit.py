"""The audit log: a line per answer, accepted or refused, and per change of the members.

A reset of the control variates also has a line. A line of an answer has its `mark` and
its `seal`. With the public keys of the sites, they prove which site sent the answer.
The log is for auditors. The run does not read it.
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
    """A listener that appends lines to the audit log.

    Several processes may write to the same file.
    """

    def __init__(self, folder: Path):
        self.path = folder / FILE

    def __call__(self, event: Event, **details: Any) -> None:
        """Write a line, if the event is one of `LOGGED`."""
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
        """Append a line in one write, so that the lines of two processes do not mix.

        Args:
            what: the kind of event.
            details: the other fields of the line.
        """
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "what": what, **details}) + "\n"
        # O_APPEND puts each write at the end, whichever process wrote last.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        handle = os.open(self.path, flags, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
