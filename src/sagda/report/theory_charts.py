"""The least bound over rounds and over local steps, as a table and a chart."""

from pathlib import Path
from typing import Any, NamedTuple

from sagda.report.run_page import drawing, style, write_picture
from sagda.theory.bounds import Bound
from sagda.theory.rates import BoundPoint, curve
from sagda.theory.setting import Constants, Setting

POWERS = range(-3, 7)  # of the factors by which T is swept around the given one
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)  # K


class Curves(NamedTuple):
    rounds: list[BoundPoint]
    local_steps: list[BoundPoint]


def curves(
    method: str, c: Constants, s: Setting, *, server: float | None = None
) -> Curves:
    """Over T from a thousandth to a million times the given one, and over K."""
    rounds = sorted({max(1, round(s.rounds * 10.0**power)) for power in POWERS})
    steps = sorted({*STEPS, s.local_steps})
    return Curves(
        curve(method, c, s, "rounds", rounds, server=server),
        curve(method, c, s, "local_steps", steps, server=server),
    )


def rows(places: list[BoundPoint], over: str) -> list[dict[str, Any]]:
    """One for each place and term; a logarithmic axis has no zero."""
    return [
        {"x": getattr(place.setting, over), "term": term, "y": value}
        for place in places
        for term, value in terms(place.bound).items()
        if value > 0
    ]


def terms(bound: Bound) -> dict[str, float]:
    return {"total": bound.total} | bound._asdict()


def chart(found: Curves) -> dict[str, Any]:
    alt, _ = drawing()
    names = ["total", *Bound._fields]
    dashes, paint = zip(*map(style, range(len(names))), strict=True)
    key = alt.Legend(title=None, orient="top", symbolType="stroke", symbolSize=500)
    colour = alt.Color("term:N", legend=key).scale(domain=names, range=list(paint))
    dash = alt.StrokeDash("term:N", legend=key).scale(domain=names, range=list(dashes))
    log = alt.Scale(type="log", nice=False)

    def one(over: str, title: str) -> Any:
        data = alt.InlineData(values=rows(getattr(found, over), over))
        across = alt.X("x:Q", title=title, scale=log)
        up = alt.Y("y:Q", title="least bound on the mean of ‖∇Φ‖²", scale=log)
        return (
            alt.Chart(data)
            .mark_line(strokeWidth=1.8)
            .encode(
                x=across.axis(format="~s", tickCount=6, grid=False),
                y=up.axis(format=".0e", tickCount=6),
                color=colour,
                strokeDash=dash,
            )
            .properties(width=340, height=260)
        )

    both = alt.hconcat(one("rounds", "rounds T"), one("local_steps", "local steps K"))
    both = both.resolve_scale(color="shared", strokeDash="shared")
    return both.configure_axis(labelFontSize=12, titleFontSize=13).to_dict()


def draw(found: Curves, path: Path) -> None:
    """As .png, .pdf, .svg or .html."""
    write_picture(chart(found), path, width=None)
