"""Events of a federated run, and the listener that is notified of them.

The server and its transport call one listener with every event. The listener writes
`status.json` (`federation.server.status`) and the audit log
(`federation.server.audit`). The results of a run do not depend on the listener.
"""

from enum import Enum
from typing import Any, Protocol


class Event(Enum):
    """The kinds of events. Each comment begins with the details in brackets."""

    WAITING = "waiting"  # [names, sites] too few sites are connected
    ASKED = "asked"  # [phase, names] the server sent letters to these sites
    ACCEPTED = "accepted"  # [name, phase, letter] the server accepted an answer
    REFUSED = "refused"  # [name, code, text, letter] the server refused an answer
    COMMITTED = "committed"  # [round, accepted: names by phase] a round is durable
    ABANDONED = "abandoned"  # [round] too few answers; the round will be repeated
    DIVERGED = "diverged"  # [round] NaN or infinity; the round will be repeated
    MEASURED = "measured"  # [row] the history has a new row
    JOINED = "joined"  # [name] a site became a member
    LEFT = "left"  # [name, why] a member was removed
    ABSENT = "absent"  # [name] a member has not answered for many rounds
    RESET = "reset"  # [epoch] every control variate has its first value again
    DONE = "done"  # [round] the last round is committed


class Notify(Protocol):
    """The type of a listener: a function that takes an event and its details."""

    def __call__(self, event: Event, **details: Any) -> None: ...


def nobody(event: Event, **details: Any) -> None:
    """Ignore the event: the listener of runs that need none."""
