"""The display of a running federation on a terminal, from the server's status file.

`sagda serve` and `sagda federation-demo` show it. The HTML report of a finished run is
in `sagda.report`.
"""

import sys

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sagda.federation.server.status import FederationStatus
from sagda.problems.metrics import judged_by, metric_of
from sagda.runs.results import bytes_text


class FederationDisplay:
    """Shows a federation in two live lines, or prints one line per round.

    The lines are live if the standard error stream is a terminal. With `quiet`, nothing
    is shown.
    """

    def __init__(self, quiet: bool):
        self.quiet = quiet
        self.console = Console(stderr=True, soft_wrap=True)
        self.live: Live | None = None
        self.warned: set[str] = set()
        self.last = ""

    def __enter__(self) -> "FederationDisplay":
        if not self.quiet and sys.stderr.isatty():
            self.live = Live(console=self.console, refresh_per_second=4)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def say(self, text: str) -> None:
        """Print a line above the live lines."""
        if not self.quiet:
            self.console.print(f"sagda: {text}", highlight=False, markup=False)

    def __call__(self, status: FederationStatus | None) -> None:
        """Show a status. Print each of its warnings only once."""
        if self.quiet or status is None:
            return
        for text in status.warnings:
            if text not in self.warned:
                self.warned.add(text)
                self.say(text)
        lines = [headline(status), participants(status)]
        if self.live is not None:
            self.live.update(Group(*(Text(line) for line in lines if line)))
        elif lines[0] != self.last and status.state != "failed":
            self.last = lines[0]
            self.say(lines[0])


def headline(status: FederationStatus) -> str:
    """Return one line with the round, bytes, metrics, refusals and the time left."""
    if status.state == "waiting":
        count = len(status.answered)
        return f"waiting for sites: {count} of {status.sites} are connected"
    parts = [f"round {status.round} of {status.rounds}"]
    if row := status.row:
        total = row["bytes_down"] + row["bytes_up"]
        parts.append(bytes_text(total))
        judged = judged_by(row)
        parts.append(f"{metric_of(judged).symbol} {row[judged]:.1e}")
        parts += [f"AUC {row['auc_train']:.4f}"] if "auc_train" in row else []
    if refusals := status.refusals:
        total = ", ".join(f"{code} {count}" for code, count in refusals.items())
        parts.append(f"refused: {total}")
    if status.left:
        parts.append(f"{status.left:.0f} s left")
    return "  ".join(parts)


def participants(status: FederationStatus) -> str:
    """Return one line with the sites that answered, were refused, or are awaited."""
    if status.state != "running":
        return ""
    refused = [f"{name} ({code})" for name, code in status.refused.items()]
    groups = {
        "answered": status.answered,
        "refused": refused,
        "waiting for": status.waiting_for,
    }
    parts = [f"{what} {', '.join(names)}" for what, names in groups.items() if names]
    return f"{status.phase}: {'; '.join(parts)}"
