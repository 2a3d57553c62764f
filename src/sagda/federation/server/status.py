"""The server's status while it runs, in a small file for whoever watches its folder.

`sagda serve` shows it (`server.display`) and restarts a server that has died. The run
itself never reads it: what must survive is in `server.store`.
"""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sagda.federation.events import Event

FILE = "status.json"
NEWEST = 20  # warnings that the file holds
WARNINGS = {
    Event.ABANDONED: "round {round} was abandoned (too few answers) and is repeated",
    Event.DIVERGED: "round {round} diverged (NaN or infinity) and does not count; "
    "lower the learning rates, or set `bound` to refuse replies that are too long",
    Event.JOINED: "{name} joined",
    Event.LEFT: "{name} {why}",
    Event.ABSENT: "{name} has not answered for many rounds; its variate still counts",
    Event.RESET: "all variates were reset: epoch {epoch}",
}


@dataclass
class FederationStatus:
    """The content of status.json."""

    pid: int
    rounds: int  # in total
    sites: int  # that the run waits for
    state: str = "waiting"  # waiting, running, done or failed
    round: int = 0
    phase: str = ""
    waiting_for: list[str] = field(default_factory=list)  # in this exchange
    answered: list[str] = field(default_factory=list)  # in this exchange
    refused: dict[str, str] = field(default_factory=dict)  # in this exchange: codes
    refusals: dict[str, int] = field(default_factory=dict)  # since the start, by code
    accepted: dict[str, list[str]] = field(default_factory=dict)  # in the last round
    warnings: list[str] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)  # the newest of the history
    left: float = 0.0  # seconds, estimated
    code: int | None = None  # the exit code, once it has ended
    sentence: str = ""  # why it failed


class StatusFile:
    """Writes status.json after every event; the file is whole at any time."""

    def __init__(self, folder: Path, rounds: int, sites: int):
        self.path = folder / FILE
        self.status = FederationStatus(os.getpid(), rounds, sites)
        self.started = time.monotonic()
        self.first: int | None = None  # the first round committed since the start
        self.write()

    def __call__(self, event: Event, **details: Any) -> None:
        """Update the file for an event: a warning, or what `on_EVENT` does."""
        if event in WARNINGS:
            self.warn(WARNINGS[event].format(**details))
        else:
            getattr(self, f"on_{event.value}")(**details)
        self.write()

    def write(self) -> None:
        """Replace the file; no fsync, since nothing depends on it after a crash."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self.status)))
        part.replace(self.path)

    def on_waiting(self, names: list[str], sites: int) -> None:
        self.status.state = "waiting"
        self.status.answered, self.status.sites = names, sites

    def on_asked(self, phase: str, names: list[str]) -> None:
        self.status.state, self.status.phase = "running", phase
        self.status.waiting_for, self.status.answered = list(names), []
        self.status.refused = {}

    def on_accepted(self, name: str, phase: str, **_: Any) -> None:
        self.heard(name)
        self.status.answered = sorted([*self.status.answered, name])

    def on_refused(self, name: str, code: str, text: str, **_: Any) -> None:
        self.heard(name)
        self.status.refused[name] = code
        refusals = self.status.refusals
        refusals[code] = refusals.get(code, 0) + 1

    def heard(self, name: str) -> None:
        """A site answered, so the exchange no longer waits for it."""
        waiting = self.status.waiting_for
        self.status.waiting_for = [other for other in waiting if other != name]

    def on_committed(self, round: int, accepted: dict[str, list[str]]) -> None:
        if self.first is None:
            # The first round compiles: time is measured after it.
            self.first, self.started = round, time.monotonic()
        elif round > self.first:
            each = (time.monotonic() - self.started) / (round - self.first)
            self.status.left = each * (self.status.rounds - round)
        self.status.round, self.status.accepted = round, accepted
        if min(map(len, accepted.values()), default=2) == 1:
            self.warn("a round with one site: its variate can be told from the mean")

    def on_measured(self, row: dict[str, Any]) -> None:
        self.status.row, self.status.round = row, row["round"]

    def on_done(self, round: int) -> None:
        self.status.round, self.status.phase = round, ""
        self.status.waiting_for, self.status.left = [], 0.0

    def warn(self, text: str) -> None:
        """Add a warning, unless it is among the newest already."""
        if text not in self.status.warnings:
            self.status.warnings = [*self.status.warnings, text][-NEWEST:]

    def end(self, code: int, sentence: str = "") -> None:
        """Write how the server ended."""
        self.status.state = "done" if code == 0 else "failed"
        self.status.code, self.status.sentence = code, sentence
        self.write()


def read_status(folder: Path) -> FederationStatus | None:
    """The content of status.json in a server's folder, or None if there is none."""
    try:
        return FederationStatus(**json.loads((folder / FILE).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
