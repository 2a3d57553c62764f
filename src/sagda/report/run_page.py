"""The page of a run folder: one file with everything inside, and its figures."""

import html
import json
import math
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from sagda import durable
from sagda.check import BadValue
from sagda.problems.metrics import AXES, metric_of
from sagda.report import pictures as gallery
from sagda.report import theory_page as standing
from sagda.report.markup import in_table
from sagda.runs.config import is_federation
from sagda.runs.results import Results, read_results

# Okabe and Ito's colours, told apart by all eyes, and dashes for print.
BUDGETS = ("round", "samples", "megabytes", "seconds")
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 3], [3, 1], [1, 3]]


class MissingExtra(BadValue):
    """What draws the page is not installed."""


def drawing() -> tuple[Any, Any]:
    """Altair and vl-convert."""
    try:
        import altair
        import vl_convert
    except ImportError:
        raise MissingExtra(
            "the page needs the extra `report`: pip install 'sagda[report]', then "
            "`sagda report FOLDER`."
        ) from None
    return altair, vl_convert


def curves(found: Results, metric: str, axis: str) -> dict[str, Any]:
    """A chart of one measure against one axis, over the dataset `curves`."""
    alt, _ = drawing()
    names = found.shown
    log = metric_of(metric).logarithmic
    scale = alt.Scale(type="log") if log else alt.Scale(zero=False)
    form = ".0e" if log else "~g"
    line, paint = zip(*map(style, range(len(names))), strict=True)
    legend = alt.Legend(
        title=None,
        orient="top",
        labelFontSize=13,
        symbolType="stroke",
        symbolSize=700,
        symbolStrokeWidth=2.5,
        symbolOpacity=1,
        columns=2 if found.points else 0,
        labelLimit=400,
    )
    colour = alt.Color("algorithm:N", legend=legend).scale(domain=names, range=paint)
    dash = alt.StrokeDash("algorithm:N", legend=legend).scale(domain=names, range=line)
    base = alt.Chart(alt.NamedData("curves")).encode(
        x=alt.X(f"{axis}:Q", title=AXES[axis], axis=alt.Axis(grid=False))
    )
    height = alt.Y("mean:Q", title=metric_of(metric).label, scale=scale)
    height = height.axis(format=form, tickCount=6)
    layers = base.mark_line(strokeWidth=1.8).encode(
        y=height, color=colour, strokeDash=dash
    )
    if found.seeds > 1:
        band = base.mark_area(opacity=0.18).encode(
            y=alt.Y("low:Q", title=metric_of(metric).label, scale=scale),
            y2="high:Q",
            color=colour,
        )
        layers = band + layers
    chart = layers.properties(width="container", height=360)
    return plain(chart)


def style(i: int) -> tuple[list[int], str]:
    """Dash and colour of the i-th curve; colours come again with other dashes."""
    turn = i // len(COLOURS)
    return DASHES[(i + turn) % len(DASHES)], COLOURS[i % len(COLOURS)]


def plain(chart: Any) -> dict[str, Any]:
    return chart.configure_axis(labelFontSize=12, titleFontSize=13).to_dict()


