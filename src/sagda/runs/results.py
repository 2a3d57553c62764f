"""A finished run folder, read back: curves, tables, and texts for numbers."""

import csv
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from sagda.check import BadValue
from sagda.problems.metrics import METRICS, judged_by, metric_of
from sagda.simulator.history import COUNTS, TAIL, History

PICTURES = "images.safetensors"
SHOWN = 7  # curves of a sweep, the best ones


class Results(NamedTuple):
    """What the files of a folder say."""

    summary: dict[str, Any]
    columns: dict[str, dict[str, np.ndarray]]  # algorithm, column: [seeds, evaluations]

    @property
    def seeds(self) -> int:
        return len(next(iter(self.columns.values()))["round"])

    @property
    def metrics(self) -> list[str]:
        """The columns to show, in the order of `METRICS`; custom ones come last."""
        columns = next(iter(self.columns.values()))
        custom = [n for n in columns if n not in METRICS and n not in COUNTS]
        names = [name for name in (*METRICS, *custom) if name in columns]
        # f says little where Phi is known.
        hidden = {"f"} if "phi" in columns else set()
        return [name for name in names if metric_of(name).shown and name not in hidden]

    @property
    def main(self) -> str:
        """What runs are judged by."""
        return judged_by(self.metrics)

    @property
    def early(self) -> str:
        """Which algorithms stopped before their last round, if any."""
        ended = self.summary.get("stopped_early", {}).items()
        text = ", ".join(f"{name} at round {t}" for name, t in ended)
        return f"; stopped early: {text}" if text else ""

    @property
    def points(self) -> dict[str, dict[str, Any]]:
        """By name, the parameters of each point of a sweep."""
        return self.summary.get("points", {})

    @property
    def ranked(self) -> list[str]:
        """The points of a sweep from the best to the worst; algorithms as they come."""
        if not self.points:
            return list(self.columns)
        error = {
            name: self.history(name).tail(self.main).mean() for name in self.columns
        }
        return sorted(error, key=lambda n: (not math.isfinite(error[n]), error[n]))

    @property
    def shown(self) -> list[str]:
        """Whose curves are drawn."""
        return self.ranked[:SHOWN] if self.points else self.ranked

    def cells(self) -> tuple[list[str], list[dict[str, Any]]]:
        """The heat map of a sweep: its first two keys, and the best value at each pair.

        Values are means over seeds of the last rounds; None where a seed diverged.
        """
        keys = list(next(iter(self.points.values())))[:2]
        best: dict[tuple, dict[str, Any]] = {}
        for name in reversed(self.ranked):
            error = float(self.history(name).tail(self.main).mean())
            place = {key: self.points[name][key] for key in keys}
            found = error if math.isfinite(error) and error > 0 else None
            best[tuple(place.values())] = place | {"error": found}
        return keys, list(best.values())

    @property
    def headings(self) -> list[str]:
        """The columns of `table`."""
        auc = ["test AUC"] if "auc_test" in self.metrics else []
        tail = f"last {min(TAIL, self.summary['rounds'])} rounds"
        auc += ["Fréchet"] if "frechet" in self.metrics else []
        return [
            f"final {metric_of(self.main).short}",
            tail,
            *auc,
            "samples",
            "bytes",
            "s",
        ]

    def history(self, name: str) -> History:
        """The history of an algorithm; seeds go by their places."""
        return History(tuple(range(self.seeds)), self.columns[name])

    @property
    def table(self) -> dict[str, list[str]]:
        """By algorithm: final and tail values, mean ± deviation over seeds, totals."""
        out = {}
        for name in self.ranked:
            columns = self.columns[name]
            tail = self.history(name).tail(self.main)
            cells = [spread(columns[self.main][:, -1]), spread(tail)]
            if "auc_test" in columns:
                cells.append(spread(columns["auc_test"][:, -1], "{:.4f}", "{:.4f}"))
            if "frechet" in columns:
                cells.append(spread(columns["frechet"][:, -1], "{:.3g}", "{:.1g}"))
            total = columns["bytes_down"][:, -1] + columns["bytes_up"][:, -1]
            cells += [
                f"{columns['samples'][:, -1].mean():,.0f}",
                bytes_text(total.mean()),
                f"{columns['seconds'][:, -1].mean():.2f}",
            ]
            out[name] = cells
        return out

    def targets(self) -> list[float]:
        """Three values of epsilon: powers of ten between the start and the best end."""
        errors = [c[self.main] for c in self.columns.values()]
        start = max(e[:, 0].mean() for e in errors)
        ends = [np.nanmin(e.mean(axis=0)) for e in errors]
        if not (math.isfinite(start) and min(ends) > 0 and start > min(ends)):
            return []
        highest, lowest = math.log10(start), math.log10(min(ends))
        powers = [10.0**k for k in range(math.ceil(lowest), math.ceil(highest))]
        return powers[-3:][::-1]

    def until(self, epsilon: float) -> dict[str, list[str]]:
        """By algorithm: rounds, samples and bytes until `main` is at most epsilon.

        The mean over seeds, or a dash if a seed never came there.
        """
        out = {}
        for name in self.columns:
            reached = self.history(name).until(epsilon, self.main)
            mean = {k: v.mean() for k, v in reached.items()}
            out[name] = ["-"] * 3
            if math.isfinite(mean["rounds"]):
                counts = f"{mean['rounds']:,.0f}", f"{mean['samples']:,.0f}"
                out[name] = [*counts, bytes_text(mean["bytes"])]
        return out

    def curve(self, column: str, most: int = 250) -> list[dict[str, Any]]:
        """Rows to draw: the mean over seeds, the lowest and the highest."""
        logarithmic = metric_of(column).logarithmic
        digits = lambda value: float(f"{value:.5g}")
        rows = []
        for name in self.shown:
            columns = self.columns[name]
            values = columns[column]
            total = (columns["bytes_down"] + columns["bytes_up"]) / 1e6
            steps = np.unique(np.linspace(0, values.shape[1] - 1, most).astype(int))
            for j in steps:
                at = values[:, j]
                drawable = np.isfinite(at).all()
                if logarithmic:
                    drawable = drawable and (at > 0).all()
                if drawable:
                    rows.append(
                        {
                            "algorithm": name,
                            "round": int(columns["round"][0, j]),
                            "samples": digits(columns["samples"][:, j].mean()),
                            "megabytes": digits(total[:, j].mean()),
                            "seconds": digits(columns["seconds"][:, j].mean()),
                            "mean": digits(at.mean()),
                            "low": digits(at.min()),
                            "high": digits(at.max()),
                        }
                    )
        return rows


