"""Evidence: the curves of a figure in a small JSON file, and comparisons of curves.

`run` writes the evidence after the runs of a figure. The published files are in
`docs/evidence`. `claims` compares curves with `effect` and derives verdicts from them.
The results of a single run folder are in `sagda.runs.results`.
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
LAST = 0.2  # errors are compared over this last fraction of a budget


class Curve(NamedTuple):
    """The metrics of all seeds of one method, and the budgets at each evaluation."""

    round: np.ndarray  # [evaluations]
    samples: np.ndarray  # [evaluations]
    bytes: np.ndarray  # [evaluations]
    values: dict[str, np.ndarray]  # by metric: [seeds, evaluations]
    # [seeds, classes]: the share of each class in the rows that a GAN generates last.
    shares: np.ndarray | None = None

    @property
    def main(self) -> str:
        """The name of the first metric, in which curves are compared."""
        return next(iter(self.values))

    @property
    def error(self) -> np.ndarray:
        """The values of the main metric, [seeds, evaluations]."""
        return self.values[self.main]

    def budget(self, axis: str) -> np.ndarray:
        """Return the rounds, samples or bytes at every evaluation, as `axis` names."""
        return getattr(self, axis)

    def level(self, axis: str, until: float) -> np.ndarray:
        """Return the mean log10 error over the last fifth of the budget `until`.

        The result has shape [seeds].
        """
        x = self.budget(axis)
        # Interpolate, because curves are evaluated at different budgets.
        grid = np.linspace((1 - LAST) * until, until, 21)
        logs = np.log10(np.maximum(self.error, 1e-300))
        return np.array([np.interp(grid, x, row).mean() for row in logs])

    def until(self, epsilon: float, axis: str) -> float | None:
        """Return the budget at which the mean error first reaches epsilon.

        The mean is the geometric mean over seeds. The result is None if it is never
        reached.
        """
        mean = np.exp(np.log(np.maximum(self.error, 1e-300)).mean(axis=0))
        reached = np.flatnonzero(mean <= epsilon)
        return float(self.budget(axis)[reached[0]]) if len(reached) else None


class Evidence(NamedTuple):
    """The curves of one figure."""

    figure: str
    quick: bool  # True if the runs had fewer rounds and seeds
    digests: dict[str, str]  # by setting: a digest of its configurations
    curves: dict[str, dict[str, Curve]]  # by setting and name


def compact(folder: Path, prefix: str = "") -> dict[str, Curve]:
    """Return the curves of a finished run folder, by name.

    The name of a curve is the method. In a sweep, it is `prefix` and the point.
    """
    results = read_results(folder)
    return {
        f"{prefix} {name}".strip() if results.points else name: curve_of(results, name)
        for name in results.columns
    }


def curve_of(results: Results, name: str) -> Curve:
    """Return the curve of one method in a run folder."""
    columns = results.columns[name]
    # A GAN has a column share_0, share_1, ... for each class. Take the last values.
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
    """Write evidence to `path` as JSON, with four significant digits."""

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
    """Read evidence from `path`.

    NaN and infinity are stored as null. Both become NaN again.
    """

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
    """Return the error for a file that is not evidence."""
    return BadValue(
        f"{path} must be evidence that `sagda reproduce` has written, but it cannot be "
        "read; remove it, and the same command writes it again."
    )


class Effect(NamedTuple):
    """The factor by which one error is smaller than another, with a 95 % interval."""

    factor: float
    low: float
    high: float

    @property
    def ahead(self) -> bool:
        """True if the error is smaller: the whole interval is above 1."""
        return self.low > 1

    @property
    def behind(self) -> bool:
        """True if the error is larger: the whole interval is below 1."""
        return self.high < 1

    def __str__(self) -> str:
        return f"{times(self.factor)} [{times(self.low)}, {times(self.high)}]"


def times(factor: float) -> str:
    """Format a factor with three digits, and infinity or NaN as ∞."""
    if not math.isfinite(factor):
        return "∞"
    return f"{factor:.3g}" if 1e-3 < factor < 1e4 else f"{factor:.1e}"


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return the mean and its 95 % interval (mean, low, high) by Student's t.

    The interval is infinite if there is one value, or a value that is not finite.
    """
    from scipy import stats

    mean = float(values.mean())
    if len(values) < 2 or not np.isfinite(values).all():
        return mean, -math.inf, math.inf
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return mean, mean - float(half), mean + float(half)


def band(curve: Curve, metric: str, window: int = 1) -> np.ndarray:
    """Return the geometric mean over seeds and its 95 % interval, [3, evaluations].

    With `window` above 1, each curve is first smoothed by a moving mean over `window`
    values, as in the paper.
    """
    values = curve.values[metric]
    if window > 1:
        kernel = np.ones(window)
        # At both ends the window has fewer values, so divide by the number of values.
        weight = np.convolve(np.ones(values.shape[1]), kernel, "same")
        values = np.stack([np.convolve(row, kernel, "same") / weight for row in values])
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log10(values)
    bands = np.array([interval(column) for column in logs.T])  # [evaluations, 3]
    return 10.0 ** np.where(np.isfinite(bands), bands, bands[:, :1]).T


def effect(better: Curve, worse: Curve, axis: str) -> Effect:
    """Return the factor by which the error of `better` is smaller than that of `worse`.

    Errors are compared over the last fifth of the largest budget that both curves have.
    The interval is computed from the differences of each seed.
    """
    until = min(better.budget(axis)[-1], worse.budget(axis)[-1])
    with np.errstate(invalid="ignore"):
        gap = worse.level(axis, until) - better.level(axis, until)
    # A run that diverged (NaN or infinity) is worse, whatever its error was before.
    if not np.isfinite(better.error[:, -1]).all():
        return Effect(0.0, 0.0, 0.0)
    if not np.isfinite(worse.error[:, -1]).all():
        return Effect(math.inf, math.inf, math.inf)
    factor, low, high = (10.0**v for v in interval(gap))
    return Effect(factor, low, high)


def crossing(a: Curve, b: Curve, axis: str) -> float | None:
    """Return the budget after which the geometric mean of `a` stays below that of `b`.

    The result is 0 if `a` is below `b` from the start, and None if `a` is not below `b`
    at the end.
    """
    until = min(a.budget(axis)[-1], b.budget(axis)[-1])
    # Leave out the start, where all curves are equal.
    grid = np.linspace(0, until, 401)[1:]
    logs = [
        np.interp(grid, c.budget(axis), np.log10(np.maximum(c.error, 1e-300)).mean(0))
        for c in (a, b)
    ]
    above = np.flatnonzero(~(logs[0] < logs[1]))
    if len(above) == 0:
        return 0.0
    return None if above[-1] == len(grid) - 1 else float(grid[above[-1] + 1])
