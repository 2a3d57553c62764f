"""The page of `sagda reproduce speedup`: slopes, charts, theorems and their bounds.

`blocks` makes the content of the page from the measured errors. `speedup` makes the
runs, and `sagda.report.blocks` writes the page.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from sagda import durable
from sagda.check import BadValue
from sagda.paper.evidence import interval
from sagda.paper.page import QUICK_RUN
from sagda.paper.speedup import (
    BENCHES,
    METHODS,
    OVER,
    Line,
    SpeedupEvidence,
    fitted,
    lines,
    theorems,
)
from sagda.report.blocks import Block, Chart, Grid, Heading, Text, as_markdown
from sagda.report.charts import drawing, in_a_row, line_style

BEGIN, END = "<!-- begin: speedup -->", "<!-- end: speedup -->"
TITLES = {"quadratic": "quadratic", "a9a": "AUC on a9a"}
CLIENTS = {"full": "all clients take part", "partial": "some clients take part"}
GREY = "#888888"


def blocks(evidence: SpeedupEvidence) -> Iterator[Block]:
    """Make the whole page: the slopes, then the theorems."""
    if evidence.quick:
        yield QUICK_RUN
    yield from slope_blocks(evidence)
    yield from theorem_blocks(evidence)


def slope_blocks(evidence: SpeedupEvidence) -> Iterator[Block]:
    """Make the table of slopes, and their charts."""
    every = list(lines(evidence.quick))
    yield Heading("Slopes", 3)
    yield Text(
        "The columns m, K and T have slopes of log error in log mKT, where m, K or T "
        "is swept at the corollaries' rates. The next column has slopes of log rounds "
        "in log 1/ε², where K grows with T. The error, ε², is the mean of ‖∇Φ‖² over "
        f"all rounds. A slope is fitted for each of {evidence.seeds} seeds, and the "
        "table has the mean with its 95 % interval. The last column has the slopes "
        "that the corollaries predict."
    )
    rows = []
    by_method: dict[tuple[str, str, str], list[Line]] = {}
    for line in every:
        key = line.bench, line.clients, line.method
        by_method.setdefault(key, []).append(line)
    for (bench, _, method), some in by_method.items():
        slopes = [str(fitted(line, evidence.errors_of(line))) for line in some]
        predicted = ", ".join(f"{line.predicted:g}" for line in some)
        s = some[1].settings[0]  # of the sweep over K, which fixes the clients
        head = [TITLES[bench], f"{s.cohort} of {s.clients}", title(method)]
        rows.append([*head, *slopes, predicted])
    yield Grid(
        ["problem", "clients", "method", *OVER[:3], "rounds in 1/ε²", "predicted"], rows
    )
    for bench, clients in product(BENCHES, METHODS):
        some = [x for x in every if (x.bench, x.clients) == (bench, clients)]
        yield Chart(
            f"speedup-{bench}-{clients}",
            panel(evidence, some),
            f"{TITLES[bench]}, {CLIENTS[clients]}: the mean of ‖∇Φ‖² over mKT where m, "
            "K or T is swept, and rounds over 1/ε². Geometric means with 95 % "
            "intervals. Grey lines have the slopes -1/2 and 1.",
        )


def title(method: str) -> str:
    """Return the name of a method for tables and legends."""
    return method.replace(" all", ", variates from all rows")


def theorem_blocks(evidence: SpeedupEvidence) -> Iterator[Block]:
    """Make the table of bounds and measured means."""
    yield Heading("The theorems, tried", 3)
    yield Text(
        "These runs are on quadratics with exact constants, at rates that satisfy "
        "every condition. Control variates start warm. The first rows have full "
        "participation, κ = 1.05, a start far from the solution, and the rates that "
        "minimise the bound. The last rows sample one client of 20, without noise, "
        "with K = 1. Measured is the mean of ‖∇Φ‖² over rounds and seeds, with its "
        "95 % interval. The bounds are those of the published theorems."
    )
    rows = []
    for theorem in theorems(evidence.quick):
        trial = evidence.trials[str(theorem)]
        mean, low, high = interval(np.array(trial.measured))
        s = theorem.setting
        rows.append(
            [
                theorem.method,
                f"{s.cohort} of {s.clients}",
                str(s.local_steps),
                f"{s.rounds:,}",
                f"{trial.begin:.3g}",
                f"{trial.printed:.3g}",
                f"{mean:.4g} [{low:.4g}, {high:.4g}]",
                f"{mean / trial.printed:.2f}",
            ]
        )
    head = ["method", "clients", "K", "T", "at the start", "bound", "measured", "ratio"]
    yield Grid(head, rows)


def panel(evidence: SpeedupEvidence, some: list[Line]) -> dict[str, Any]:
    """Return a row of charts, one for each quantity that is swept."""
    drawn = [
        chart(evidence, [line for line in some if line.over == over], legend=i == 0)
        for i, over in enumerate(OVER)
    ]
    return in_a_row(drawn, spacing=16)


def chart(evidence: SpeedupEvidence, some: list[Line], legend: bool) -> Any:
    """Return a chart with one line per method, on logarithmic axes.

    The chart shows errors over mKT, or rounds over 1/epsilon^2 if rounds are swept.
    """
    alt, _ = drawing()
    names = [title(line.method) for line in some]
    over = some[0].over
    rows = [row for line in some for row in points(line, evidence.errors_of(line))]
    # A grey line with the predicted slope, through the first point of the first method.
    first = [row for row in rows if row["method"] == names[0]]
    slope = 1.0 if over == "rounds" else -0.5
    guide = [
        {"x": row["x"], "y": first[0]["y"] * (row["x"] / first[0]["x"]) ** slope}
        for row in (first[0], first[-1])
    ]
    style = line_style("method", names, columns=4, legend=legend)
    log = alt.Scale(type="log", zero=False, nice=False, padding=8)
    titles = ("1/ε²", "rounds") if over == "rounds" else (f"mKT, {over} swept", None)
    across = alt.X("x:Q", title=titles[0], scale=log)
    across = across.axis(grid=False, tickCount=3, format="~s")
    up = alt.Y("y:Q", title=titles[1] or "mean of ‖∇Φ‖²", scale=log)
    up = up.axis(tickCount=5, format="~g" if over == "rounds" else ".0e")
    base = alt.Chart(alt.InlineData(values=rows))
    drawn = base.mark_line(strokeWidth=1.8, point=alt.OverlayMarkDef(size=25)).encode(
        x=across, y=up, **style
    )
    # The interval of an error is vertical. The interval of 1/epsilon^2 is horizontal.
    ends = {"x": across, "y": alt.Y("low:Q", scale=log), "y2": "high:Q"}
    if over == "rounds":
        ends = {"x": alt.X("left:Q", scale=log), "x2": "right:Q", "y": up}
    bars = base.mark_rule(strokeWidth=1.2).encode(color=style["color"], **ends)
    predicted = (
        alt.Chart(alt.InlineData(values=guide))
        .mark_line(color=GREY, strokeDash=[4, 4])
        .encode(x=across, y=up)
    )
    return (predicted + bars + drawn).properties(width=165, height=190)


def points(line: Line, errors: np.ndarray) -> list[dict[str, Any]]:
    """Return the data of a chart: geometric means over seeds, with 95 % intervals."""
    out = []
    for s, by_seed in zip(line.settings, errors, strict=True):
        mean, low, high = (float(np.exp(v)) for v in interval(np.log(by_seed)))
        row: dict[str, Any] = {"method": title(line.method)}
        if line.over == "rounds":
            row |= {"x": 1 / mean, "left": 1 / high, "right": 1 / low, "y": s.rounds}
        else:
            size = s.cohort * s.local_steps * s.rounds
            row |= {"x": size, "y": mean, "low": low, "high": high}
        out.append(row)
    return out


def insert(page: Path, content: list[Block]) -> None:
    """Replace the text between the marks `BEGIN` and `END` of a Markdown page."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise BadValue(
            f"{page} must have both lines {BEGIN} and {END}, but at least one is "
            "missing; put them before and after the place for the results."
        )
    markdown = as_markdown(content, page.parent / "images", "theory")
    durable.write(page, f"{before}{BEGIN}\n\n{markdown}\n{END}{after}")
