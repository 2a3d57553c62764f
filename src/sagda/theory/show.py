"""Advice on a terminal."""

from rich.console import Console
from rich.table import Table

from sagda.theory.advice import Advice, Standing
from sagda.theory.constants import Estimate
from sagda.theory.table import Counted
from sagda.theory.terms import Steps

NAMES = {
    "smoothness": "L_f",
    "mu": "mu",
    "sigma_x": "sigma_x",
    "sigma_y": "sigma_y",
    "spread_x": "sigma_x,G",
    "spread_y": "sigma_y,G",
    "gap": "L_0 - L_*",
}


def number(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4g}"
    half = (estimate.high - estimate.low) / 2
    return f"{estimate.value:.4g} ± {half:.1g}"


def rates_text(e: Steps) -> str:
    return (
        f"local {e.x_local:.3g} and {e.y_local:.3g}, server {e.x_server:.3g} and "
        f"{e.y_server:.3g} (x and y)"
    )


def show(advice: Advice, console: Console | None = None) -> None:
    out = console or Console(highlight=False)
    s = advice.setting
    out.print(
        f"{advice.method}: M = {s.clients}, m = {s.cohort}, K = {s.local_steps}, "
        f"T = {s.rounds}\n"
    )
    table = Table("constant", "value", "how", "where", box=None, pad_edge=False)
    for key, estimate in advice.estimates._asdict().items():
        table.add_row(NAMES[key], number(estimate), estimate.how, estimate.where)
    out.print(table)
    given = advice.given["proof"]
    out.print(f"\ngiven rates: {rates_text(given.steps)}")
    out.print(conditions(advice.given["printed"], given))
    said = "every condition holds" if given.holds else "not covered by the theorem"
    out.print(f"{said}; the one with the least room: {given.binding.condition.name}")
    best = advice.best
    out.print(f"\nthe theorem's own: {rates_text(best.steps)}")
    out.print(
        f"binding: {best.binding.condition.name}; largest K at these rates: "
        f"{advice.most_local_steps}"
    )
    out.print(bounds(given, best))
    if advice.epsilon is not None:
        rounds = "never" if advice.rounds is None else f"{advice.rounds:,}"
        out.print(
            f"rounds to ||grad Phi|| <= {advice.epsilon:g} by the bound: {rounds}"
        )
    for remark in advice.remarks:
        out.print(f"\n{remark}")


def conditions(printed: Standing, proof: Standing) -> Table:
    head = ("condition", "as printed", "as proved", "says")
    table = Table(*head, box=None, pad_edge=False)
    for a, b in zip(printed.verdicts, proof.verdicts, strict=True):
        words = [
            f"{'holds' if v.slack.holds else 'FAILS'} ({v.slack.room:+.2g})"
            for v in (a, b)
        ]
        table.add_row(a.condition.name, *words, a.condition.says)
    return table


def bounds(given: Standing, best: Standing) -> Table:
    table = Table(
        "bound on the mean of ||grad Phi||^2", "given", "theorem's own", box=None
    )
    for key in given.bound._fields:
        cells = [f"{getattr(at.bound, key):.3g}" for at in (given, best)]
        table.add_row(key, *cells)
    table.add_row("total", f"{given.bound.total:.3g}", f"{best.bound.total:.3g}")
    return table


def show_table(
    rows: list[Counted], m: int, epsilon: float, console: Console | None = None
) -> None:
    out = console or Console(highlight=False)
    out.print(
        f"to ||grad Phi|| <= {epsilon:g} with m = {m}: orders, constants taken as one\n"
    )
    head = ("method", "BGD", "sampling", "samples per client", "rounds", "source")
    table = Table(*head, box=None, pad_edge=False)
    count = lambda order, value: order if value is None else f"{order}: {value:.2g}"
    for own in rows:
        row = own.row
        table.add_row(
            row.method,
            row.bounded_dissimilarity,
            row.client_sampling,
            count(row.samples, own.samples),
            count(row.rounds, own.rounds),
            row.source,
        )
    out.print(table)
    out.print("\nBGD: bounded gradient dissimilarity is assumed.")
