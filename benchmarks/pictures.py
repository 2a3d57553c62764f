"""Draws the pictures of docs/performance.md from the results."""

from pathlib import Path
from typing import Any

import altair as alt
import growth
import tables
import vl_convert
from entrants import OURS

FOLDER = Path(__file__).parents[1] / "docs" / "images"
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#888888"
PAINT = [BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", GREY]


def save(chart: Any, name: str) -> None:
    """Write a chart as docs/images/performance-NAME.png."""
    text = chart.configure_axis(labelFontSize=12, titleFontSize=12, labelLimit=300)
    text = text.configure_title(fontSize=13, anchor="start")
    text = text.configure_view(stroke=None).to_json()
    image = vl_convert.vegalite_to_png(text, scale=2)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"performance-{name}.png").write_bytes(image)


def rivals(result: dict) -> None:
    """Draw bars of milliseconds per round, one panel for each job."""
    rows = tables.best_variants(result["rows"])
    names = tables.in_order(rows)
    low = min(row["ms"] for row in rows) / 3
    high = max(row["ms"] for row in rows) * 3
    panels = []
    for where, title in tables.HEADS.items():
        data = [
            {
                "name": row["name"],
                "ms": row["ms"],
                "low": low,
                "text": tables.number(row["ms"]),
                "ours": row["name"] == OURS,
            }
            for row in rows
            if (row["problem"], row["batch"]) == where
        ]
        here = [name for name in names if any(row["name"] == name for row in data)]
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        axis = alt.Axis(values=[0.1, 1, 10, 100, 1000, 10_000], format="~g")
        base = alt.Chart(alt.InlineData(values=data), title=title).encode(
            x=alt.X("ms:Q", title="ms per round", scale=scale, axis=axis),
            y=alt.Y("name:N", title=None, scale=alt.Scale(domain=here)),
        )
        colour = alt.condition("datum.ours", alt.value(ORANGE), alt.value(BLUE))
        bars = base.mark_bar().encode(x2="low:Q", color=colour)
        text = base.mark_text(align="left", dx=4, fontSize=11).encode(text="text:N")
        panels.append((bars + text).properties(width=300, height=alt.Step(22)))
    save(alt.concat(*panels, columns=2), "rivals")


def growths(result: dict) -> None:
    """Draw the time per round and the memory over each number that grows."""
    panels = []
    for axis, curve in result["curves"].items():
        points = curve["points"]
        data = [
            {"at": p["at"], "ms": p["ms"], "memory": p["VmHWM"] / tables.MIB}
            for p in points
        ]
        last = curve["exponent_last"]
        title = alt.Title(
            growth.TITLES[axis],
            subtitle=f"exponent {curve['exponent']:.2f}, last decade {last:.2f}",
        )
        ticks = alt.Axis(values=[10**i for i in range(6)], format="~s", grid=False)
        across = alt.X(
            "at:Q", title=axis, scale=alt.Scale(type="log", nice=False), axis=ticks
        )
        scale = alt.Scale(type="log", domain=extent(result, "ms"), nice=False)
        height = alt.Axis(values=[0.01, 0.1, 1, 10, 100, 1000], format="~g")
        memory = alt.Scale(domain=[0, extent(result, "VmHWM")[1]], nice=False)
        right = alt.Axis(tickCount=4, orient="right", grid=False)
        base = alt.Chart(alt.InlineData(values=data)).encode(x=across)
        line = base.mark_line(point={"color": BLUE}, color=BLUE).encode(
            y=alt.Y("ms:Q", title="ms per round", scale=scale, axis=height)
        )
        dashed = {"point": {"color": ORANGE}, "color": ORANGE, "strokeDash": [4, 3]}
        memory_line = base.mark_line(**dashed).encode(
            y=alt.Y("memory:Q", title="peak MiB, dashed", scale=memory, axis=right)
        )
        layers = alt.layer(line, memory_line).resolve_scale(y="independent")
        panels.append(layers.properties(width=190, height=170, title=title))
    save(alt.concat(*panels, columns=3), "growth")


def extent(result: dict, field: str) -> list[float]:
    """Return the range of an axis that all panels share. It is wider than the data."""
    unit = tables.MIB if field == "VmHWM" else 1
    every = [p[field] / unit for c in result["curves"].values() for p in c["points"]]
    return [min(every) / 1.5, max(every) * 1.5]


def profile(result: dict) -> None:
    """Draw the parts of a round as stacked bars."""
    data = [
        {
            "job": f"{tables.HEADS['dro', batch]}: {at['round']:,.0f} µs",
            "part": name,
            "share": max(0.0, us) / at["round"],
            "order": i,
        }
        for batch, at in result["jobs"].items()
        for i, (name, us) in enumerate(at["parts"].items())
    ]
    names = list(dict.fromkeys(row["part"] for row in data))
    colour = alt.Color("part:N", title=None, sort=names).scale(
        domain=names, range=PAINT[: len(names)]
    )
    share = alt.X("share:Q", title="share of a round", axis=alt.Axis(format="%"))
    share = share.scale(nice=False)
    chart = (
        alt.Chart(alt.InlineData(values=data))
        .mark_bar()
        .encode(
            x=share,
            y=alt.Y("job:N", title=None, sort=None),
            color=colour,
            order="order:Q",
        )
        .properties(width=520, height=alt.Step(44))
    )
    save(chart, "profile")


def draw(results: dict) -> None:
    """Draw the pictures of all sections that have results."""
    makers = {"rivals": rivals, "growth": growths, "profile": profile}
    for section, make in makers.items():
        if section in results:
            make(results[section])
