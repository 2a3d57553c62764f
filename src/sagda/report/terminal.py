"""What a person sees: progress, tables, catalogues; and the signals they send."""

import inspect
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, TypedDict

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table as RichTable
from rich.text import Text

from sagda.algorithms import ALGORITHMS
from sagda.data.datasets import DATASETS, load
from sagda.data.federation import Federation, Table
from sagda.data.partition import PARTITIONS
from sagda.problems import PROBLEMS
from sagda.problems.metrics import METRICS, judged_by, metric_of
from sagda.report.evaluation_page import client_cells, headlines
from sagda.runs.config import Config
from sagda.runs.experiment import options_of
from sagda.runs.folder import Watch
from sagda.runs.results import Results, read_results
from sagda.scoring.evaluation import Evaluation
from sagda.simulator import run as runs
from sagda.trackers import TRACKERS


class Interrupt:
    """Turns SIGINT and SIGTERM into a wish to stop; a second one stops at once."""

    def __init__(self) -> None:
        self.number = 0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        for number in (signal.SIGINT, signal.SIGTERM):
            self.before[number] = signal.signal(number, self.ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def ask(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number

    def __call__(self) -> bool:
        return self.number != 0


class RunDisplay:
    """A live line per algorithm; nothing where nobody looks."""

    def __init__(self, config: Config, quiet: bool):
        self.config = config
        self.console = Console(stderr=True, soft_wrap=True)
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[error]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=quiet or not sys.stderr.isatty(),
        )
        self.tasks: dict[str, Any] = {}
        self.first: dict[str, tuple[int, float]] = {}

    def __enter__(self) -> "RunDisplay":
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def watch(self, stop: Interrupt, checkpoint_seconds: float) -> Watch:
        return Watch(self.started, self.progress, self.warn, stop, checkpoint_seconds)

    def started(self, name: str, first: int) -> None:
        total = self.config.rounds
        width = max(map(len, self.config.algorithms))
        self.tasks[name] = self.bars.add_task(
            name.ljust(width), total=total, completed=first, rate="compiling", error=""
        )

    def progress(self, name: str, now: runs.Progress) -> None:
        then = self.first.setdefault(name, (now.round, now.seconds))
        rounds, seconds = now.round - then[0], now.seconds - then[1]
        rate = f"{rounds / seconds:.0f} rounds/s" if seconds > 0 else ""
        judged = judged_by(now.latest)
        symbol, found = metric_of(judged).symbol, now.latest[judged]
        # A sweep shows its best point: some always diverge.
        value = np.nanmin(found, initial=np.inf) if self.config.grid else found.mean()
        error = f"{symbol} {value:.1e}"
        self.bars.update(self.tasks[name], completed=now.round, rate=rate, error=error)

    def warn(self, message: str) -> None:
        self.console.print(f"sagda: {message}", highlight=False, markup=False)


def results_facts(folder: Path, page: str) -> dict[str, Any]:
    """What `--json` prints of a finished run folder."""
    summary = read_results(folder).summary
    return {"folder": str(folder), "summary": summary, "page": page}


def show_results(folder: Path, page: str) -> None:
    """Print the table of a finished run folder."""
    table = results_table(read_results(folder))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    print(f"run folder: {folder}\n{page}")


def results_table(found: Results) -> RichTable:
    table = RichTable(box=None, pad_edge=False)
    for name in ("point" if found.points else "algorithm", *found.headings):
        side = "left" if name in ("algorithm", "point") else "right"
        table.add_column(name, justify=side, no_wrap=True)
    for name, cells in found.table.items():
        table.add_row(name, *cells)
    return table


LISTED = 20  # clients in a table; the largest ones, or the first ones


def show_evaluation(evaluation: Evaluation, made: list[Path]) -> None:
    """Print an evaluation's numbers, its clients, and the files that it wrote."""
    out = Console(highlight=False, soft_wrap=True)
    for line in headlines(evaluation):
        out.print(line, markup=False)
    clients = evaluation.clients
    if clients:
        table = RichTable(
            "client", "rows", "positives", "AUC", box=None, pad_edge=False
        )
        for client in clients[:LISTED]:
            table.add_row(*client_cells(client))
        out.print(table)
        if len(clients) > LISTED:
            out.print(f"… and {len(clients) - LISTED} more in {made[-1]}")
    for path in made:
        print(path)


def split_facts(
    federation: Federation, counts: dict[str, list[int]], picture: Path | None
) -> dict[str, Any]:
    """What `--json` prints of a split."""
    return {
        "hash": federation.hash,
        "clients": federation.clients,
        "sizes": federation.size.tolist(),
        "labels": counts,
        "picture": None if picture is None else str(picture),
    }


def show_split(
    federation: Federation, counts: dict[str, list[int]], picture: Path | None
) -> None:
    """Print the rows and labels of every client."""
    sizes = federation.size.tolist()
    table = RichTable("client", "rows", *(f"class {c}" for c in counts), box=None)
    names = federation.names
    for i, size in enumerate(sizes):
        name = str(i) if names is None else str(names[i])
        table.add_row(name, str(size), *(str(held[i]) for held in counts.values()))
    Console().print(table)
    print(
        f"clients: {federation.clients}, rows: {sum(sizes)}, split: {federation.hash}"
    )
    if picture is not None:
        print(f"picture: {picture}")


def data_facts(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """What `--json` prints of a data set: rows, features, classes and clients."""
    dataset = load(name, **options)
    facts: dict[str, Any] = {"name": dataset.name}
    for part, table in (("train", dataset.train), ("test", dataset.test)):
        if table is not None:
            facts[part] = described(table)
    return facts


def show_data(facts: dict[str, Any]) -> None:
    """Print the facts of a data set."""
    for part in ("train", "test"):
        if part in facts:
            show_part(part, facts[part])


def described(table: Table) -> dict[str, Any]:
    """Rows, features, classes as the data name them, and what every client holds."""
    label = np.asarray(table.label if table.origin is None else table.origin)
    shown = lambda c: f"{c:g}" if label.dtype.kind in "fiub" else str(c)
    classes, place = np.unique(label, return_inverse=True)
    counts = np.bincount(place, minlength=len(classes)).tolist()
    facts: dict[str, Any] = {
        "rows": len(label),
        "features": int(table.features.shape[1]),
        "classes": {shown(c): n for c, n in zip(classes, counts, strict=True)},
    }
    if table.client is not None:
        names, owner = np.unique(table.client, return_inverse=True)
        held = np.zeros((len(names), len(classes)), int)
        np.add.at(held, (owner, place), 1)
        facts["clients"] = {
            str(name): dict(zip(facts["classes"], own.tolist(), strict=True))
            for name, own in zip(names, held, strict=True)
        }
    return facts


def show_part(part: str, facts: dict[str, Any]) -> None:
    total, classes = facts["rows"], facts["classes"]
    shares = ", ".join(f"{c}: {n} ({n / total:.1%})" for c, n in classes.items())
    print(f"{part}: {total} rows, {facts['features']} features; {shares}")
    clients: dict[str, dict[str, int]] = facts.get("clients", {})
    if not clients:
        return
    sizes = {name: sum(held.values()) for name, held in clients.items()}
    alone = sum(max(held.values()) == sizes[name] for name, held in clients.items())
    low, high = min(sizes.values()), max(sizes.values())
    print(
        f"  {len(clients)} clients of {low} to {high} rows, "
        f"{alone} of them with one class only"
    )
    rows = RichTable("client", "rows", *(f"class {c}" for c in classes), box=None)
    largest = sorted(clients, key=lambda name: -sizes[name])[:LISTED]
    for name in largest:
        held = (str(n) for n in clients[name].values())
        rows.add_row(name, str(sizes[name]), *held)
    Console().print(rows)
    if len(clients) > LISTED:
        print(f"  and {len(clients) - LISTED} smaller ones (all of them with --json)")


class Entry(TypedDict):
    """A name of `sagda list`: what it stands for, and what `--set` can change."""

    what: str
    parameters: list[str]


# The headings of `sagda list`, and where their names are used.
HEADINGS = {
    "algorithms": "Algorithms (--algorithm)",
    "problems": "Problems (--problem)",
    "data": "Data sets (--data, which also takes your own file)",
    "partitions": "Partitions (--partition)",
    "metrics": "Metrics (columns of history.csv, --stop-early)",
    "trackers": "Trackers (--track)",
}


def catalogue() -> dict[str, dict[str, Entry]]:
    """Everything that has a name, by the keys of `HEADINGS`."""

    def entry(thing: Any, parameters: list[str] | None = None) -> Entry:
        first = (inspect.getdoc(thing) or "").split("\n\n")[0]
        return {"what": " ".join(first.split()), "parameters": parameters or []}

    def keywords(partition: Any) -> list[str]:
        given = ("clients", "samples", "seed")  # by flags that all partitions have
        parameters = inspect.signature(partition).parameters.values()
        names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        return [name for name in names if name not in given]

    return {
        "algorithms": {n: entry(f, options_of(n)) for n, f in ALGORITHMS.items()},
        "problems": {n: entry(c, options_of(n)) for n, c in PROBLEMS.items()},
        "data": {n: entry(s.load) for n, s in DATASETS.items()},
        "partitions": {n: entry(f, keywords(f)) for n, f in PARTITIONS.items()},
        "metrics": {
            n: {"what": m.label, "parameters": []}
            for n, m in METRICS.items()
            if m.shown
        },
        "trackers": {n: entry(c) for n, c in TRACKERS.items()},
    }


def show_catalogue(parts: dict[str, dict[str, Entry]]) -> None:
    """Print the names of every part in a table of its own."""
    console = Console(highlight=False)
    for part, entries in parts.items():
        console.print(f"[bold]{HEADINGS[part]}[/bold]")
        table = RichTable("name", "what", box=None, show_header=False)
        for name, entry in entries.items():
            what = Text(entry["what"])
            if entry["parameters"]:
                what.append(f"\n--set: {', '.join(entry['parameters'])}", style="dim")
            table.add_row(name, what)
        console.print(table, "")
