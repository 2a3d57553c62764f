"""The files that `sagda evaluate` writes: an HTML report, and its numbers as JSON.

This module computes no scores: `sagda.scoring.evaluation` does. `terminal.py` prints
the same numbers. The report of a run is in `run_page.py`.
"""

import json
import sys
from pathlib import Path
from typing import Any

from sagda import durable
from sagda.report.blocks import Block, Chart, Grid, Heading, Note, Text, write_html
from sagda.report.charts import COLOURS, MissingExtra, drawing, in_a_row
from sagda.runs.card import EVALUATIONS, write_card
from sagda.scoring.evaluation import ClientScore, Evaluation

PAGE = "evaluation.html"


def write_evaluation(
    folder: Path, file: Path, model: str, evaluation: Evaluation
) -> list[Path]:
    """Write evaluations.json, the model card and the HTML report. Return their paths.

    Args:
        folder: the run folder.
        file: the data file that was evaluated.
        model: the name of the model.
        evaluation: the scores of the model on the file.

    evaluations.json has one entry for each pair of file and model. The folder of a site
    has a model but no run, so it gets no model card.
    """
    path = folder / EVALUATIONS
    entries = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    facts = {k: v for k, v in evaluation.as_json().items() if k not in ("roc", "pr")}
    entries[f"{file}: {model}"] = {"file": str(file), "model": model} | facts
    durable.write(path, durable.as_json(entries))
    made = [path]
    if (folder / "config.toml").is_file():
        made.append(write_card(folder))
    try:
        title = f"{folder.resolve().name} on {file.name}"
        write_html(folder / PAGE, blocks(evaluation), title)
        made.append(folder / PAGE)
    except MissingExtra as missing:
        print(missing, file=sys.stderr)
    return made


def headlines(evaluation: Evaluation) -> list[str]:
    """Return the main numbers of an evaluation, one line of text for each."""
    auc, worst, clients = evaluation.auc, evaluation.worst, evaluation.clients
    lines = [
        f"{evaluation.rows:,} rows, {evaluation.positives:,} positive",
        f"AUC of all rows: {auc.value:.4f}, 95 % interval {auc.low:.4f} to "
        f"{auc.high:.4f} (bootstrap)",
    ]
    if clients:
        single = sum(client.auc is None for client in clients)
        lines.append(f"{len(clients)} clients, {single} of them with one class only")
    if worst is not None:
        lines.append(f"worst client: {worst.name}, AUC {worst.auc:.4f}")
    return [
        *lines,
        f"Brier score {evaluation.brier:.4f}",
        f"calibration error {evaluation.calibration_error:.4f}",
    ]


def clients_grid(clients: list[ClientScore]) -> Grid:
    """Return a table of clients with their rows and their AUC."""
    rows = []
    for client in clients:
        auc = "one class" if client.auc is None else f"{client.auc:.4f}"
        rows.append([client.name, str(client.rows), str(client.positives), auc])
    return Grid(["client", "rows", "positives", "AUC"], rows, numeric=True)


def blocks(evaluation: Evaluation) -> list[Block]:
    """Make the report: main numbers, curves, and a table of clients."""
    out: list[Block] = [Text(line) for line in headlines(evaluation)]
    caption = (
        "ROC, precision over recall, and calibration (rows in ten groups of equal size "
        "by predicted probability). Grey lines: random scores in the first two charts, "
        "exact probabilities in the third."
    )
    out.append(Chart("curves", charts(evaluation), caption))
    if evaluation.clients:
        out += [
            Heading("Clients"),
            clients_grid(evaluation.clients),
            Note("The AUC of all rows is not the mean of the clients' AUCs."),
        ]
    return out


def charts(evaluation: Evaluation) -> dict[str, Any]:
    """Return a row of three charts: ROC, precision over recall, and calibration."""
    alt, _ = drawing()

    def chart(points: list, guide: list, x: str, y: str, dots: bool = False) -> Any:
        # Points are connected in the order of `i`, because several can have the same x.
        data = lambda some: alt.InlineData(
            values=[{"x": a, "y": b, "i": i} for i, (a, b) in enumerate(some)]
        )
        axes = {
            "x": alt.X("x:Q", title=x, scale=alt.Scale(domain=[0, 1])),
            "y": alt.Y("y:Q", title=y, scale=alt.Scale(domain=[0, 1])),
        }
        curve = alt.Chart(data(points)).encode(**axes)
        curve = curve.mark_line(strokeWidth=2, color=COLOURS[0], point=dots)
        grey = alt.Chart(data(guide)).mark_line(color="#888888", strokeDash=[4, 4])
        layers = grey.encode(**axes) + curve.encode(order="i:Q")
        return layers.properties(width=250, height=250)

    diagonal = [(0, 0), (1, 1)]
    share = evaluation.positives / evaluation.rows
    bins = [(mean, positives) for mean, positives, _ in evaluation.bins]
    return in_a_row(
        [
            chart(
                evaluation.roc, diagonal, "false positive rate", "true positive rate"
            ),
            chart(evaluation.pr, [(0, share), (1, share)], "recall", "precision"),
            chart(bins, diagonal, "probability", "share of positives", dots=True),
        ]
    )
