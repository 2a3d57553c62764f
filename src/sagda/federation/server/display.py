"""What a person sees of a federation while it runs."""

import sys
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sagda.problems.metrics import judged_by, metric_of
from sagda.runs.results import bytes_text


class FederationDisplay:
    """A few live lines on a terminal, one line per round elsewhere, or nothing."""

    def __init__(self, quiet: bool):
        self.quiet = quiet
        self.console = Console(stderr=True, soft_wrap=True)
        self.live: Live | None = None
        self.said: set[str] = set()
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
        if not self.quiet:
            self.console.print(f"sagda: {text}", highlight=False, markup=False)

    def __call__(self, status: dict[str, Any]) -> None:
        if self.quiet or not status:
            return
        for text in status.get("warnings", []):
            if text not in self.said:
                self.said.add(text)
                self.say(text)
        lines = [headline(status), participants(status)]
        if self.live is not None:
            self.live.update(Group(*(Text(line) for line in lines if line)))
        elif lines[0] != self.last and status.get("state") != "failed":
            self.last = lines[0]
            self.say(lines[0])


def headline(status: dict[str, Any]) -> str:
    """round 3 of 8, bytes, the measure, time left."""
    if status.get("state") == "waiting":
        here = status.get("answered", [])
        return f"waiting for sites: {len(here)} of {status['sites']} are here"
    row, parts = status.get("row", {}), []
    parts.append(f"round {status['round']} of {status['rounds']}")
    if row:
        total = row["bytes_down"] + row["bytes_up"]
        parts.append(bytes_text(total))
        judged = judged_by(row)
        parts.append(f"{metric_of(judged).symbol} {row[judged]:.1e}")
        parts += [f"AUC {row['auc_train']:.4f}"] if "auc_train" in row else []
    if refusals := status.get("refusals"):
        total = ", ".join(f"{code} {count}" for code, count in refusals.items())
        parts.append(f"refused: {total}")
    if status.get("left"):
        parts.append(f"{status['left']:.0f} s left")
    return "  ".join(parts)


def participants(status: dict[str, Any]) -> str:
    """Who answered, who was refused and why, who is awaited."""
    if status.get("state") != "running":
        return ""
    refused = [f"{name} ({code})" for name, code in status["refused"].items()]
    groups = {
        "answered": status["answered"],
        "refused": refused,
        "waiting for": status["waiting_for"],
    }
    said = [f"{what} {', '.join(who)}" for what, who in groups.items() if who]
    return f"{status['phase']}: {'; '.join(said)}"
