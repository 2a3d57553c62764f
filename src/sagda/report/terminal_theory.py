"""Advice, bounds and Table 1 of the paper as tables on a terminal.

This module computes nothing: `sagda.theory` does. `theory_page` puts advice into an
HTML report.
"""

from rich.console import Console
from rich.table import Table

from sagda.report.theory_charts import Curves
from sagda.theory.advice import Advice, Assessment
from sagda.theory.bounds import Bound
from sagda.theory.constants import SYMBOLS, Estimate
from sagda.theory.practice import Practice
from sagda.theory.setting import Setting, Steps
from sagda.theory.table1 import Counted


def number(estimate: Estimate) -> str:
    """Format an estimate, with ± half the width of its interval if it has one."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4g}"
    half = (estimate.high - estimate.low) / 2
    return f"{estimate.value:.4g} ± {half:.1g}"


def rates_text(e: Steps) -> str:
    """Return the four step sizes as text."""
    return (
        f"local {e.x_local:.3g} and {e.y_local:.3g}, server {e.x_server:.3g} and "
        f"{e.y_server:.3g} (x and y)"
    )


def show(advice: Advice) -> None:
    """Print all of the advice."""
    out = Console(highlight=False)
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
    covered = "every condition holds" if given.holds else "not covered by the theorem"
    out.print(f"{covered}; smallest margin: {given.binding.condition.name}")
    best = advice.best
    out.print(f"\nbest rates by the theorem: {rates_text(best.steps)}")
    out.print(
        f"smallest margin: {best.binding.condition.name}; largest K at these rates: "
        f"{advice.most_local_steps}"
    )
    out.print(bounds(given, best))
    if (target := advice.target) is not None:
        out.print(
            f"\nto ||grad Phi|| <= {target.epsilon:g} by the bound: {target.rounds:,} "
            f"rounds, {target.samples:,} samples of each client, at rates "
            f"{rates_text(target.steps)}"
        )
    if advice.practice is not None:
        out.print(practical(advice.practice))
    for remark in advice.remarks:
        out.print(f"\n{remark}")


def conditions(printed: Assessment, proof: Assessment) -> Table:
    """Return a table of every condition, with its margin in both readings."""
    formula = "formula (r = eta_y/eta_x)"
    head = ("condition", "as printed (margin)", "as proved (margin)", formula)
    table = Table(*head, box=None, pad_edge=False)
    for pair in zip(printed.checks, proof.checks, strict=True):
        words = [
            f"{'holds' if check.slack.holds else 'FAILS'} ({check.slack.margin:+.2g})"
            for check in pair
        ]
        condition = pair[0].condition
        table.add_row(condition.name, *words, condition.formula)
    return table


def practical(result: Practice) -> str:
    """Return the best rates of the short runs as flags, and their errors, as text."""
    size = lambda run: "diverged" if run.error == float("inf") else f"{run.error:.2g}"
    e = result.best.steps
    edge = " (on the edge of the grid, so better rates may exist)"
    return (
        f"\nwhat works, the best of {result.tried} rates tried"
        f"{edge if result.edge else ''}:\n"
        f"--local-lr {e.x_local:g},{e.y_local:g} "
        f"--server-lr {e.x_server:g},{e.y_server:g}\n"
        f"||grad Phi||^2 after {result.rounds} rounds: {size(result.best)}; with the "
        f"given rates {size(result.given)}, with the theorem's best "
        f"{size(result.provable)}, at the start {result.begin:.2g}"
    )


def bounds(given: Assessment, best: Assessment) -> Table:
    """Return a table of the terms of the bound, at the given and at the best rates."""
    table = Table(
        "bound on the mean of ||grad Phi||^2", "given", "theorem's best", box=None
    )
    for key, value in given.bound.terms.items():
        table.add_row(key, f"{value:.3g}", f"{best.bound.terms[key]:.3g}")
    return table


def show_curves(method: str, curves: Curves, s: Setting) -> None:
    """Print the minimal bound for several T and K, with the rates that minimise it."""
    out = Console(highlight=False)
    out.print(
        f"{method}: M = {s.clients}, m = {s.cohort}; minimal bound on the mean of"
    )
    out.print("||grad Phi||^2 over all rates that its theorem allows, and these rates")
    letters = {"rounds": "T", "local_steps": "K"}
    for over, letter in letters.items():
        fixed = f"K = {s.local_steps}" if letter == "T" else f"T = {s.rounds}"
        head = (letter, "total", *Bound._fields, "eta_x", "eta_y")
        table = Table(*head, box=None, pad_edge=False, title=f"\n{fixed}")
        for point in getattr(curves, over):
            values = [point.bound.total, *point.bound, point.steps.x, point.steps.y]
            cells = [f"{value:.3g}" for value in values]
            table.add_row(f"{getattr(point.setting, over):g}", *cells)
        out.print(table)


def show_table(rows: list[Counted], m: int, epsilon: float, K: int) -> None:
    """Print Table 1 of the paper, as orders of growth and as numbers."""
    out = Console(highlight=False)
    out.print(
        f"to ||grad Phi|| <= {epsilon:g} with m = {m}: orders, constants taken as one\n"
    )
    at = f"rounds, K = {K}"
    head = ("method", "BGD", "sampling", "samples per client", "rounds", at)
    table = Table(*head, box=None, pad_edge=False)
    count = lambda order, value: (
        "-" if order is None else f"{order.formula}: {value:.2g}"
    )
    for counted in rows:
        row = counted.row
        table.add_row(
            row.method,
            row.bounded_dissimilarity,
            row.client_sampling,
            count(row.samples, counted.samples),
            count(row.rounds, counted.rounds),
            "-" if counted.rounds_at is None else f"{counted.rounds_at:.2g}",
        )
    out.print(table)
    out.print(
        "\nBGD: whether the analysis assumes bounded gradient dissimilarity. Rounds: "
        "with K large enough to use all samples; with smaller K, samples / K.\n"
    )
    for row in (counted.row for counted in rows):
        out.print(f"{row.method}: {row.source}.")
