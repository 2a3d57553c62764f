"""Evidence: the curves of a figure in a small JSON file, and effects between curves.

`run` writes it after the runs of a figure, and `docs/evidence` has the published files.
`claims` compares curves with `effect` and turns the comparisons into verdicts.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sagda import durable
from sagda.check import BadValue
from sagda.runs.results import Results, read_results

BUDGETS = ("round", "samples", "bytes")
KEPT = ("grad_phi_sq", "grad_x_sq", "grad_y_sq", "frechet")
LAST = 0.2  # errors are compared over the last fifth of a budget


class Curve(NamedTuple):
    """The runs of a method: metrics [seeds, evaluations] over three budgets."""

    round: np.ndarray  # [evaluations]
    samples: np.ndarray
    bytes: np.ndarray
    values: dict[str, np.ndarray]
    shares: np.ndarray | None = None  # [seeds, classes] among the last generated rows

    @property
    def main(self) -> str:
        """The metric by which the curve is compared."""
        return next(iter(self.values))

    @property
    def error(self) -> np.ndarray:
        """The values of the main metric, [seeds, evaluations]."""
        return self.values[self.main]

    def budget(self, axis: str) -> np.ndarray:
        """The rounds, samples or bytes at every evaluation."""
        return getattr(self, axis)

    def level(self, axis: str, until: float) -> np.ndarray:
        """The mean log10 error over the last fifth of a budget, [seeds]."""
        x = self.budget(axis)
        # Interpolated, because curves have different budgets at their evaluations.
        grid = np.linspace((1 - LAST) * until, until, 21)
        logs = np.log10(np.maximum(self.error, 1e-300))
        return np.array([np.interp(grid, x, row).mean() for row in logs])

    def until(self, epsilon: float, axis: str) -> float | None:
        """The budget at which the seeds' geometric mean first reaches epsilon."""
        mean = np.exp(np.log(np.maximum(self.error, 1e-300)).mean(axis=0))
        reached = np.flatnonzero(mean <= epsilon)
        return float(self.budget(axis)[reached[0]]) if len(reached) else None


class Evidence(NamedTuple):
    """The curves of a figure by setting and name."""

    figure: str
    quick: bool
    digests: dict[str, str]  # of the configurations of each setting
    curves: dict[str, dict[str, Curve]]


def compact(folder: Path, prefix: str = "") -> dict[str, Curve]:
    """The curves of a finished run folder; those of a sweep are named by its points."""
    results = read_results(folder)
    return {
        f"{prefix} {name}".strip() if results.points else name: curve_of(results, name)
        for name in results.columns
    }


def curve_of(results: Results, name: str) -> Curve:
    """The curve of one method in a run folder."""
    columns = results.columns[name]
    # Columns share_0, share_1, ... of a GAN: the last values, in the order of classes.
    kinds = sorted(
        (k for k in columns if k.startswith("share_")), key=lambda k: int(k[6:])
    )
    shares = np.stack([columns[k][:, -1] for k in kinds], 1) if kinds else None
    whole = lambda counts: np.rint(counts.mean(0)).astype(int)
    return Curve(
        round=whole(columns["round"]),
        samples=whole(columns["samples"]),
        bytes=whole(columns["bytes_down"] + columns["bytes_up"]),
        values={k: columns[k] for k in KEPT if k in columns},
        shares=shares,
    )


