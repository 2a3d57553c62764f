"""An evaluation on a terminal, as a page with curves, and in the model card."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sagda import durable
from sagda.paper.page import Block, Chart, Grid, Heading, Text, write_html
from sagda.report.run_page import MissingExtra, drawing
from sagda.runs.card import EVALUATIONS, write_card
from sagda.scoring.evaluation import ClientScore, Evaluation

SHOWN = 20  # clients on a terminal
PAGE = "evaluation.html"


def keep(folder: Path, file: Path, model: str, found: Evaluation) -> list[Path]:
    """Into evaluations.json, by file and model; the page; and the card.

    A site's folder holds a model and no run, so there is no card to write.
    """
    path = folder / EVALUATIONS
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    facts = {k: v for k, v in found.as_json().items() if k not in ("roc", "pr")}
    kept[f"{file}: {model}"] = {"file": str(file), "model": model} | facts
    durable.write(path, durable.as_json(kept))
    made = [path]
    if (folder / "config.toml").is_file():
        made.append(write_card(folder))
    try:
        title = f"{folder.resolve().name} on {file.name}"
        write_html(folder / PAGE, list(blocks(found)), title)
        made.append(folder / PAGE)
    except MissingExtra as missing:
        print(missing, file=sys.stderr)
    return made


def headline(found: Evaluation) -> list[str]:
    auc, worst = found.auc, found.worst
    out = [
        f"{found.rows:,} rows, {found.positives:,} positive",
        f"AUC of all rows: {auc.value:.4f}, 95 % interval {auc.low:.4f} to "
        f"{auc.high:.4f} (bootstrap)",
    ]
    if found.clients:
        single = sum(client.auc is None for client in found.clients)
        out.append(
            f"{len(found.clients)} clients, {single} of them with one class only"
        )
    if worst is not None:
        out.append(f"worst client: {worst.name}, AUC {worst.auc:.4f}")
    return [
        *out,
        f"Brier score {found.brier:.4f}",
        f"calibration error {found.calibration_error:.4f}",
    ]


def cells(client: ClientScore) -> list[str]:
    value = "one class" if client.auc is None else f"{client.auc:.4f}"
    return [client.name, str(client.rows), str(client.positives), value]


def show(found: Evaluation, made: list[Path]) -> None:
    out = Console(highlight=False, soft_wrap=True)
    for line in headline(found):
        out.print(line, markup=False)
    if found.clients:
        table = Table("client", "rows", "positives", "AUC", box=None, pad_edge=False)
        for client in found.clients[:SHOWN]:
            table.add_row(*cells(client))
        out.print(table)
        if len(found.clients) > SHOWN:
            out.print(f"… and {len(found.clients) - SHOWN} more in {made[-1]}")
    for path in made:
        print(path)


def blocks(found: Evaluation) -> Iterator[Block]:
    for line in headline(found):
        yield Text(line)
    yield Chart(
        "curves",
        charts(found),
        "ROC, precision and recall, and calibration: rows in ten parts of one size by "
        "their probability. Grey: chance, the share of positives, and probabilities "
        "that are right.",
    )
    if found.clients:
        yield Heading("Clients")
        yield Text("The AUC of all rows is no mean of these.")
        head = ["client", "rows", "positives", "AUC"]
        yield Grid(head, [cells(client) for client in found.clients])


def charts(found: Evaluation) -> dict[str, Any]:
    alt, _ = drawing()
    share = found.positives / found.rows

    def one(points: list, guide: list, x: str, y: str, dots: bool) -> Any:
        data = lambda some: alt.InlineData(
            values=[{"x": a, "y": b, "i": i} for i, (a, b) in enumerate(some)]
        )
        axes = {
            "x": alt.X("x:Q", title=x, scale=alt.Scale(domain=[0, 1])),
            "y": alt.Y("y:Q", title=y, scale=alt.Scale(domain=[0, 1])),
        }
        curve = alt.Chart(data(points)).encode(**axes)
        kind = {"strokeWidth": 2, "color": "#0072B2", "point": dots}
        line = curve.mark_line(**kind).encode(order="i:Q")
        said = alt.Chart(data(guide)).mark_line(color="#888888", strokeDash=[4, 4])
        return (said.encode(**axes) + line).properties(width=250, height=250)

    diagonal = [(0, 0), (1, 1)]
    bins = [(mean, part) for mean, part, _ in found.bins]
    drawn = alt.hconcat(
        one(found.roc, diagonal, "false positive rate", "true positive rate", False),
        one(found.pr, [(0, share), (1, share)], "recall", "precision", False),
        one(bins, diagonal, "probability", "share of positives", True),
    )
    return drawn.configure_axis(labelFontSize=12, titleFontSize=13).to_dict()
