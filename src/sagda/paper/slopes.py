"""The speed-up's page: slopes, pictures, and the theorems beside their bounds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sagda import durable
from sagda.check import BadValue
from sagda.paper.evidence import interval
from sagda.paper.speedup import (
    BENCHES,
    METHODS,
    OVER,
    Found,
    Line,
    fitted,
    lines,
    theorems,
)
from sagda.report.blocks import Block, Chart, Grid, Heading, Text, as_markdown
from sagda.report.charts import drawing, style

BEGIN, END = "<!-- begin: speedup -->", "<!-- end: speedup -->"
TITLES = {"quadratic": "quadratic", "a9a": "AUC on a9a"}
CLIENTS = {"full": "all clients take part", "partial": "some clients take part"}
GREY = "#888888"


def blocks(found: Found) -> Iterator[Block]:
    if found.quick:
        yield Text(
            "This is a quick run: a tenth of the rounds and two seeds. It shows that "
            "everything works, and proves nothing."
        )
    yield from slope_blocks(found)
    yield from theorem_blocks(found)


def slope_blocks(found: Found) -> Iterator[Block]:
    every = list(lines(found.quick))
    yield Heading("Slopes", 3)
    yield Text(
        "Of log error in log mKT, m, K or T being swept, at the corollaries' rates; "
        "and of log rounds in log 1/ε², where K grows with T. The error, ε², is the "
        f"mean of ‖∇Φ‖² over all rounds. Fitted seed by seed, {found.seeds} seeds, "
        "with the 95 % interval of their mean; in the last column what the corollary "
        "says."
    )
    rows = []
    for bench in BENCHES:
        for clients, methods in METHODS.items():
            for method in methods:
                own = [
                    line
                    for line in every
                    if (line.bench, line.clients, line.method)
                    == (bench, clients, method)
                ]
                cells = [str(fitted(line, found.of(line))) for line in own]
                said = ", ".join(f"{line.predicted:g}" for line in own)
                head = [TITLES[bench], sizes(own), named(method)]
                rows.append([*head, *cells, said])
    yield Grid(
        ["problem", "clients", "method", *OVER[:3], "rounds in 1/ε²", "predicted"], rows
    )
    for bench in BENCHES:
        for clients in METHODS:
            own = [x for x in every if (x.bench, x.clients) == (bench, clients)]
            yield Chart(
                f"speedup-{bench}-{clients}",
                panel(found, own),
                f"{TITLES[bench]}, {CLIENTS[clients]}: the mean of ‖∇Φ‖² over mKT "
                "where m, K or T is swept, and rounds over 1/ε². Geometric means with "
                "95 % intervals; grey: the slopes -1/2 and 1.",
            )


def named(method: str) -> str:
    return method.replace(" all", ", variates from all rows")


def sizes(own: list[Line]) -> str:
    setting = own[1].settings[0]  # where K is swept, clients are not
    return f"{setting.cohort} of {setting.clients}"


def theorem_blocks(found: Found) -> Iterator[Block]:
    yield Heading("The theorems, tried", 3)
    yield Text(
        "Quadratics with exact constants, at rates that satisfy every condition, "
        "variates started warm. First full participation, κ = 1.05, a start far away, "
        "at the rates that make the bound least; then the sampling of one client in "
        "20, without noise, K = 1. Measured: the mean of ‖∇Φ‖² over rounds and seeds, "
        "with its 95 % interval; bounds as printed."
    )
    rows = []
    for own in theorems(found.quick):
        kept = found.values[str(own)]
        mean, low, high = interval(np.array(kept["measured"]))
        s = own.setting
        rows.append(
            [
                own.method,
                f"{s.cohort} of {s.clients}",
                str(s.local_steps),
                f"{s.rounds:,}",
                f"{kept['begin']:.3g}",
                f"{kept['printed']:.3g}",
                f"{mean:.4g} [{low:.4g}, {high:.4g}]",
                f"{mean / kept['printed']:.2f}",
            ]
        )
    head = ["method", "clients", "K", "T", "at the start", "bound", "measured", "ratio"]
    yield Grid(head, rows)


def panel(found: Found, own: list[Line]) -> dict[str, Any]:
    """Charts side by side, one for each thing that is swept."""
    alt, _ = drawing()
    drawn = [
        chart(found, [line for line in own if line.over == over], legend=i == 0)
        for i, over in enumerate(OVER)
    ]
    together = alt.hconcat(*drawn, spacing=16).resolve_scale(
        color="shared", strokeDash="shared"
    )
    return together.configure_axis(labelFontSize=12, titleFontSize=13).to_dict()


def chart(found: Found, own: list[Line], legend: bool) -> Any:
    alt, _ = drawing()
    names = [named(line.method) for line in own]
    over = own[0].over
    rows = [row for line in own for row in points(line, found.of(line))]
    # The corollary's slope, through the first point of the first method.
    first = [row for row in rows if row["method"] == names[0]]
    slope = 1.0 if over == "rounds" else -0.5
    guide = [
        {"x": row["x"], "y": first[0]["y"] * (row["x"] / first[0]["x"]) ** slope}
        for row in (first[0], first[-1])
    ]
    line, paint = zip(*map(style, range(len(names))), strict=True)
    key = (
        alt.Legend(
            title=None, orient="top", columns=4, symbolType="stroke", symbolSize=500,
            symbolStrokeWidth=2.5, symbolOpacity=1, labelLimit=300, labelFontSize=13,
        )
        if legend
        else None
    )  # fmt: skip
    colour = alt.Color("method:N", legend=key).scale(domain=names, range=list(paint))
    dash = alt.StrokeDash("method:N", legend=key).scale(domain=names, range=list(line))
    log = alt.Scale(type="log", zero=False, nice=False, padding=8)
    titles = ("1/ε²", "rounds") if over == "rounds" else (f"mKT, {over} swept", None)
    across = alt.X("x:Q", title=titles[0], scale=log)
    across = across.axis(grid=False, tickCount=3, format="~s")
    up = alt.Y("y:Q", title=titles[1] or "mean of ‖∇Φ‖²", scale=log)
    up = up.axis(tickCount=5, format="~g" if over == "rounds" else ".0e")
    base = alt.Chart(alt.InlineData(values=rows))
    drawn = base.mark_line(strokeWidth=1.8, point=alt.OverlayMarkDef(size=25)).encode(
        x=across, y=up, color=colour, strokeDash=dash
    )
    low, high = ("left", "right") if over == "rounds" else ("low", "high")
    ends = {"x": alt.X("left:Q", scale=log), "x2": "right:Q", "y": up}
    if over != "rounds":
        ends = {"x": across, "y": alt.Y(f"{low}:Q", scale=log), "y2": f"{high}:Q"}
    bars = base.mark_rule(strokeWidth=1.2).encode(color=colour, **ends)
    said = (
        alt.Chart(alt.InlineData(values=guide))
        .mark_line(color=GREY, strokeDash=[4, 4])
        .encode(x=across, y=up)
    )
    return (said + bars + drawn).properties(width=165, height=190)


def points(line: Line, errors: np.ndarray) -> list[dict[str, Any]]:
    """Geometric means with their intervals."""
    out = []
    for s, some in zip(line.settings, errors, strict=True):
        mean, low, high = (float(np.exp(v)) for v in interval(np.log(some)))
        row: dict[str, Any] = {"method": named(line.method)}
        if line.over == "rounds":
            row |= {"x": 1 / mean, "left": 1 / high, "right": 1 / low, "y": s.rounds}
        else:
            size = s.cohort * s.local_steps * s.rounds
            row |= {"x": size, "y": mean, "low": low, "high": high}
        out.append(row)
    return out


def insert(page: Path, content: list[Block]) -> None:
    """Between the marks of a Markdown page, whatever was there before."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise BadValue(f"{page} must have the lines {BEGIN} and {END}.")
    own = as_markdown(content, page.parent / "images", "theory")
    durable.write(page, f"{before}{BEGIN}\n\n{own}\n{END}{after}")
