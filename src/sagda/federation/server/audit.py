"""One line for every message that was accepted or refused, and who comes and goes."""

import datetime
import json
import os
from pathlib import Path
from typing import Any

from sagda.federation.events import Event
from sagda.federation.protocol.letters import Letter

FILE = "audit.jsonl"
HEARD = (Event.ACCEPTED, Event.REFUSED, Event.JOINED, Event.LEFT, Event.RESET)


class Audit:
    """A file that only grows; several processes may write to it."""

    def __init__(self, folder: Path):
        self.path = folder / FILE

    def __call__(self, event: Event, **details: Any) -> None:
        """Write a line for the events in `HEARD`."""
        if event not in HEARD:
            return
        letter = details.pop("letter", None)
        if isinstance(letter, Letter) and letter.mark:
            # With the register of keys, these two prove who said what.
            details |= {"mark": letter.mark.hex(), "seal": letter.seal}
            for field in ("round", "ticket"):
                if hasattr(letter.note, field):
                    details[field] = getattr(letter.note, field)
        self.write(event.value, **details)

    def write(self, what: str, **details: Any) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "what": what, **details}) + "\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        handle = os.open(self.path, flags, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


def read_audit(folder: Path) -> list[dict[str, Any]]:
    try:
        lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]
