"""Advice on a terminal."""

from rich.console import Console
from rich.table import Table

from sagda.report.theory_charts import Curves
from sagda.theory.advice import Advice, Standing, samples_to
from sagda.theory.bounds import Bound
from sagda.theory.constants import SYMBOLS, Estimate
from sagda.theory.practice import Practice
from sagda.theory.setting import Setting, Steps
from sagda.theory.table1 import Counted


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
        table.add_row(SYMBOLS[key], number(estimate), estimate.how, estimate.where)
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
    if advice.reached is not None:
        out.print(
            f"\nto ||grad Phi|| <= {advice.epsilon:g} by the bound: {advice.rounds:,} "
            f"rounds, {samples_to(advice):,} samples of each client, at rates "
            f"{rates_text(advice.reached.steps)}"
        )
    if advice.practice is not None:
        out.print(practical(advice.practice))
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


def practical(found: Practice) -> str:
    """What works, as a sentence, and as flags."""
    size = lambda own: "diverged" if own.error == float("inf") else f"{own.error:.2g}"
    e = found.best.steps
    edge = "; the best is at the edge, so look further" if found.edge else ""
    return (
        f"\nwhat works, the best of {found.tried} rates tried{edge}:\n"
        f"--local-lr {e.x_local:g},{e.y_local:g} "
        f"--server-lr {e.x_server:g},{e.y_server:g}\n"
        f"||grad Phi||^2 after {found.rounds} rounds: {size(found.best)}; with the "
        f"given rates {size(found.given)}, with the theorem's own "
        f"{size(found.provable)}, at the start {found.begin:.2g}"
    )


def bounds(given: Standing, best: Standing) -> Table:
    table = Table(
        "bound on the mean of ||grad Phi||^2", "given", "theorem's own", box=None
    )
    for key in given.bound._fields:
        cells = [f"{getattr(at.bound, key):.3g}" for at in (given, best)]
        table.add_row(key, *cells)
    table.add_row("total", f"{given.bound.total:.3g}", f"{best.bound.total:.3g}")
    return table


def show_curves(
    method: str, found: Curves, s: Setting, console: Console | None = None
) -> None:
    out = console or Console(highlight=False)
    out.print(f"{method}: M = {s.clients}, m = {s.cohort}; the least bound on the mean")
    out.print("of ||grad Phi||^2 that its theorem allows, at the rates that have it")
    letters = {"rounds": "T", "local_steps": "K"}
    for over, letter in letters.items():
        fixed = f"K = {s.local_steps}" if letter == "T" else f"T = {s.rounds}"
        head = (letter, "total", *Bound._fields, "eta_x", "eta_y")
        table = Table(*head, box=None, pad_edge=False, title=f"\n{fixed}")
        for place in getattr(found, over):
            values = [place.bound.total, *place.bound, place.steps.x, place.steps.y]
            cells = [f"{value:.3g}" for value in values]
            table.add_row(f"{getattr(place.setting, over):g}", *cells)
        out.print(table)


def show_table(
    rows: list[Counted],
    m: int,
    epsilon: float,
    K: int,
    console: Console | None = None,
) -> None:
    out = console or Console(highlight=False)
    out.print(
        f"to ||grad Phi|| <= {epsilon:g} with m = {m}: orders, constants taken as one\n"
    )
    at = f"rounds, K = {K}"
    head = ("method", "BGD", "sampling", "samples per client", "rounds", at)
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
            "-" if own.rounds_at is None else f"{own.rounds_at:.2g}",
        )
    out.print(table)
    out.print(
        "\nBGD: bounded gradient dissimilarity is assumed. Rounds: with the K that "
        "takes all samples in them; with fewer local steps, samples over K.\n"
    )
    for own in rows:
        out.print(f"{own.row.method}: {own.row.source}.")
