"""Tables of the results of a run, for the terminal and for HTML reports.

The cells are text. `terminal.py` prints the tables, and `run_page.py` puts them into a
report. `sagda.runs.results` reads the numbers.
"""

import math

import numpy as np

from sagda.problems.metrics import metric_of
from sagda.report.blocks import Grid
from sagda.runs.results import Results, bytes_text, spread
from sagda.simulator.history import TAIL

# Metrics with an additional column: its title, and formats of mean and deviation.
EXTRA = {
    "auc_test": ("test AUC", "{:.4f}", "{:.4f}"),
    "frechet": ("Fréchet", "{:.3g}", "{:.1g}"),
}


def results_grid(results: Results) -> Grid:
    """Return a table with one row for each algorithm or point, the best first.

    A row has the final error, the mean error of the last rounds, and total budgets.
    """
    extra = {name: EXTRA[name] for name in EXTRA if name in results.metrics}
    head = [
        first_heading(results),
        f"final {metric_of(results.main).short}",
        f"last {min(TAIL, results.summary['rounds'])} rounds",
        *(title for title, *_ in extra.values()),
        *("samples", "bytes", "s"),
    ]
    rows = []
    for name in results.ranked:
        final = {key: column[:, -1] for key, column in results.columns[name].items()}
        tail = results.history(name).tail(results.main)
        rows.append(
            [
                *(name, spread(final[results.main]), spread(tail)),
                *(spread(final[key], *forms) for key, (_, *forms) in extra.items()),
                f"{final['samples'].mean():,.0f}",
                bytes_text(results.bytes_sent(name)[:, -1].mean()),
                f"{final['seconds'].mean():.2f}",
            ]
        )
    return Grid(head, rows, numeric=True)


def first_heading(results: Results) -> str:
    """Return the title of the first column of a table."""
    return "point" if results.points else "algorithm"


def targets_grid(results: Results) -> Grid:
    """Return a table of the rounds, samples and bytes that reach each target.

    Cells are means over seeds, or dashes if a seed never reached the target.
    """
    head = [first_heading(results), f"until {metric_of(results.main).short} ≤"]
    rows = []
    for epsilon in targets(results):
        for name in results.shown:
            reached = results.history(name).until(epsilon, results.main)
            mean = {key: value.mean() for key, value in reached.items()}
            cells = ["-"] * 3
            if math.isfinite(mean["rounds"]):
                cells = [f"{mean['rounds']:,.0f}", f"{mean['samples']:,.0f}"]
                cells.append(bytes_text(mean["bytes"]))
            rows.append([name, f"{epsilon:.0e}", *cells])
    return Grid([*head, "rounds", "samples", "bytes"], rows, numeric=True)


def targets(results: Results) -> list[float]:
    """Return at most three targets for the main metric, the largest first.

    Targets are powers of ten between the initial error and the smallest error.
    """
    errors = [columns[results.main] for columns in results.columns.values()]
    start = max(error[:, 0].mean() for error in errors)
    best = min(np.nanmin(error.mean(axis=0)) for error in errors)
    if not (math.isfinite(start) and 0 < best < start):
        return []
    highest, lowest = math.log10(start), math.log10(best)
    powers = [10.0**k for k in range(math.ceil(lowest), math.ceil(highest))]
    return powers[-3:][::-1]
