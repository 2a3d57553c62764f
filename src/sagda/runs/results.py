"""`Results`: the summary and the histories of a finished run folder, with a ranking.

This file only reads; `output.py` writes the files. `sagda.report` turns results into
tables and charts, and `card.py` turns them into the model card.
"""

import csv
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from sagda.check import BadValue
from sagda.problems.metrics import LABELS, judged_by, metric_of
from sagda.simulator.history import COUNTS, History

PICTURES = "images.safetensors"
SHOWN = 7  # number of points of a sweep whose curves are drawn


class Results(NamedTuple):
    """The summary and the histories of a run folder, by algorithm.

    For a sweep, the results are by point: the names of points replace algorithms.
    """

    summary: dict[str, Any]
    columns: dict[str, dict[str, np.ndarray]]  # algorithm, column: [seeds, evaluations]

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len(next(iter(self.columns.values()))["round"])

    @property
    def metrics(self) -> list[str]:
        """The columns to show, in the order of `LABELS`, with custom metrics last."""
        columns = next(iter(self.columns.values()))
        custom = [n for n in columns if n not in LABELS and n not in COUNTS]
        names = [name for name in (*LABELS, *custom) if name in columns]
        # The table shows Phi(x) = max_y f(x, y) instead of f, where Phi was measured.
        hidden = {"f"} if "phi" in columns else set()
        return [name for name in names if metric_of(name).shown and name not in hidden]

    @property
    def main(self) -> str:
        """The name of the metric by which runs are compared."""
        return judged_by(self.metrics)

    @property
    def early(self) -> str:
        """The text `; stopped early: NAME at round T, ...`; empty if none stopped."""
        stops = self.summary.get("stopped_early", {}).items()
        text = ", ".join(f"{name} at round {t}" for name, t in stops)
        return f"; stopped early: {text}" if text else ""

    @property
    def points(self) -> dict[str, dict[str, Any]]:
        """The parameters of each point of a sweep, by the name of the point."""
        return self.summary.get("points", {})

    @property
    def ranked(self) -> list[str]:
        """The points of a sweep from best to worst. Without a sweep, all algorithms."""
        if not self.points:
            return list(self.columns)
        error = {name: self.tail(name) for name in self.columns}
        return sorted(error, key=lambda n: (not math.isfinite(error[n]), error[n]))

    @property
    def shown(self) -> list[str]:
        """The points or algorithms whose curves are drawn."""
        return self.ranked[:SHOWN] if self.points else self.ranked

    def history(self, name: str) -> History:
        """Return the history of an algorithm, with seeds numbered from 0."""
        return History(tuple(range(self.seeds)), self.columns[name])

    def tail(self, name: str) -> float:
        """Return the mean of the main metric over the last rounds and all seeds."""
        return float(self.history(name).tail(self.main).mean())

    def bytes_sent(self, name: str) -> np.ndarray:
        """Return the bytes of all messages, both directions, [seeds, evaluations]."""
        columns = self.columns[name]
        return columns["bytes_down"] + columns["bytes_up"]


def spread(values: np.ndarray, form: str = "{:.1e}", around: str = "{:.0e}") -> str:
    """Return the mean as text, and with several seeds the standard deviation.

    An example is `1.5e-02 ± 8e-04`.
    """
    if not np.isfinite(values).all():
        return "diverged"
    text = form.format(values.mean())
    return text if len(values) == 1 else f"{text} ± {around.format(values.std(ddof=1))}"


def bytes_text(count: float) -> str:
    """Return a number of bytes as text with three digits, such as `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def read_pictures(folder: Path) -> dict[str, np.ndarray]:
    """Return the pictures of each run as bytes, [count, height, width].

    The result is empty if the folder has no pictures.
    """
    path = folder / PICTURES
    return safetensors.numpy.load(path.read_bytes()) if path.is_file() else {}


def read_results(folder: Path) -> Results:
    """Read the summary and the histories of a finished run folder.

    Raises `BadValue` if the run is not finished or its files are damaged.
    """
    for name in ("summary.json", "history.csv"):
        if not (folder / name).is_file():
            raise BadValue(
                f"{folder} has no {name}, so its run is not finished; resume it with "
                f"`sagda resume {folder}`."
            )
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        with (folder / "history.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        columns = {
            name: columns_of([row for row in rows if row["algorithm"] == name])
            for name in dict.fromkeys(row["algorithm"] for row in rows)
        }
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BadValue(
            f"summary.json and history.csv in {folder} must be as `sagda run` wrote "
            f"them, got an error in reading them: {error}."
        ) from None
    if not columns:
        raise BadValue(
            f"{folder / 'history.csv'} must have at least one row, got none."
        )
    return Results(summary, columns)


def columns_of(rows: list[dict[str, str]]) -> dict[str, np.ndarray]:
    """Return the columns of one algorithm's rows, each [seeds, evaluations]."""
    seeds = len({row["seed"] for row in rows})
    # A column that only other algorithms measure is empty in these rows.
    names = [k for k in rows[0] if k not in ("algorithm", "seed") and rows[0][k]]
    return {
        name: np.array([float(row[name]) for row in rows]).reshape(seeds, -1)
        for name in names
    }