def spread(values: np.ndarray, form: str = "{:.1e}", around: str = "{:.0e}") -> str:
    """The mean, and the standard deviation over seeds."""
    if not np.isfinite(values).all():
        return "diverged"
    text = form.format(values.mean())
    return text if len(values) == 1 else f"{text} ± {around.format(values.std(ddof=1))}"


def bytes_text(count: float) -> str:
    """1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def read_pictures(folder: Path) -> dict[str, np.ndarray]:
    """The pictures of each run as bytes [count, height, width]; empty without any."""
    path = folder / PICTURES
    return safetensors.numpy.load(path.read_bytes()) if path.is_file() else {}


def read_results(folder: Path) -> Results:
    """The history and the summary of a finished folder."""
    for name in ("summary.json", "history.csv"):
        if not (folder / name).is_file():
            raise BadValue(
                f"{folder} has no {name}: its run is not finished; go on with "
                f"`sagda resume {folder}`."
            )
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        with (folder / "history.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        columns = {}
        for name in dict.fromkeys(row["algorithm"] for row in rows):
            own = [row for row in rows if row["algorithm"] == name]
            seeds = len({row["seed"] for row in own})
            keys = [k for k in own[0] if k not in ("algorithm", "seed") and own[0][k]]
            columns[name] = {
                key: np.array([float(row[key]) for row in own]).reshape(seeds, -1)
                for key in keys
            }
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BadValue(f"{folder} holds files of another shape: {error}.") from None
    if not columns:
        raise BadValue(f"{folder / 'history.csv'} holds no rows.")
    return Results(summary, columns)
