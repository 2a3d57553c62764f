"""Events of a federated run, and the listener that is notified of them.

The server and its transport notify one listener, which keeps `status.json` and the
audit log (`federation.server.status`, `federation.server.audit`). Nothing in a run
depends on a listener.
"""

from enum import Enum
from typing import Any, Protocol


class Event(Enum):
    """What happened; the comment names the details that come with it."""

    WAITING = "waiting"  # names, sites: too few sites are connected yet
    ASKED = "asked"  # phase, names
    ACCEPTED = "accepted"  # name, phase, letter
    REFUSED = "refused"  # name, code, text, letter
    COMMITTED = "committed"  # round, accepted: the names by phase
    ABANDONED = "abandoned"  # round: too few answers; it will be repeated
    DIVERGED = "diverged"  # round: NaN or infinity; it will be repeated
    MEASURED = "measured"  # row: of the history
    JOINED = "joined"  # name
    LEFT = "left"  # name, why
    ABSENT = "absent"  # name: has not answered for many rounds
    RESET = "reset"  # epoch: every variate is the first one again
    DONE = "done"  # round


class Notify(Protocol):
    """A listener: called with every event and its details."""

    def __call__(self, event: Event, **details: Any) -> None: ...


def nobody(event: Event, **details: Any) -> None:
    """The listener that ignores every event."""
