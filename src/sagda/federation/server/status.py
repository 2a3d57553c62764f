"""What a server says of itself while it runs, for whoever watches its folder."""

import json
import os
import time
from pathlib import Path
from typing import Any

from sagda.federation.events import Event

FILE = "status.json"


class Status:
    """A small file that is always whole; nothing depends on it."""

    def __init__(self, folder: Path, rounds: int, sites: int):
        self.path = folder / FILE
        self.now: dict[str, Any] = {
            "pid": os.getpid(),
            "state": "waiting",
            "round": 0,
            "rounds": rounds,
            "sites": sites,
            "phase": "",
            "waiting_for": [],
            "answered": [],
            "refused": {},  # in this exchange: name, and why
            "refusals": {},  # since this start: code, and how often
            "warnings": [],
            "row": {},
        }
        self.started = time.monotonic()
        self.first: int | None = None
        self.write()

    def __call__(self, event: Event, **details: Any) -> None:
        getattr(self, f"on_{event.value}")(**details)
        self.write()

    def write(self) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.now))
        part.replace(self.path)

    def on_waiting(self, names: list[str], sites: int) -> None:
        self.now |= {"state": "waiting", "answered": names, "sites": sites}

    def on_asked(self, phase: str, names: list[str]) -> None:
        self.now |= {"state": "running", "phase": phase, "waiting_for": names}
        self.now |= {"answered": [], "refused": {}}

    def on_accepted(self, name: str, phase: str, **_: Any) -> None:
        waiting = [n for n in self.now["waiting_for"] if n != name]
        answered = sorted([*self.now["answered"], name])
        self.now |= {"waiting_for": waiting, "answered": answered}

    def on_refused(self, name: str, code: str, text: str, **_: Any) -> None:
        waiting = [n for n in self.now["waiting_for"] if n != name]
        refused = self.now["refused"] | {name: code}
        counts = self.now["refusals"]
        counts = counts | {code: counts.get(code, 0) + 1}
        self.now |= {"waiting_for": waiting, "refused": refused, "refusals": counts}

    def on_committed(self, round: int, accepted: dict[str, list[str]]) -> None:
        if self.first is None:
            self.first, self.started = round, time.monotonic()
        elif round > self.first:
            each = (time.monotonic() - self.started) / (round - self.first)
            self.now["left"] = each * (self.now["rounds"] - round)
        self.now |= {"round": round, "accepted": accepted}
        if min(map(len, accepted.values()), default=2) == 1:
            self.warn("a round with one client: its variate can be told from the mean")

    def on_abandoned(self, round: int) -> None:
        self.warn(f"round {round} was abandoned: too few answers; it is repeated")

    def on_diverged(self, round: int) -> None:
        self.warn(
            f"round {round} left the finite numbers and does not count; lower the "
            "rates, or set `bound` against a reply that is too long"
        )

    def on_measured(self, row: dict[str, Any]) -> None:
        self.now |= {"row": row, "round": row["round"]}

    def on_joined(self, name: str) -> None:
        self.warn(f"{name} joined")

    def on_left(self, name: str, why: str = "left") -> None:
        self.warn(f"{name} {why}")

    def on_absent(self, name: str) -> None:
        self.warn(f"{name} has been silent for long; its variate still counts")

    def on_reset(self, epoch: int) -> None:
        self.warn(f"all variates were set back: epoch {epoch}")

    def on_done(self, round: int) -> None:
        self.now |= {"round": round, "phase": "", "waiting_for": [], "left": 0.0}

    def warn(self, text: str) -> None:
        """The newest few; the same one is said once."""
        if text not in self.now["warnings"]:
            self.now["warnings"] = [*self.now["warnings"], text][-20:]

    def end(self, code: int, sentence: str = "") -> None:
        state = "done" if code == 0 else "failed"
        self.now |= {"state": state, "code": code, "sentence": sentence}
        self.write()


def read_status(folder: Path) -> dict[str, Any]:
    """What the server last said; empty if nothing."""
    try:
        return json.loads((folder / FILE).read_text())
    except (FileNotFoundError, ValueError):
        return {}