def heat_map(found: Results) -> dict[str, Any]:
    """A sweep's last values over its first two parameters; crossed out: diverged."""
    alt, _ = drawing()
    keys, cells = found.cells()
    rows = [
        {
            "column": str(cell[keys[0]]),
            "row": str(cell[keys[-1]]) if len(keys) > 1 else "",
            "error": cell["error"],
            "text": "diverged" if cell["error"] is None else f"{cell['error']:.1e}",
        }
        for cell in cells
    ]
    order = lambda key: [
        str(v) for v in sorted({cell[key] for cell in cells}, key=number_first)
    ]
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X(
            "column:O", title=keys[0], sort=order(keys[0]), axis=alt.Axis(labelAngle=0)
        ),
        y=alt.Y(
            "row:O",
            title=keys[-1] if len(keys) > 1 else None,
            sort=order(keys[-1])[::-1] if len(keys) > 1 else None,
        ),
    )
    known = [row["error"] for row in rows if row["error"] is not None]
    # Whatever is worse than the start has the start's colour.
    start = max(columns[found.main][:, 0].mean() for columns in found.columns.values())
    ends = [min(known, default=start), min(max(known, default=start), start)]
    middle = math.sqrt(ends[0] * ends[1])
    scale = alt.Scale(
        type="log", scheme="viridis", reverse=True, domain=ends, clamp=True
    )
    legend = alt.Legend(title=metric_of(found.main).label, format=".0e", tickCount=4)
    paint = alt.Color("error:Q", scale=scale, legend=legend)
    whole = (
        base.transform_filter("datum.error !== null").mark_rect().encode(color=paint)
    )
    broken = base.transform_filter("datum.error === null").mark_rect(color="#dddddd")
    dark = alt.condition(
        f"datum.error > {middle}",
        alt.value("white"),
        alt.value("black"),
    )
    text = base.mark_text(fontSize=12).encode(text="text:N", color=dark)
    height = 60 + 34 * len({row["row"] for row in rows})
    layers = (broken + whole + text) if known else (broken + text)
    return plain(layers.properties(width="container", height=height))


def number_first(value: Any) -> tuple[bool, Any]:
    return isinstance(value, str), value


