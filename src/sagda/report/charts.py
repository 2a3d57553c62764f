"""Charts of runs as Vega-Lite specifications, and as PNG, PDF, SVG or HTML files.

Altair makes the specifications and vl-convert draws them. Both packages belong to the
extra `report`, and only `drawing` imports them. Charts of theory are in
`theory_charts.py`, and `blocks.py` puts charts into reports.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sagda import durable
from sagda.check import BadValue
from sagda.problems.metrics import AXES, metric_of
from sagda.runs.results import Results

# The horizontal axes of a report's curves.
BUDGETS = ("round", "samples", "megabytes", "seconds")
# Colours of Okabe and Ito, which colour-blind readers can distinguish. Dashes help in
# black-and-white print.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 3], [3, 1], [1, 3]]

WIDTH = 640  # points; the width in a file of a chart with the width "container"


class MissingExtra(BadValue):
    """The packages of the extra `report` are not installed."""


def drawing() -> tuple[Any, Any]:
    """Import and return the modules altair and vl_convert.

    Raises `MissingExtra` if the extra `report` is not installed.
    """
    try:
        import altair
        import jinja2  # noqa: F401 # charts do not need it, but every report does
        import vl_convert
    except ImportError:
        raise MissingExtra(
            "reports and pictures need the extra `report`, which is not installed: "
            "pip install 'sagda[report]', then `sagda report FOLDER`."
        ) from None
    return altair, vl_convert


def curves(results: Results, metric: str, axis: str) -> dict[str, Any]:
    """Return a chart of one metric over one axis.

    The chart has no rows yet: it reads them from a data set `curves` (`curve_rows`).
    """
    alt, _ = drawing()
    names = results.shown
    label, log = metric_of(metric).label, metric_of(metric).logarithmic
    scale = alt.Scale(type="log") if log else alt.Scale(zero=False)
    lines = line_style("algorithm", names, columns=2 if results.points else 0)
    base = alt.Chart(alt.NamedData("curves")).encode(
        x=alt.X(f"{axis}:Q", title=AXES[axis], axis=alt.Axis(grid=False))
    )
    axis_format = {"format": ".0e" if log else "~g", "tickCount": 6}
    height = alt.Y("mean:Q", title=label, scale=scale).axis(**axis_format)
    layers = base.mark_line(strokeWidth=1.8).encode(y=height, **lines)
    if results.seeds > 1:
        low = alt.Y("low:Q", title=label, scale=scale)
        band = base.mark_area(opacity=0.18)
        layers = band.encode(y=low, y2="high:Q", color=lines["color"]) + layers
    return plain(layers.properties(width="container", height=360))


def curve_rows(results: Results, metric: str, most: int = 250) -> list[dict[str, Any]]:
    """Return the data of `curves`: at most `most` rows for each algorithm.

    A row is one evaluation. It has the mean, the lowest and the highest value over
    seeds, and all axes. Values that cannot be drawn are left out: values that are not
    finite, and values that are not positive if the axis is logarithmic.
    """
    logarithmic = metric_of(metric).logarithmic
    rows = []
    for name in results.shown:
        columns, sent = results.columns[name], results.bytes_sent(name) / 1e6
        values = columns[metric]
        steps = np.unique(np.linspace(0, values.shape[1] - 1, most).astype(int))
        for j in steps:
            at = values[:, j]
            if not np.isfinite(at).all() or (logarithmic and not (at > 0).all()):
                continue
            numbers = {
                "samples": columns["samples"][:, j].mean(),
                "megabytes": sent[:, j].mean(),
                "seconds": columns["seconds"][:, j].mean(),
                "mean": at.mean(),
                "low": at.min(),
                "high": at.max(),
            }
            row = {"algorithm": name, "round": int(columns["round"][0, j])}
            rows.append(row | {k: float(f"{v:.5g}") for k, v in numbers.items()})
    return rows


def line_style(
    field: str, names: list[str], *, columns: int = 0, legend: bool = True
) -> dict[str, Any]:
    """Return Altair's `color` and `strokeDash` encodings of `field`.

    Both encodings share one legend.
    """
    alt, _ = drawing()
    key = alt.Legend(
        title=None,
        orient="top",
        columns=columns,
        symbolType="stroke",
        symbolSize=500,
        symbolStrokeWidth=2.5,
        symbolOpacity=1,
        labelLimit=400,
        labelFontSize=13,
    )
    count = range(len(names))
    colours = [COLOURS[i % len(COLOURS)] for i in count]
    # With more names than colours, a repeated colour gets a different dash.
    dashes = [DASHES[(i + i // len(COLOURS)) % len(DASHES)] for i in count]
    options = {"shorthand": f"{field}:N", "legend": key if legend else None}
    return {
        "color": alt.Color(**options).scale(domain=names, range=colours),
        "strokeDash": alt.StrokeDash(**options).scale(domain=names, range=dashes),
    }


def plain(chart: Any, font: int = 12) -> dict[str, Any]:
    """Return the specification of an Altair chart, with axis labels of size `font`."""
    return chart.configure_axis(labelFontSize=font, titleFontSize=font + 1).to_dict()


def in_a_row(
    charts: Sequence[Any], *, spacing: int = 20, font: int = 12
) -> dict[str, Any]:
    """Return the specification of a row of charts that share one legend."""
    alt, _ = drawing()
    row = alt.hconcat(*charts, spacing=spacing)
    return plain(row.resolve_scale(color="shared", strokeDash="shared"), font)


def heat_rows(results: Results, keys: list[str]) -> list[dict[str, Any]]:
    """Return the data of `heat_map`: one row for each cell.

    A cell is a pair of values of the first two parameters. Its row has the error of the
    best point with these values, or None if this point diverged.
    """
    rows: dict[tuple, dict[str, Any]] = {}
    # From the worst point to the best, so that the best point of a cell is stored last.
    for name in reversed(results.ranked):
        error = results.tail(name)
        values = [results.points[name][key] for key in keys]
        drawable = math.isfinite(error) and error > 0
        rows[tuple(values)] = {
            "column": str(values[0]),
            "row": str(values[1]) if len(keys) > 1 else "",
            "error": error if drawable else None,
            "text": f"{error:.1e}" if drawable else "diverged",
        }
    return list(rows.values())


def heat_map(results: Results) -> dict[str, Any]:
    """Return a chart of the final errors of a sweep over its first two parameters.

    Cells of points that diverged are grey.
    """
    alt, _ = drawing()
    keys = list(next(iter(results.points.values())))[:2]
    rows = heat_rows(results, keys)
    values = [{point[key] for point in results.points.values()} for key in keys]
    # Sort numbers before text.
    first = lambda value: (isinstance(value, str), value)
    orders = [[str(v) for v in sorted(some, key=first)] for some in values]
    across = alt.X("column:O", title=keys[0], sort=orders[0])
    up = alt.Y("row:O", title=None, sort=None)
    if len(keys) > 1:
        up = alt.Y("row:O", title=keys[1], sort=orders[1][::-1])
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=across.axis(labelAngle=0), y=up
    )
    known = [row["error"] for row in rows if row["error"] is not None]
    # Errors above the initial error get its colour. Otherwise one large error would use
    # most of the scale, and all other cells would have nearly the same colour.
    main = results.main
    start = max(columns[main][:, 0].mean() for columns in results.columns.values())
    ends = [min(known, default=start), min(max(known, default=start), start)]
    middle = math.sqrt(ends[0] * ends[1])
    scale = alt.Scale(
        type="log", scheme="viridis", reverse=True, domain=ends, clamp=True
    )
    legend = alt.Legend(title=metric_of(main).label, format=".0e", tickCount=4)
    paint = alt.Color("error:Q", scale=scale, legend=legend)
    finite = base.transform_filter("datum.error !== null")
    whole = finite.mark_rect().encode(color=paint)
    broken = base.transform_filter("datum.error === null").mark_rect(color="#dddddd")
    white, black = alt.value("white"), alt.value("black")
    dark = alt.condition(f"datum.error > {middle}", white, black)
    text = base.mark_text(fontSize=12).encode(text="text:N", color=dark)
    height = 60 + 34 * len({row["row"] for row in rows})
    layers = (broken + whole + text) if known else (broken + text)
    return plain(layers.properties(width="container", height=height))


def split_chart(counts: dict[str, list[int]], sizes: list[int]) -> dict[str, Any]:
    """Return a bar chart of the number of rows of each client.

    `counts` has the number of rows of each client by class. If it is empty, the bars
    show `sizes` without classes.
    """
    alt, _ = drawing()
    classes = counts or {"rows": sizes}
    rows = [
        {"client": i, "class": name, "rows": number}
        for name, numbers in classes.items()
        for i, number in enumerate(numbers)
        if number
    ]
    names = list(classes)
    shown = list(range(0, len(sizes), max(1, len(sizes) // 20)))
    ticks = alt.Axis(values=shown, labelAngle=0)
    legend = alt.Legend() if counts else None
    colour = alt.Color("class:N", sort=names, legend=legend)
    if len(names) <= len(COLOURS):
        colour = colour.scale(domain=names, range=COLOURS[: len(names)])
    across = alt.X("client:O", title="client", axis=ticks)
    up = alt.Y("rows:Q", title="rows")
    bars = alt.Chart(alt.InlineData(values=rows)).mark_bar()
    bars = bars.encode(x=across, y=up, color=colour)
    return plain(bars.properties(width="container", height=180))


def picture(spec: dict[str, Any], kind: str) -> bytes:
    """Draw a chart. Return the content of a file in the format `kind`.

    A chart with the width "container" becomes 640 points wide.
    """
    _, vl_convert = drawing()
    spec = spec | {"background": "white"}
    if spec.get("width") == "container":
        spec["width"] = WIDTH
    options = {"png": {"scale": 2}, "html": {"bundle": True}}.get(kind, {})
    content = getattr(vl_convert, f"vegalite_to_{kind}")(spec, **options)
    return content.encode() if isinstance(content, str) else content


def write_picture(spec: dict[str, Any], path: Path) -> None:
    """Write a chart to `path`. The file extension selects the format."""
    durable.write(path, picture(spec, picture_kind(path)))


def picture_kind(path: Path) -> str:
    """Return the picture format that the file extension of `path` names.

    Raises `BadValue` if sagda cannot write that format.
    """
    kind = path.suffix.lstrip(".").lower()
    if kind not in ("png", "pdf", "svg", "html"):
        raise BadValue(f"`picture` must end in .png, .pdf, .svg or .html, got {path}.")
    return kind
