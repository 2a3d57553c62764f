"""Data sets, splits and the list of names on a terminal.

A `..._facts` function returns the facts that `--json` prints. A `show_...` function
prints these facts for a person. Results of runs are in `terminal.py`.
"""

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from sagda.algorithms import ALGORITHMS
from sagda.data.datasets import DATASETS, load
from sagda.data.federation import Federation, Table
from sagda.data.partition import PARTITIONS
from sagda.problems import PROBLEMS
from sagda.problems.metrics import LABELS, OPTIONAL, metric_of
from sagda.report.blocks import Grid
from sagda.report.terminal import LISTED, rich_table
from sagda.runs.parameters import options_of
from sagda.trackers import TRACKERS


def split_facts(
    federation: Federation, counts: dict[str, list[int]], picture: Path | None
) -> dict[str, Any]:
    """Return the sizes and the labels of all clients.

    `counts` is the result of `label_counts`: by class, the rows of each client.
    """
    return {
        "hash": federation.hash,
        "clients": federation.clients,
        "sizes": federation.size.tolist(),
        "labels": counts,
        "picture": None if picture is None else str(picture),
    }


def show_split(facts: dict[str, Any], names: Iterable[Any]) -> None:
    """Print the rows and the labels of every client. `names` are the clients' names."""
    sizes, labels = facts["sizes"], facts["labels"]
    print_clients(labels, zip(names, sizes, *labels.values(), strict=True))
    print(f"clients: {len(sizes)}, rows: {sum(sizes)}, split: {facts['hash']}")
    if facts["picture"] is not None:
        print(f"picture: {facts['picture']}")


def print_clients(classes: Iterable[str], clients: Iterable[Iterable[Any]]) -> None:
    """Print a table of clients: name, rows, and rows of each class."""
    head = ["client", "rows", *(f"class {c}" for c in classes)]
    rows = [[str(cell) for cell in client] for client in clients]
    Console().print(rich_table(Grid(head, rows)))


def data_facts(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes, classes and clients of both parts of a data set.

    The parts are `train` and `test`. `options` are those of `sagda.data.datasets.load`.
    """
    dataset = load(name, **options)
    facts: dict[str, Any] = {"name": dataset.name}
    for part, table in (("train", dataset.train), ("test", dataset.test)):
        if table is not None:
            facts[part] = table_facts(table)
    return facts


def table_facts(table: Table) -> dict[str, Any]:
    """Return the numbers of rows and features, and the rows by class and by client."""
    label = np.asarray(table.label if table.origin is None else table.origin)
    text = lambda c: f"{c:g}" if label.dtype.kind in "fiub" else str(c)
    classes, index = np.unique(label, return_inverse=True)
    counts = np.bincount(index, minlength=len(classes)).tolist()
    facts: dict[str, Any] = {
        "rows": len(label),
        "features": int(table.features.shape[1]),
        "classes": {text(c): n for c, n in zip(classes, counts, strict=True)},
    }
    if table.client is not None:
        names, owner = np.unique(table.client, return_inverse=True)
        by_client = np.zeros((len(names), len(classes)), int)
        np.add.at(by_client, (owner, index), 1)
        facts["clients"] = {
            str(name): dict(zip(facts["classes"], numbers.tolist(), strict=True))
            for name, numbers in zip(names, by_client, strict=True)
        }
    return facts


def show_data(facts: dict[str, Any]) -> None:
    """Print the facts that `data_facts` returns."""
    for part in ("train", "test"):
        if part in facts:
            show_part(part, facts[part])


def show_part(part: str, facts: dict[str, Any]) -> None:
    """Print one part of a data set ("train" or "test"), with its largest clients."""
    total, classes = facts["rows"], facts["classes"]
    shares = ", ".join(f"{c}: {n} ({n / total:.1%})" for c, n in classes.items())
    print(f"{part}: {total} rows, {facts['features']} features; {shares}")
    clients: dict[str, dict[str, int]] = facts.get("clients", {})
    if not clients:
        return
    sizes = {name: sum(counts.values()) for name, counts in clients.items()}
    single = sum(max(counts.values()) == sizes[n] for n, counts in clients.items())
    print(
        f"  {len(clients)} clients of {min(sizes.values())} to {max(sizes.values())} "
        f"rows, {single} of them with one class only"
    )
    largest = sorted(clients, key=lambda name: -sizes[name])[:LISTED]
    rows = [(name, sizes[name], *clients[name].values()) for name in largest]
    print_clients(classes, rows)
    if len(clients) > LISTED:
        print(f"  and {len(clients) - LISTED} smaller clients (--json lists all)")


def catalogue() -> dict[str, dict[str, dict[str, Any]]]:
    """Return every name that sagda knows, by kind, with a description and parameters.

    The description is the first docstring line of the class or function.
    """

    def entry(thing: Any, parameters: list[str]) -> dict[str, Any]:
        text = (inspect.getdoc(thing) or "").splitlines()
        return {"what": text[0] if text else "", "parameters": parameters}

    def keywords(function: Callable) -> list[str]:
        # Left out: keywords of a partition that are flags of `sagda run`.
        parameters = inspect.signature(function).parameters.values()
        names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        return [n for n in names if n not in ("clients", "samples", "seed")]

    return {
        "algorithms": {n: entry(f, options_of(n)) for n, f in ALGORITHMS.items()},
        "problems": {n: entry(c, options_of(n)) for n, c in PROBLEMS.items()},
        "data": {n: entry(s.load, []) for n, s in DATASETS.items()},
        "partitions": {n: entry(f, keywords(f)) for n, f in PARTITIONS.items()},
        "metrics": {
            n: {"what": metric_of(n).label, "parameters": []}
            for n in dict.fromkeys([*LABELS, *OPTIONAL])
            if metric_of(n).shown
        },
        "trackers": {n: entry(c, []) for n, c in TRACKERS.items()},
    }


def show_catalogue(parts: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Print the result of `catalogue`, in one table for each kind."""
    console = Console(soft_wrap=True)
    for title, entries in parts.items():
        table = RichTable("name", "what", title=title, title_justify="left", box=None)
        for name, entry in entries.items():
            parameters = ", ".join(entry["parameters"])
            end = f"  [dim]{parameters}[/dim]" if parameters else ""
            table.add_row(name, entry["what"] + end)
        console.print(table)