def split_chart(counts: dict[str, list[int]], sizes: list[int]) -> dict[str, Any]:
    """Rows per client, by class where there are classes."""
    alt, _ = drawing()
    held = counts or {"rows": sizes}
    rows = [
        {"client": i, "class": name, "rows": number}
        for name, numbers in held.items()
        for i, number in enumerate(numbers)
        if number
    ]
    names = list(held)
    shown = list(range(0, len(sizes), max(1, len(sizes) // 20)))
    ticks = alt.Axis(values=shown, labelAngle=0)
    colour = alt.Color(
        "class:N", sort=names, legend=None if not counts else alt.Legend()
    )
    if len(names) <= len(COLOURS):
        colour = colour.scale(domain=names, range=COLOURS[: len(names)])
    chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar()
        .encode(
            x=alt.X("client:O", title="client", axis=ticks),
            y=alt.Y("rows:Q", title="rows"),
            color=colour,
        )
        .properties(width="container", height=180)
    )
    return plain(chart)


def write_page(folder: Path) -> Path:
    """report.html, from the files of a finished folder alone."""
    _, vl_convert = drawing()
    found = read_results(folder)
    config = (folder / "config.toml").read_text(encoding="utf-8")
    split = found.summary["split"]
    names = found.ranked
    metrics = [m for m in found.metrics if found.curve(m)]
    targets = found.targets()
    reached = {epsilon: found.until(epsilon) for epsilon in targets}
    data = {
        "metrics": [[m, metric_of(m).label] for m in metrics],
        "axes": [[a, AXES[a]] for a in BUDGETS],
        "specs": {m: {a: curves(found, m, a) for a in BUDGETS} for m in metrics},
        "curves": {m: found.curve(m) for m in metrics},
        "partition": split_chart(split["labels"], client_sizes(split)),
        "heat": heat_map(found) if found.points else None,
    }
    what = ", ".join(names)
    if found.points:
        what = f"{len(names)} points, curves of the best {len(found.shown)}"
    band = f"mean of {found.seeds} seeds, band from lowest to highest"
    page = Template(template()).substitute(
        title=html.escape(folder.resolve().name),
        subtitle=html.escape(f"{what}; {found.summary['rounds']} rounds{found.early}"),
        caption=band if found.seeds > 1 else "one seed",
        table=in_table(
            [[name, *cells] for name, cells in found.table.items()],
            ["point" if found.points else "algorithm", *found.headings],
        ),
        table_note="Mean ± standard deviation over seeds. Samples are those of one "
        "participating client, bytes those of all messages in both directions, "
        "seconds those in rounds.",
        targets=in_table(
            [
                [name, f"{epsilon:.0e}", *reached[epsilon][name]]
                for epsilon in targets
                for name in found.shown
            ],
            [
                "point" if found.points else "algorithm",
                f"until {metric_of(found.main).short} ≤",
                "rounds",
                "samples",
                "bytes",
            ],
        ),
        targets_note="Means over seeds; a dash where a seed never came there.",
        theory=standing.section(folder, is_federation(folder)),
        images="".join(
            gallery.figure(name, gallery.grid(pictures))
            for name, pictures in gallery.read(folder).items()
        ),
        split=html.escape(
            f"{split['clients']} clients of {split['smallest']} to {split['largest']} "
            f"rows; split {split['hash']}"
        ),
        config=html.escape(config),
        environment=in_table(
            [[k, str(v)] for k, v in found.summary["environment"].items()], ["", ""]
        ),
        bundle=vl_convert.javascript_bundle().replace("</script", "<\\/script"),
        data=json.dumps(data).replace("</", "<\\/"),
    )
    path = folder / "report.html"
    durable.write(path, page)
    return path


def template() -> str:
    return (
        resources.files("sagda.report")
        .joinpath("templates", "run.html")
        .read_text("utf-8")
    )


def client_sizes(split: dict[str, Any]) -> list[int]:
    if split["labels"]:
        return [sum(held) for held in zip(*split["labels"].values(), strict=True)]
    return [split["largest"]] * split["clients"]


def write_figures(folder: Path) -> list[Path]:
    """figures/: every measure against every axis, and the split, as PNG and PDF."""
    found = read_results(folder)
    out = folder / "figures"
    out.mkdir(exist_ok=True)
    made = []
    split = found.summary["split"]
    specs = {"partition": split_chart(split["labels"], client_sizes(split))}
    if found.points:
        specs["sweep"] = heat_map(found)
    for metric in found.metrics:
        rows = found.curve(metric)
        for axis in BUDGETS if rows else ():
            spec = curves(found, metric, axis)
            spec["datasets"] = {"curves": rows}
            specs[f"{metric}-by-{axis}"] = spec
    for name, spec in specs.items():
        for kind in ("png", "pdf"):
            path = out / f"{name}.{kind}"
            durable.write(path, picture(spec, kind))
            made.append(path)
    for name, pictures in gallery.read(folder).items():
        path = out / f"images-{name}.png"
        durable.write(path, gallery.grid(pictures))
        made.append(path)
    return made


def picture(spec: dict[str, Any], kind: str, width: int | None = 640) -> bytes:
    """A chart as a file's content; charts side by side have widths of their own."""
    _, vl_convert = drawing()
    fixed = spec | {"background": "white"} | ({"width": width} if width else {})
    if kind == "png":
        return vl_convert.vegalite_to_png(fixed, scale=2)
    if kind == "pdf":
        return vl_convert.vegalite_to_pdf(fixed)
    if kind == "svg":
        return vl_convert.vegalite_to_svg(fixed).encode()
    return vl_convert.vegalite_to_html(fixed, bundle=True).encode()


def draw_partition(counts: dict[str, list[int]], sizes: list[int], path: Path) -> None:
    """The split as a picture."""
    write_picture(split_chart(counts, sizes), path)


def write_picture(spec: dict[str, Any], path: Path, width: int | None = 640) -> None:
    """A chart as a file, whose ending says which kind."""
    durable.write(path, picture(spec, picture_kind(path), width))


def picture_kind(path: Path) -> str:
    kind = path.suffix.lstrip(".").lower()
    if kind not in ("png", "pdf", "svg", "html"):
        raise BadValue(f"`picture` must end in .png, .pdf, .svg or .html, got {path}.")
    return kind
