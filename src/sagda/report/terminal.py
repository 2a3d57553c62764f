"""Progress, result tables and evaluations on a terminal.

Data sets, splits and the list of names are in `terminal_data.py`. Advice and bounds are
in `terminal_theory.py`. The HTML report of a run is in `run_page.py`.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as ProgressBars
from rich.table import Table as RichTable

from sagda.problems.metrics import judged_by, metric_of
from sagda.report.blocks import Grid
from sagda.report.evaluation_page import clients_grid, headlines
from sagda.report.tables import results_grid
from sagda.runs.config import Config
from sagda.runs.execution import RunMonitor
from sagda.runs.results import Results
from sagda.scoring.evaluation import Evaluation
from sagda.simulator.run import Progress

LISTED = 20  # the largest number of clients in a table


def rich_table(grid: Grid) -> RichTable:
    """Convert a table for the terminal. Numeric columns are aligned to the right."""
    table = RichTable(box=None, pad_edge=False)
    for i, name in enumerate(grid.head):
        side = "right" if grid.numeric and i > 0 else "left"
        table.add_column(name, justify=side, no_wrap=grid.numeric)
    for row in grid.rows:
        table.add_row(*row)
    return table


class RunDisplay:
    """A progress bar for each algorithm, with its speed and its error.

    No bars appear if `quiet` is true or if standard error is not a terminal.
    """

    def __init__(self, config: Config, quiet: bool):
        self.config = config
        self.console = Console(stderr=True, soft_wrap=True)
        self.bars = ProgressBars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[error]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=quiet or not sys.stderr.isatty(),
        )
        self.tasks: dict[str, TaskID] = {}
        # By algorithm: rounds and seconds when its speed is first measured.
        self.starts: dict[str, tuple[int, float]] = {}

    def monitor(
        self, stop: Callable[[], bool], checkpoint_seconds: float
    ) -> RunMonitor:
        """Return callbacks that connect this display to `execute`."""
        return RunMonitor(
            started=self.started,
            progress=self.progress,
            warn=self.warn,
            stop=stop,
            checkpoint_seconds=checkpoint_seconds,
        )

    def started(self, name: str, first: int) -> None:
        """Add a bar for the algorithm `name`, which starts at round `first`."""
        width = max(map(len, self.config.algorithms))
        self.tasks[name] = self.bars.add_task(
            name.ljust(width),
            total=self.config.rounds,
            completed=first,
            rate="compiling",
            error="",
        )

    def progress(self, name: str, now: Progress) -> None:
        """Update the bar of the algorithm `name`."""
        # The first chunk includes compiling, so the speed is measured from its end.
        start = self.starts.setdefault(name, (now.round, now.seconds))
        rounds, seconds = now.round - start[0], now.seconds - start[1]
        rate = f"{rounds / seconds:.0f} rounds/s" if seconds > 0 else ""
        main = judged_by(now.latest)
        values = now.latest[main]
        # A sweep shows its best point, because some points always diverge.
        value = np.nanmin(values, initial=np.inf) if self.config.grid else values.mean()
        error = f"{metric_of(main).symbol} {value:.1e}"
        task = self.tasks[name]
        self.bars.update(task, completed=now.round, rate=rate, error=error)

    def warn(self, message: str) -> None:
        """Print a sentence above the bars."""
        self.console.print(f"sagda: {message}", highlight=False, markup=False)


def show_results(results: Results, folder: Path, page: str) -> None:
    """Print the results of a finished run folder, its path and the line `page`."""
    table = rich_table(results_grid(results))
    # A pipe or a file has no width. Without a width, rich would wrap at 80 columns.
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    print(f"run folder: {folder}\n{page}")


def show_evaluation(evaluation: Evaluation, made: list[Path]) -> None:
    """Print the numbers and the clients of an evaluation, and the files it `made`."""
    out = Console(highlight=False, soft_wrap=True)
    for line in headlines(evaluation):
        out.print(line, markup=False)
    clients = evaluation.clients
    if clients:
        out.print(rich_table(clients_grid(clients[:LISTED])))
        if len(clients) > LISTED:
            out.print(f"… and {len(clients) - LISTED} more in {made[-1]}")
    for path in made:
        print(path)
