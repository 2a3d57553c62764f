"""Progress and results of `sagda reproduce` on a terminal.

`page` and `slopes` make the HTML pages instead. Progress of `sagda run` is in
`sagda.report.terminal`.
"""

import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from sagda.paper.run import Job
from sagda.paper.speedup import Slope
from sagda.runs.execution import RunMonitor, Stopped
from sagda.runs.interrupt import Interrupt
from sagda.simulator import run as runs

CHECKPOINT_SECONDS = 20.0


class ReproductionDisplay:
    """One progress bar for all runs of a reproduction.

    `total` is the expected work of all runs. Its unit is that of the `work` of a `Job`
    or a `Task`.
    """

    def __init__(self, total: float, quiet: bool, stop: Interrupt):
        terminal = sys.stderr.isatty()
        self.console = Console(stderr=True, soft_wrap=True)
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            disable=quiet or not terminal,
        )
        self.task_id = self.bars.add_task("starting", total=total)
        self.done, self.stop = 0.0, stop
        self.lines = not quiet and not terminal

    def watch(self, job: Job) -> RunMonitor:
        """Return callbacks for `execute` that show the progress of one run folder."""
        finished, before = 0.0, self.done
        # A sweep runs all its points at once. Without a grid, algorithms run in turn.
        batches = 1 if job.config.grid else len(job.config.algorithms)
        each = job.work / batches

        def started(name: str, first: int) -> None:
            self.describe(f"{job.title}: {name}")

        def progress(name: str, now: runs.Progress) -> None:
            nonlocal finished
            done = before + finished + each * now.round / now.rounds
            self.bars.update(self.task_id, completed=done)
            if now.round == now.rounds:
                finished += each

        self.done += job.work
        return RunMonitor(started, progress, self.say, self.stop, CHECKPOINT_SECONDS)

    def task(self, title: str, work: float) -> Callable[[runs.Progress], None]:
        """Return a callback that shows the progress of a run without a run folder.

        The callback raises `Stopped` if the user stops the program. Such a run has no
        checkpoint, so it starts from round 0 the next time.
        """
        before = self.done
        self.done += work
        self.describe(title)

        def progress(now: runs.Progress) -> None:
            done = before + work * now.round / now.rounds
            self.bars.update(self.task_id, completed=done)
            if self.stop():
                raise Stopped(title, now)

        return progress

    def skip(self, work: float) -> None:
        """Count the work of finished runs as done."""
        self.done += work
        self.bars.update(self.task_id, completed=self.done)

    def describe(self, title: str) -> None:
        """Show the title of the current run: next to the bar, or as a line of output.

        Without a terminal there is no bar.
        """
        self.bars.update(self.task_id, description=title)
        if self.lines:
            self.say(title)

    def say(self, message: str) -> None:
        """Print a sentence above the bar."""
        self.console.print(f"sagda: {message}", highlight=False, markup=False)


def table_of(heads: tuple[str, ...], wrapped: str = "") -> Table:
    """Return an empty table. Only the column `wrapped` may break its lines."""
    columns = [Column(head, no_wrap=head != wrapped) for head in heads]
    return Table(*columns, box=None, pad_edge=False)


def show_speedup(facts: dict[str, Any]) -> None:
    """Print the slopes, and the bounds of the theorems."""
    slopes = table_of(("problem", "clients", "method", "swept", "slope", "predicted"))
    for row in facts["slopes"]:
        slope = Slope(row["value"], row["low"], row["high"])
        head = [row[key] for key in ("bench", "clients", "method", "over")]
        slopes.add_row(*head, str(slope), f"{row['predicted']:g}")
    theorems = table_of(("theorem", "m of M", "K", "T", "bound", "measured", "ratio"))
    for row in facts["theorems"]:
        M, m, K, T = row["setting"].values()
        mean = sum(row["measured"]) / len(row["measured"])
        cells = [f"{row['printed']:.3g}", f"{mean:.3g}", f"{mean / row['printed']:.2f}"]
        theorems.add_row(row["method"], f"{m} of {M}", str(K), f"{T:,}", *cells)
    out = Console(width=None if sys.stdout.isatty() else 120)
    out.print(slopes, "", theorems, sep="\n")
    print(f"page: {facts['page']}")


def show_figures(facts: dict[str, Any]) -> None:
    """Print the verdicts on the claims of the paper."""
    table = table_of(("verdict", "setting", "claim"), wrapped="claim")
    for row in facts["verdicts"]:
        table.add_row(row["verdict"], row["setting"], row["claim"])
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if facts["left_out"]:
        print(f"left out: {', '.join(facts['left_out'])}")
    print(f"page: {facts['page']}")