def store(path: Path, evidence: Evidence) -> None:
    """Write evidence as JSON, with four significant digits."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return plain(value.tolist())
        if isinstance(value, (Evidence, Curve)):
            return plain(value._asdict())
        if isinstance(value, dict):
            return {key: plain(part) for key, part in value.items()}
        if isinstance(value, list):
            return [plain(part) for part in value]
        if isinstance(value, float):
            return float(f"{value:.4g}") if math.isfinite(value) else None
        return value

    durable.write(path, json.dumps(plain(evidence), separators=(",", ":")) + "\n")


def load(path: Path) -> Evidence:
    """Read evidence; null, which stands for NaN and infinity, becomes NaN."""

    def arrays(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: arrays(part) for key, part in value.items()}
        return None if value is None else np.array(value, float)

    stored = json.loads(path.read_text(encoding="utf-8"))
    curves = {
        setting: {name: Curve(**arrays(fields)) for name, fields in some.items()}
        for setting, some in stored["curves"].items()
    }
    return Evidence(**stored | {"curves": curves})


def unreadable(path: Path) -> BadValue:
    """The error that a file is not evidence."""
    return BadValue(
        f"{path} must be evidence as `sagda reproduce` writes it, but cannot be read; "
        "remove it to run it again."
    )


class Effect(NamedTuple):
    """The factor by which one error is smaller than another, with 95 % interval."""

    factor: float
    low: float
    high: float

    @property
    def ahead(self) -> bool:
        """Whether the error is smaller beyond the interval."""
        return self.low > 1

    @property
    def behind(self) -> bool:
        """Whether the error is larger beyond the interval."""
        return self.high < 1

    def __str__(self) -> str:
        return f"{times(self.factor)} [{times(self.low)}, {times(self.high)}]"


def times(factor: float) -> str:
    """A factor to three digits; infinity as a symbol."""
    if not math.isfinite(factor):
        return "∞"
    return f"{factor:.3g}" if 1e-3 < factor < 1e4 else f"{factor:.1e}"


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """The mean and its 95 % interval by Student's t (infinite for one value)."""
    from scipy import stats

    mean = float(values.mean())
    if len(values) < 2 or not np.isfinite(values).all():
        return mean, -math.inf, math.inf
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return mean, mean - float(half), mean + float(half)


def band(curve: Curve, metric: str, window: int = 1) -> np.ndarray:
    """The geometric mean over seeds and its 95 % interval, [3, evaluations].

    A `window` above 1 smooths each curve as the paper does: by a moving mean over
    `window` values.
    """
    values = curve.values[metric]
    if window > 1:
        kernel = np.ones(window)
        # At the ends fewer values are in the window, so divide by their number.
        weight = np.convolve(np.ones(values.shape[1]), kernel, "same")
        values = np.stack([np.convolve(row, kernel, "same") / weight for row in values])
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log10(values)
    bands = np.array([interval(column) for column in logs.T])  # [evaluations, 3]
    return 10.0 ** np.where(np.isfinite(bands), bands, bands[:, :1]).T


def effect(better: Curve, worse: Curve, axis: str) -> Effect:
    """How much smaller the error of `better` is, paired over seeds.

    Errors are compared at the end of the largest budget that both curves have.
    """
    until = min(better.budget(axis)[-1], worse.budget(axis)[-1])
    with np.errstate(invalid="ignore"):
        gap = worse.level(axis, until) - better.level(axis, until)
    # A run that diverged (NaN or infinity) loses, whatever its error was before.
    if not np.isfinite(better.error[:, -1]).all():
        return Effect(0.0, 0.0, 0.0)
    if not np.isfinite(worse.error[:, -1]).all():
        return Effect(math.inf, math.inf, math.inf)
    factor, low, high = (10.0**v for v in interval(gap))
    return Effect(factor, low, high)


def crossing(a: Curve, b: Curve, axis: str) -> float | None:
    """The budget after which the geometric mean of `a` stays below that of `b`.

    0 if it is below from the start, None if it never stays below.
    """
    until = min(a.budget(axis)[-1], b.budget(axis)[-1])
    # Without the start, where all curves are equal.
    grid = np.linspace(0, until, 401)[1:]
    logs = [
        np.interp(grid, c.budget(axis), np.log10(np.maximum(c.error, 1e-300)).mean(0))
        for c in (a, b)
    ]
    above = np.flatnonzero(~(logs[0] < logs[1]))
    if len(above) == 0:
        return 0.0
    return None if above[-1] == len(grid) - 1 else float(grid[above[-1] + 1])
