"""The page of the reproduced figures: verdicts, charts, tables and comparisons.

`blocks` makes the content of the page from the evidence. `sagda.report.blocks` writes
it as HTML or Markdown. The page of `sagda reproduce speedup` is in `slopes`.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sagda.paper.charts import panel
from sagda.paper.claims import EvidenceOf, Verdict, verdicts
from sagda.paper.evidence import BUDGETS, Evidence, crossing
from sagda.paper.figure import PANELS, Figure
from sagda.problems.metrics import AXES
from sagda.report import pictures
from sagda.report.blocks import Block, Chart, Grid, Heading, Pictures, Text
from sagda.runs.results import bytes_text, read_pictures

QUICK_RUN = Text(
    "This is a quick run with a tenth of the rounds and at most two seeds. It shows "
    "that the programs work. Its numbers prove nothing."
)


def blocks(
    figures: dict[str, Figure], evidence: EvidenceOf, out: Path, window: int
) -> Iterator[Block]:
    """Make the whole page: the verdicts, each figure, and all comparisons."""
    if any(one.quick for one in evidence.values()):
        yield QUICK_RUN
    every = verdicts(evidence)
    yield Heading("Verdicts")
    yield Text(
        "Each claim is a set of comparisons of two errors. The effect is the factor "
        "by which the first error is smaller than the second. Errors are geometric "
        "means over the last fifth of the budget that both methods have. The 95 % "
        "interval of the effect is paired over seeds. A claim holds if the interval is "
        "above 1 in every comparison, and it holds partly if this is so in some."
    )
    yield Grid(
        ["claim", "where", "setting", "verdict", "why"],
        [[v.claim.text, v.claim.where, v.setting, v.word, v.why] for v in every],
    )
    for name, figure in figures.items():
        if name in evidence:
            yield from figure_blocks(figure, evidence[name], out, window)
    yield Heading("All comparisons")
    for verdict in every:
        yield from comparison_blocks(verdict)


def comparison_blocks(verdict: Verdict) -> Iterator[Block]:
    """Make the table of all comparisons that decide one verdict."""
    axis = AXES[verdict.claim.axis]
    yield Heading(f"{verdict.claim.text} ({verdict.setting}: {verdict.word})", 3)
    yield Grid(
        ["figure", "error of", "against", f"effect at equal {axis}"],
        [[r.figure, r.first, r.second, str(r.effect)] for r in verdict.rows],
    )


def figure_blocks(
    figure: Figure, evidence: Evidence, out: Path, window: int
) -> Iterator[Block]:
    """Make the charts and tables of one figure by setting, and its tuned rates."""
    yield Heading(f"{figure.title} ({figure.where})")
    for setting, curves in evidence.curves.items():
        seeds = len(next(iter(curves.values())).error)
        how = f"Geometric mean of {seeds} seeds with its 95 % band"
        how += f", smoothed over {window} values" if window > 1 else ""
        yield Chart(
            f"{figure.name}-{setting}",
            panel(curves, window),
            f"{setting.capitalize()}: {figure.captions[setting]} {how}.",
        )
        broken = {n: (~np.isfinite(c.error[:, -1])).sum() for n, c in curves.items()}
        counts = [f"{n} ({k} of {seeds})" for n, k in broken.items() if k]
        if counts:
            sentence = f"Seeds that diverged (NaN or infinity): {', '.join(counts)}."
            yield Text(sentence)
        if figure.name in (*PANELS, "partial"):
            yield from budget_blocks(evidence, setting)
        if any(curve.shares is not None for curve in curves.values()):
            yield from gan_blocks(figure, evidence, setting, out)
    if tuned := figure.tuning.get("found"):
        yield Text(
            "The tuned rates of each method, the best of its sweep on other seeds:"
        )
        rows = []
        for name, one in tuned.items():
            rates = [one["best"].get(key) for key in ("local_lr", "server_lr")]
            texts = ["none" if rate is None else f"{rate:g}" for rate in rates]
            rows.append([name, *texts, str(len(one["sweep"]))])
        yield Grid(["method", "local rate", "server rate", "points tried"], rows)


def three_targets(evidence: Evidence, setting: str) -> list[float]:
    """Return three values of epsilon between the initial and the smallest error.

    The values are evenly spaced on a logarithmic scale.
    """
    errors = [curve.error for curve in evidence.curves[setting].values()]
    start = max(np.exp(np.log(e[:, 0]).mean()) for e in errors)
    ends = [np.exp(np.log(e).mean(axis=0)) for e in errors]
    least = min(np.nanmin(e) for e in ends)
    # Five values without both ends: every method reaches the first, one the last.
    return [float(f"{v:.1g}") for v in np.geomspace(start, least, 5)[1:-1]]


def budget_blocks(evidence: Evidence, setting: str) -> Iterator[Block]:
    """Make two tables of budgets.

    The first has the budgets at which each method reaches three targets. The second has
    the budgets after which SAGDA stays below CD-MAGE+.
    """
    curves = evidence.curves[setting]

    def cell(value: float | None, axis: str) -> str:
        if value is None:
            return "-"
        return bytes_text(value) if axis == "bytes" else f"{value:,.0f}"

    rows = []
    for epsilon in three_targets(evidence, setting):
        for name, curve in curves.items():
            reached = [cell(curve.until(epsilon, axis), axis) for axis in BUDGETS]
            rows.append([f"{epsilon:.0e}", name, *reached])
    yield Text("The budget until the geometric mean over seeds is at most ε:")
    yield Grid(["ε", "method", "rounds", "samples", "bytes"], rows)
    rival = "cd-mage-plus"
    if rival in curves:
        rows = []
        for option in ("sagda-i", "sagda-ii"):
            cells = []
            for axis in BUDGETS:
                budget = crossing(curves[option], curves[rival], axis)
                text = "never" if budget is None else cell(budget, axis)
                cells.append("from the start" if budget == 0 else text)
            rows.append([option, *cells])
        yield Text("The budget after which SAGDA stays below CD-MAGE+:")
        yield Grid(["method", "rounds", "samples", "bytes"], rows)


def gan_blocks(
    figure: Figure, evidence: Evidence, setting: str, out: Path
) -> Iterator[Block]:
    """Make the tables and pictures of the rows that the GANs generate."""
    curves = evidence.curves[setting]
    rows, shares = [], []
    for name, curve in curves.items():
        distance = curve.values["frechet"].mean(axis=0)
        numbers = distance[0], distance[-1], distance[0] / distance[-1]
        rows.append([name, *(f"{number:.3g}" for number in numbers)])
        if curve.shares is not None:
            mean = curve.shares.mean(axis=0)
            shares.append([name, *(f"{100 * share:.1f}" for share in mean)])
    yield Text("Fréchet distance between generated and real rows, mean over seeds:")
    yield Grid(["method", "start", "end", "ratio"], rows)
    yield Text("Share of each class among 2,000 generated rows, in per cent:")
    yield Grid(["method", *map(str, range(len(shares[0]) - 1))], shares)
    for part in figure.parts[setting]:
        for name, images in read_pictures(out / figure.name / setting / part).items():
            yield Pictures(
                f"{figure.name}-{setting}-{name}",
                pictures.sheet(images),
                f"{name}, {setting}, first seed: 50 generated rows",
            )
