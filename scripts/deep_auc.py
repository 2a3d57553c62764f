"""Deep AUC on imbalanced MNIST: SAGDA, FSGDA, and FedAvg on cross-entropy.

Runs what docs/evidence/deep_auc.json does not have yet. With `--docs PAGE` it writes
that page's tables and its pictures from the evidence.
"""

import argparse
import json
import re
from collections.abc import Iterator
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
from sagda.report.charts import drawing, style, write_picture

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "docs" / "evidence" / "deep_auc.json"
NAMES = {
    "sagda-i": "SAGDA, option I",
    "fsgda": "FSGDA",
    "fedavg": "FedAvg, cross-entropy",
    "fedavg-server": "FedAvg, server rate tuned",
}
SHOWN = (50, 100, 300)
# SAGDA sends twice what the others send in a round.
PAIRS = [(t, t) for t in SHOWN] + [(ROUNDS // 2, ROUNDS)]
GENERATED = re.compile(r"(<!-- generated -->\n).*(<!-- end -->\n)", re.DOTALL)


def aucs(found: Any, method: str, cohort: int) -> np.ndarray:
    """[seeds, evaluations] of test AUC; not a number where a run had diverged."""
    own = found["runs"][f"{method}/{cohort}"]
    return np.array([own[str(seed)]["auc"] for seed in SEEDS], float)


def at(values: np.ndarray, t: int) -> np.ndarray:
    return values[:, t // EVERY]


def finished(found: Any) -> list[int]:
    """The cohorts for which every run is there."""
    runs = lambda method, m: found["runs"].get(f"{method}/{m}", {})
    every = lambda m: all(str(s) in runs(n, m) for n in METHODS for s in SEEDS)
    return [m for m in COHORTS if every(m)]


def verdict(difference: np.ndarray) -> str:
    """Ahead or behind if the 95 % interval leaves out 0, and else level."""
    _, low, high = interval(difference)
    return "ahead" if low > 0 else "behind" if high < 0 else "level"


def grid(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def part(cohort: int) -> str:
    return "All 50 clients" if cohort == 50 else f"{cohort} of 50 clients"


def results(found: Any, cohort: int) -> str:
    rows = []
    for method, name in NAMES.items():
        values = aucs(found, method, cohort)
        told = "{:.4f} [{:.4f}, {:.4f}]".format
        shown = [told(*interval(at(values, t))) for t in SHOWN]
        rows.append([name, *shown])
    return grid(["test AUC", *(f"round {t}" for t in SHOWN)], rows)


def differences(found: Any, cohort: int) -> str:
    """SAGDA less another, in thousandths of AUC."""
    ours, rows = aucs(found, "sagda-i", cohort), []
    for method in list(NAMES)[1:]:
        theirs = aucs(found, method, cohort)
        for t, other in PAIRS:
            gap = 1000 * (at(ours, t) - at(theirs, other))
            when = f"round {t}" if t == other else f"round {t}, the other at {other}"
            shown = "{:+.2f} [{:+.2f}, {:+.2f}]".format(*interval(gap))
            ahead = f"{(gap > 0).sum()} of {len(gap)}"
            rows.append([NAMES[method], when, shown, ahead, verdict(gap)])
    head = ["SAGDA less", "at", "AUC × 1000, paired", "seeds ahead", "SAGDA is"]
    return grid(head, rows)


def tuning(found: Any, cohort: int) -> str:
    rows = []
    for method, axes in METHODS.items():
        key = f"{method}/{cohort}"
        tried, own = places(found["tuning"][key]), found["runs"][key]
        for i, axis in enumerate(axes):
            ladder = sorted({place[i] for place in tried})
            below, chosen, above = (f"{v:.5f}" for v in own["validation"][axis])
            span = f"{rate(ladder[0]):g} to {rate(ladder[-1]):g}"
            first = [NAMES[method], str(len(tried))] if i == 0 else ["", ""]
            best = f"{own['rates'][axis]:g}"
            rows.append([*first, axis, span, best, below, chosen, above])
    head = ["method", "points", "rate", "tried", "chosen"]
    return grid([*head, "AUC one rung below", "chosen", "one above"], rows)


def by_server_rate(found: Any, cohort: int) -> str:
    """The best validation AUC at each server rate, whatever the other rates."""
    best: dict[str, dict[int, float]] = {}
    for method, axes in METHODS.items():
        if "server" in axes:
            own = best.setdefault(method, {})
            for place, value in places(found["tuning"][f"{method}/{cohort}"]).items():
                own[place[-1]] = max(value, own.get(place[-1], 0.0))
    rungs = sorted(set().union(*best.values()))
    cell = lambda own, i: f"{own[i]:.4f}" if i in own else "-"
    rows = [[NAMES[m], *(cell(own, i) for i in rungs)] for m, own in best.items()]
    return grid(["server rate", *(f"{rate(i):g}" for i in rungs)], rows)


def swap(found: Any, method: str, cohort: int) -> float:
    """A method's mean validation AUC with the rates that the other one chose."""
    return float(np.mean([final(r) for r in found["crossed"][f"{method}/{cohort}"]]))


def minutes(found: Any) -> tuple[float, float]:
    """Of tuning, and of the runs that are reported."""
    tuned = [r for kept in found["tuning"].values() for p in kept.values() for r in p]
    runs = [own[str(seed)] for own in found["runs"].values() for seed in SEEDS]
    total = lambda some: sum(run["seconds"] for run in some) / 60
    return total(tuned), total(runs)


def sections(found: Any) -> Iterator[str]:
    for cohort in finished(found):
        name = f"deep-auc-{cohort}"
        yield f"## {part(cohort)} in every round\n"
        yield f"![1 − test AUC by round, {part(cohort).lower()}](images/{name}.png)\n"
        yield "*1 − test AUC: geometric mean of 5 seeds with its 95 % band.*\n"
        yield results(found, cohort)
        yield differences(found, cohort)
        yield "Tuning, by validation AUC at the last round:\n"
        yield tuning(found, cohort)
        yield "The best validation AUC at each server rate tried:\n"
        yield by_server_rate(found, cohort)
        swapped = [swap(found, method, cohort) for method in ("sagda-i", "fsgda")]
        yield "With each other's rates: SAGDA {:.4f}, FSGDA {:.4f}.\n".format(*swapped)
    yield "## Time\n"
    yield (
        "Tuning took {:.0f} minutes and the reported runs {:.1f}, compilation "
        "included, on one core that other programs shared.\n".format(*minutes(found))
    )


def generated(found: Any) -> str:
    return "\n".join(sections(found))


def chart(found: Any, cohort: int) -> dict[str, Any]:
    """1 - AUC over rounds, on a logarithmic axis."""
    alt, _ = drawing()
    rows = []
    for method, name in NAMES.items():
        logs = np.log10(1 - aucs(found, method, cohort))
        for j in range(1, logs.shape[1]):
            mean, low, high = (10.0**v for v in interval(logs[:, j]))
            row = {"method": name, "round": j * EVERY, "mean": mean}
            rows.append(row | {"low": low, "high": high})
    line, paint = zip(*map(style, range(len(NAMES))), strict=True)
    key = alt.Legend(
        title=None,
        orient="top",
        columns=2,
        symbolType="stroke",
        symbolSize=500,
        symbolStrokeWidth=2.5,
        symbolOpacity=1,
        labelLimit=300,
        labelFontSize=13,
    )
    names = list(NAMES.values())
    colour = alt.Color("method:N", legend=key).scale(domain=names, range=list(paint))
    dash = alt.StrokeDash("method:N", legend=key).scale(domain=names, range=list(line))
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X("round:Q", title="rounds", axis=alt.Axis(grid=False))
    )
    scale = alt.Scale(type="log", domain=[0.001, 0.1], clamp=True)
    axis = alt.Axis(format="~g", values=[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1])
    lines = base.mark_line(strokeWidth=2).encode(
        y=alt.Y("mean:Q", title="1 − test AUC", scale=scale, axis=axis),
        color=colour,
        strokeDash=dash,
    )
    bands = base.mark_area(opacity=0.18).encode(
        y=alt.Y("low:Q", scale=scale), y2="high:Q", color=colour
    )
    together = (bands + lines).properties(height=320)
    return together.configure_axis(labelFontSize=13, titleFontSize=14).to_dict()


def write_docs(found: Any, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if not GENERATED.search(text):
        raise ValueError(f"{page} has no place for tables, marked as generated.")
    fill = lambda marks: f"{marks[1]}\n{generated(found)}\n{marks[2]}"
    durable.write(page, GENERATED.sub(fill, text))
    for cohort in finished(found):
        picture = page.parent / "images" / f"deep-auc-{cohort}.png"
        write_picture(chart(found, cohort), picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evidence", type=Path, default=EVIDENCE)
    parser.add_argument("--docs", type=Path, help="the page to write tables into")
    given = parser.parse_args()
    run_all(given.evidence)
    if given.docs:
        found = json.loads(given.evidence.read_text(encoding="utf-8"))
        write_docs(found, given.docs)


if __name__ == "__main__":
    main()
