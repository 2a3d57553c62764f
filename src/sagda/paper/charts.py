"""Charts of a reproduced figure: mean and 95 % band of each method over each budget.

A budget is the rounds, samples or bytes that a run has used. `evidence` computes the
bands. Charts of users' runs are in `sagda.report.charts`.
"""

from typing import Any

import numpy as np

from sagda.paper.evidence import Curve, band
from sagda.problems.metrics import AXES, metric_of
from sagda.report.charts import drawing, in_a_row, line_style

BUDGETS = ("round", "samples", "megabytes")
WIDTH, HEIGHT = 250, 220


def rows_of(curves: dict[str, Curve], metric: str, window: int) -> list[dict[str, Any]]:
    """Return the data of a chart: one row per curve and evaluation.

    Errors that are not positive are left out, because the axis is logarithmic. Errors
    above 100 times the largest initial error are also left out, because they would
    compress all other curves.
    """
    digits = lambda value: float(f"{value:.4g}")
    starts = [np.nanmax(curve.values[metric][:, 0]) for curve in curves.values()]
    rows = []
    for name, curve in curves.items():
        mean, low, high = band(curve, metric, window)
        for j in range(len(curve.round)):
            if 0 < mean[j] <= 100 * max(starts):
                rows.append(
                    {
                        "method": name,
                        "round": int(curve.round[j]),
                        "samples": int(curve.samples[j]),
                        "megabytes": digits(curve.bytes[j] / 1e6),
                        "mean": digits(mean[j]),
                        "low": digits(low[j]),
                        "high": digits(high[j]),
                    }
                )
    return rows


def chart(
    curves: dict[str, Curve], metric: str, axis: str, window: int, legend: bool
) -> Any:
    """Return a chart of one metric over one axis, with a curve and band per method."""
    alt, _ = drawing()
    names = list(curves)
    style = line_style("method", names, columns=3, legend=legend)
    rows = rows_of(curves, metric, window)
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X(f"{axis}:Q", title=AXES[axis], axis=alt.Axis(grid=False, tickCount=4))
    )
    scale = alt.Scale(type="log")
    height = alt.Y("mean:Q", title=metric_of(metric).label, scale=scale)
    lines = base.mark_line(strokeWidth=1.8).encode(
        y=height.axis(format=".0e", tickCount=6), **style
    )
    bands = base.mark_area(opacity=0.2).encode(
        y=alt.Y("low:Q", scale=scale), y2="high:Q", color=style["color"]
    )
    return (bands + lines).properties(width=WIDTH, height=HEIGHT)


def panel(curves: dict[str, Curve], window: int = 1) -> dict[str, Any]:
    """Return a row of charts: the main metric over three budgets.

    For a GAN the charts show three metrics over rounds.
    """
    first = next(iter(curves.values()))
    if first.main == "grad_phi_sq":
        kinds = [(first.main, axis) for axis in BUDGETS]
    else:
        kinds = [(m, "round") for m in ("grad_x_sq", "grad_y_sq", "frechet")]
    drawn = [
        chart(curves, metric, axis, window, legend=i == 0)
        for i, (metric, axis) in enumerate(kinds)
    ]
    return in_a_row(drawn, spacing=18, font=13)
