"""The minimal bound of a theorem over rounds and over local steps, and its chart.

`sagda.theory.rates` computes the bounds. `terminal_theory` prints the same curves as
tables. Charts of runs are in `charts`.
"""

from typing import Any, NamedTuple

from sagda.report.charts import drawing, in_a_row, line_style
from sagda.theory.bounds import Bound
from sagda.theory.rates import BoundPoint, curve
from sagda.theory.setting import Constants, Setting

POWERS = range(-3, 7)  # the given T is multiplied by 10 to these powers
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)  # values of K, besides the given one


class Curves(NamedTuple):
    """The minimal bound for several T, and for several K."""

    rounds: list[BoundPoint]
    local_steps: list[BoundPoint]


def curves(
    method: str, c: Constants, s: Setting, *, max_server_lr: float | None = None
) -> Curves:
    """Compute the minimal bound for T from 1/1000 to 10^6 times `s.rounds`, and for K.

    K takes the values `STEPS` and `s.local_steps`.
    """
    rounds = sorted({max(1, round(s.rounds * 10.0**power)) for power in POWERS})
    steps = sorted({*STEPS, s.local_steps})
    return Curves(
        curve(method, c, s, "rounds", rounds, max_server_lr=max_server_lr),
        curve(method, c, s, "local_steps", steps, max_server_lr=max_server_lr),
    )


def chart(curves: Curves) -> dict[str, Any]:
    """Return a row of two charts: the bound and its terms over T, and over K."""
    alt, _ = drawing()
    names = ["total", *Bound._fields]
    lines = line_style("term", names)
    log = alt.Scale(type="log", nice=False)

    def one(over: str, title: str) -> Any:
        rows = [
            {"x": getattr(point.setting, over), "term": term, "y": value}
            for point in getattr(curves, over)
            for term, value in point.bound.terms.items()
            if value > 0  # the axis is logarithmic
        ]
        across = alt.X("x:Q", title=title, scale=log)
        up = alt.Y("y:Q", title="minimal bound on the mean of ‖∇Φ‖²", scale=log)
        across = across.axis(format="~s", tickCount=6, grid=False)
        up = up.axis(format=".0e", tickCount=6)
        drawn = alt.Chart(alt.InlineData(values=rows)).mark_line(strokeWidth=1.8)
        return drawn.encode(x=across, y=up, **lines).properties(width=340, height=260)

    return in_a_row([one("rounds", "rounds T"), one("local_steps", "local steps K")])
