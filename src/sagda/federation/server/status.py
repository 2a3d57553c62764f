"""The status file of a running server: status.json, written again at every event.

`sagda serve` reads the file, shows it (`server.display`) and restarts a server that has
died. The server itself does not read it: the durable state is in `server.store`.
"""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sagda.federation.events import Event

FILE = "status.json"
NEWEST = 20  # the number of newest warnings in the file
WARNINGS = {
    Event.ABANDONED: "round {round} was abandoned (too few answers) and is repeated",
    Event.DIVERGED: "round {round} diverged (NaN or infinity) and is repeated; "
    "lower the learning rates, or set `bound` to refuse replies with a large norm",
    Event.JOINED: "{name} joined",
    Event.LEFT: "{name} {why}",
    Event.ABSENT: "{name} has not answered for many rounds; its control variate stays "
    "in the mean until the site leaves, or `max_absence` removes it",
    Event.RESET: "all control variates were reset (epoch {epoch})",
}


@dataclass
class FederationStatus:
    """The content of status.json."""

    pid: int  # of the server
    rounds: int  # the number of rounds in total
    sites: int  # the number of sites that the run waits for
    state: str = "waiting"  # waiting, running, done or failed
    round: int = 0  # the number of committed rounds
    phase: str = ""
    # Names of sites in the present exchange.
    waiting_for: list[str] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # with the code
    # Refused answers since the start, by code.
    refusals: dict[str, int] = field(default_factory=dict)
    # Members whose replies were used in the last round, by phase.
    accepted: dict[str, list[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)  # the newest row of the history
    left: float = 0.0  # the estimated time to the end in seconds
    code: int | None = None  # the exit code. None: the server has not ended.
    sentence: str = ""  # why the server failed


class StatusFile:
    """A listener that writes status.json after every event.

    The file is replaced in one step, so a reader never gets an incomplete one.
    """

    def __init__(self, folder: Path, rounds: int, sites: int):
        self.path = folder / FILE
        self.status = FederationStatus(os.getpid(), rounds, sites)
        self.started = time.monotonic()
        self.first: int | None = None  # the round of the first commit since the start
        self.write()

    def __call__(self, event: Event, **details: Any) -> None:
        """Add a warning for the event or call its method `on_EVENT`; write the file."""
        if event in WARNINGS:
            self.warn(WARNINGS[event].format(**details))
        else:
            getattr(self, f"on_{event.value}")(**details)
        self.write()

    def write(self) -> None:
        """Replace the file. Without fsync, because nothing needs it after a crash."""
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
        """Remove a site from those that the exchange waits for."""
        waiting = self.status.waiting_for
        self.status.waiting_for = [other for other in waiting if other != name]

    def on_committed(self, round: int, accepted: dict[str, list[str]]) -> None:
        if self.first is None:
            # The first round includes compilation, so the clock starts after it.
            self.first, self.started = round, time.monotonic()
        elif round > self.first:
            each = (time.monotonic() - self.started) / (round - self.first)
            self.status.left = each * (self.status.rounds - round)
        self.status.round, self.status.accepted = round, accepted
        if min(map(len, accepted.values()), default=2) == 1:
            self.warn(
                "a round used the reply of one site only, so others can compute this "
                "reply from the new point; raise `min_clients`"
            )

    def on_measured(self, row: dict[str, Any]) -> None:
        self.status.row, self.status.round = row, row["round"]

    def on_done(self, round: int) -> None:
        self.status.round, self.status.phase = round, ""
        self.status.waiting_for, self.status.left = [], 0.0

    def warn(self, text: str) -> None:
        """Add a warning, unless the newest warnings include it."""
        if text not in self.status.warnings:
            self.status.warnings = [*self.status.warnings, text][-NEWEST:]

    def end(self, code: int, sentence: str = "") -> None:
        """Write the exit code of the server, and why it failed."""
        self.status.state = "done" if code == 0 else "failed"
        self.status.code, self.status.sentence = code, sentence
        self.write()


def read_status(folder: Path) -> FederationStatus | None:
    """Read status.json in a server's folder. None: it is missing or not valid."""
    try:
        return FederationStatus(**json.loads((folder / FILE).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
