"""Deep AUC on imbalanced MNIST: SAGDA, FSGDA, and FedAvg on cross-entropy.

    python scripts/deep_auc.py --docs docs/deep-auc.md

Makes the runs that are missing in docs/evidence/deep_auc.json (`deep_auc_runs.py`).
With `--docs PAGE` it also writes the tables and pictures of that page.
"""

import argparse
import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from deep_auc_runs import (
    COHORTS,
    EVERY,
    METHODS,
    ROUNDS,
    SEEDS,
    final,
    places,
    rate,
    run_all,
)

from sagda import durable
from sagda.paper.evidence import interval
from sagda.report.charts import drawing, line_style, write_picture

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "docs" / "evidence" / "deep_auc.json"
NAMES = {
    "sagda-i": "SAGDA, option I",
    "fsgda": "FSGDA",
    "fedavg": "FedAvg, cross-entropy",
    "fedavg-server": "FedAvg, server rate tuned",
}
SHOWN = (50, 100, 300)
# (SAGDA's round, the other's round): equal rounds, and equal bytes, because SAGDA sends
# twice as many bytes per round.
PAIRS = [(t, t) for t in SHOWN] + [(ROUNDS // 2, ROUNDS)]
GENERATED = re.compile(r"(<!-- generated -->\n).*(<!-- end -->\n)", re.DOTALL)


def aucs(evidence: Any, method: str, cohort: int) -> np.ndarray:
    """Return the test AUC, [seeds, evaluations]. It is NaN after a run diverged."""
    runs = evidence["runs"][f"{method}/{cohort}"]
    return np.array([runs[str(seed)]["auc"] for seed in SEEDS], float)


def at(values: np.ndarray, t: int) -> np.ndarray:
    """Return the column of `values`, [seeds, evaluations], for round t."""
    return values[:, t // EVERY]


def finished(evidence: Any) -> list[int]:
    """Return the sizes of the cohorts for which every run is finished."""
    runs = lambda method, m: evidence["runs"].get(f"{method}/{m}", {})
    every = lambda m: all(str(s) in runs(n, m) for n in METHODS for s in SEEDS)
    return [m for m in COHORTS if every(m)]


def verdict(difference: np.ndarray) -> str:
    """Return "ahead" or "behind" if the 95 % interval excludes 0, else "level"."""
    _, low, high = interval(difference)
    return "ahead" if low > 0 else "behind" if high < 0 else "level"


def grid(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def part(cohort: int) -> str:
    """Return the size of the cohort in words."""
    return "All 50 clients" if cohort == 50 else f"{cohort} of 50 clients"


def results(evidence: Any, cohort: int) -> str:
    """Return the table of test AUC by method and round."""
    rows = []
    for method, name in NAMES.items():
        values = aucs(evidence, method, cohort)
        text = "{:.4f} [{:.4f}, {:.4f}]".format
        rows.append([name, *(text(*interval(at(values, t))) for t in SHOWN)])
    return grid(["test AUC", *(f"round {t}" for t in SHOWN)], rows)


def differences(evidence: Any, cohort: int) -> str:
    """Return the table of SAGDA's AUC minus that of each other method, times 1000."""
    ours, rows = aucs(evidence, "sagda-i", cohort), []
    for method in list(NAMES)[1:]:
        theirs = aucs(evidence, method, cohort)
        for t, other in PAIRS:
            gap = 1000 * (at(ours, t) - at(theirs, other))
            when = f"round {t}" if t == other else f"round {t}, the other at {other}"
            shown = "{:+.2f} [{:+.2f}, {:+.2f}]".format(*interval(gap))
            ahead = f"{(gap > 0).sum()} of {len(gap)}"
            rows.append([NAMES[method], when, shown, ahead, verdict(gap)])
    head = ["SAGDA less", "at", "AUC × 1000, paired", "seeds ahead", "SAGDA is"]
    return grid(head, rows)


def tuning(evidence: Any, cohort: int) -> str:
    """Return the table of tuned rates, with the AUC of their neighbours in the grid."""
    rows = []
    for method, axes in METHODS.items():
        key = f"{method}/{cohort}"
        tried, runs = places(evidence["tuning"][key]), evidence["runs"][key]
        for i, axis in enumerate(axes):
            ladder = sorted({place[i] for place in tried})
            below, chosen, above = (f"{v:.5f}" for v in runs["validation"][axis])
            span = f"{rate(ladder[0]):g} to {rate(ladder[-1]):g}"
            first = [NAMES[method], str(len(tried))] if i == 0 else ["", ""]
            best = f"{runs['rates'][axis]:g}"
            rows.append([*first, axis, span, best, below, chosen, above])
    head = ["method", "points", "rate", "tried", "chosen"]
    return grid([*head, "AUC one rung below", "chosen", "one above"], rows)


def by_server_rate(evidence: Any, cohort: int) -> str:
    """Return the table of the best validation AUC at each server rate."""
    best: dict[str, dict[int, float]] = {}
    for method, axes in METHODS.items():
        if "server" in axes:
            row = best.setdefault(method, {})
            tried = places(evidence["tuning"][f"{method}/{cohort}"])
            for place, value in tried.items():
                row[place[-1]] = max(value, row.get(place[-1], 0.0))
    rungs = sorted(set().union(*best.values()))
    cell = lambda row, i: f"{row[i]:.4f}" if i in row else "-"
    rows = [[NAMES[m], *(cell(row, i) for i in rungs)] for m, row in best.items()]
    return grid(["server rate", *(f"{rate(i):g}" for i in rungs)], rows)


def swap(evidence: Any, method: str, cohort: int) -> float:
    """Return the mean validation AUC of a method with the rates of the other method."""
    return float(np.mean([final(r) for r in evidence["crossed"][f"{method}/{cohort}"]]))


def minutes(evidence: Any) -> tuple[float, float]:
    """Return the minutes of tuning, and the minutes of the reported runs."""
    points = [runs for grid in evidence["tuning"].values() for runs in grid.values()]
    reported = [runs[str(s)] for runs in evidence["runs"].values() for s in SEEDS]
    total = lambda runs: sum(run["seconds"] for run in runs) / 60
    return total(chain.from_iterable(points)), total(reported)


def sections(evidence: Any) -> Iterator[str]:
    """Yield the pieces of the generated part of the page, in order."""
    for cohort in finished(evidence):
        name = f"deep-auc-{cohort}"
        yield f"## {part(cohort)} in every round\n"
        yield f"![1 − test AUC by round, {part(cohort).lower()}](images/{name}.png)\n"
        yield "*1 − test AUC: geometric mean of 5 seeds with its 95 % band.*\n"
        yield results(evidence, cohort)
        yield differences(evidence, cohort)
        yield "Tuning, by validation AUC at the last round:\n"
        yield tuning(evidence, cohort)
        yield "The best validation AUC at each server rate tried:\n"
        yield by_server_rate(evidence, cohort)
        swapped = [swap(evidence, method, cohort) for method in ("sagda-i", "fsgda")]
        yield "With each other's rates: SAGDA {:.4f}, FSGDA {:.4f}.\n".format(*swapped)
    yield "## Time\n"
    yield (
        "Tuning took {:.0f} minutes and the reported runs {:.1f}, compilation "
        "included, on one core that other programs shared.\n".format(*minutes(evidence))
    )


def generated(evidence: Any) -> str:
    """Return the generated part of the page."""
    return "\n".join(sections(evidence))


def chart(evidence: Any, cohort: int) -> dict[str, Any]:
    """Return a chart of 1 - AUC over rounds, on a logarithmic axis."""
    alt, _ = drawing()
    rows = []
    for method, name in NAMES.items():
        logs = np.log10(1 - aucs(evidence, method, cohort))
        for j in range(1, logs.shape[1]):
            mean, low, high = (10.0**v for v in interval(logs[:, j]))
            row = {"method": name, "round": j * EVERY, "mean": mean}
            rows.append(row | {"low": low, "high": high})
    style = line_style("method", list(NAMES.values()), columns=2)
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X("round:Q", title="rounds", axis=alt.Axis(grid=False))
    )
    scale = alt.Scale(type="log", domain=[0.001, 0.1], clamp=True)
    axis = alt.Axis(format="~g", values=[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1])
    lines = base.mark_line(strokeWidth=2).encode(
        y=alt.Y("mean:Q", title="1 − test AUC", scale=scale, axis=axis),
        **style,
    )
    bands = base.mark_area(opacity=0.18).encode(
        y=alt.Y("low:Q", scale=scale), y2="high:Q", color=style["color"]
    )
    together = (bands + lines).properties(width=640, height=320)
    return together.configure_axis(labelFontSize=13, titleFontSize=14).to_dict()


def write_docs(evidence: Any, page: Path) -> None:
    """Replace the generated part of the page, and draw its pictures."""
    text = page.read_text(encoding="utf-8")
    if not GENERATED.search(text):
        raise ValueError(
            f"{page} must have the lines <!-- generated --> and <!-- end -->, but one "
            "is missing; add both where the tables belong."
        )
    fill = lambda marks: f"{marks[1]}\n{generated(evidence)}\n{marks[2]}"
    durable.write(page, GENERATED.sub(fill, text))
    for cohort in finished(evidence):
        picture = page.parent / "images" / f"deep-auc-{cohort}.png"
        write_picture(chart(evidence, cohort), picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evidence", type=Path, default=EVIDENCE)
    parser.add_argument("--docs", type=Path, help="the page to write tables into")
    options = parser.parse_args()
    run_all(options.evidence)
    if options.docs:
        evidence = json.loads(options.evidence.read_text(encoding="utf-8"))
        write_docs(evidence, options.docs)


if __name__ == "__main__":
    main()
