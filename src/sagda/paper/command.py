"""`sagda reproduce`: figures one after the other, with the time left, to one page."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sagda.check import BadValue
from sagda.data.datasets import load
from sagda.paper import slopes, speedup
from sagda.paper.claims import Found, verdicts
from sagda.paper.page import blocks
from sagda.paper.run import Job, Reproduction
from sagda.report.blocks import write_html, write_markdown
from sagda.report.terminal import Interrupt
from sagda.runs.folder import Stopped, Watch
from sagda.simulator import run as runs

INTRO = """# The paper's evaluation, reproduced

Every figure of the SAGDA paper, run again with several seeds and error bars, and every
claim of its section 4 and appendix A with a verdict from those data. This page is
written by

```
sagda reproduce all --docs docs/reproduction.md
```

from the results in `docs/evidence`; `sagda reproduce fig1c` runs one figure. *Paper*
has the printed rates for all methods, *tuned* the best rates of each on one grid.
"""


class ReproductionDisplay:
    """One bar for everything; work is measured in seconds that were foreseen."""

    def __init__(self, total: float, quiet: bool, stop: Interrupt):
        self.console = Console(stderr=True, soft_wrap=True)
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            disable=quiet or not sys.stderr.isatty(),
        )
        self.task_id = self.bars.add_task("starting", total=total)
        self.done, self.stop = 0.0, stop
        self.lines = not quiet and not sys.stderr.isatty()

    def watch(self, job: Job) -> Watch:
        begun, before = 0.0, self.done
        config = job.config
        batches = 1 if config.grid else len(config.algorithms)
        each = job.work / batches

        def started(name: str, first: int) -> None:
            nonlocal begun
            self.bars.update(self.task_id, description=f"{job.title}: {name}")
            if self.lines:
                self.say(f"{job.title}: {name}")

        def progress(name: str, now: runs.Progress) -> None:
            nonlocal begun
            self.bars.update(
                self.task_id, completed=before + begun + each * now.round / now.rounds
            )
            if now.round == now.rounds:
                begun += each

        self.done += job.work
        return Watch(started, progress, self.say, self.stop, 20.0)

    def task(self, title: str, work: float) -> Callable[[runs.Progress], None]:
        """For a run that is not kept until it is done."""
        before = self.done
        self.done += work
        self.bars.update(self.task_id, description=title)
        if self.lines:
            self.say(title)

        def progress(now: runs.Progress) -> None:
            at = before + work * now.round / now.rounds
            self.bars.update(self.task_id, completed=at)
            if self.stop():
                raise Stopped(title, now)

        return progress

    def skip(self, work: float) -> None:
        self.done += work
        self.bars.update(self.task_id, completed=self.done)

    def say(self, message: str) -> None:
        self.console.print(f"sagda: {message}", highlight=False, markup=False)


def without_mnist() -> str | None:
    """What is missing, and how to get it."""
    try:
        load("mnist")
    except BadValue as missing:
        return str(missing)
    return None


def reproduce(
    plan: Reproduction, *, again: bool, window: int, docs: Path | None, quiet: bool
) -> dict[str, Any]:
    """Run what is asked for and not there; then the page, and what it says."""
    kept = {name: None if again else plan.kept(name) for name in plan.figures}
    found: Found = {name: one for name, one in kept.items() if one is not None}
    to_run = [name for name in plan.figures if name not in found]
    missing = None
    if any(plan.figures[name].needs_mnist for name in to_run):
        missing = without_mnist()
    left_out = [n for n in to_run if missing and plan.figures[n].needs_mnist]
    names = [name for name in plan.figures if name not in left_out]
    work = {n: sum(j.work for j in plan.jobs(plan.figures[n])) for n in names}
    with Interrupt() as stop:
        display = ReproductionDisplay(sum(work.values()), quiet, stop)
        with display.bars:
            if missing:
                display.say(f"without {', '.join(left_out)}: {missing}")
            for name in names:
                if name in found:
                    display.skip(work[name])
                    continue
                if again:
                    shutil.rmtree(plan.out / name, ignore_errors=True)
                found[name] = plan.run(name, display.watch)
    found = {name: found[name] for name in names}
    content = list(blocks(plan.figures, found, plan.out, window))
    page = plan.out / "index.html"
    plan.out.mkdir(parents=True, exist_ok=True)
    write_html(page, content, "SAGDA, reproduced")
    if docs is not None:
        write_markdown(docs, content, INTRO)
        folder = docs.parent / "evidence"
        folder.mkdir(exist_ok=True)
        for name in found:
            shutil.copyfile(plan.path(name), folder / f"{name}.json")
    return {
        "page": str(page),
        "figures": names,
        "left_out": left_out,
        "missing": missing,
        "verdicts": [
            {
                "claim": v.claim.text,
                "setting": v.setting,
                "verdict": v.word,
                "why": v.why,
            }
            for v in verdicts(found)
        ],
    }


def reproduce_speedup(
    out: Path, *, quick: bool, again: bool, docs: Path | None, quiet: bool
) -> dict[str, Any]:
    """Run what is not there, one run after the other; then the page."""
    found = speedup.Found.at(out / "evidence" / "speedup.json", quick, again)
    to_do = found.to_do
    with Interrupt() as stop:
        display = ReproductionDisplay(sum(task.work for task in to_do), quiet, stop)
        with display.bars:
            for task in to_do:
                found.run(task, display.task(str(task), task.work))
    content = list(slopes.blocks(found))
    page = out / "speedup.html"
    write_html(page, content, "The corollaries' rates, measured")
    if docs is not None:
        slopes.insert(docs, content)
        folder = docs.parent / "evidence"
        folder.mkdir(exist_ok=True)
        shutil.copyfile(found.path, folder / "speedup.json")
    return {
        "page": str(page),
        "slopes": [
            line._asdict()
            | {"settings": [s._asdict() for s in line.settings]}
            | {"predicted": line.predicted}
            | speedup.fitted(line, found.of(line))._asdict()
            for line in speedup.lines(quick)
        ],
        "theorems": [
            own._asdict() | {"setting": own.setting._asdict()} | found.values[str(own)]
            for own in speedup.theorems(quick)
        ],
    }


def show_speedup(result: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    for head in ("problem", "clients", "method", "swept", "slope", "predicted"):
        table.add_column(head, no_wrap=True)
    for row in result["slopes"]:
        slope = speedup.Slope(row["value"], row["low"], row["high"])
        head = [row[key] for key in ("bench", "clients", "method", "over")]
        table.add_row(*head, str(slope), f"{row['predicted']:g}")
    out = Console(width=None if sys.stdout.isatty() else 120)
    out.print(table)
    table = Table(box=None, pad_edge=False)
    for head in ("theorem", "m of M", "K", "T", "bound", "measured", "ratio"):
        table.add_column(head, no_wrap=True)
    for row in result["theorems"]:
        M, m, K, T = row["setting"].values()
        mean = sum(row["measured"]) / len(row["measured"])
        cells = [f"{row['printed']:.3g}", f"{mean:.3g}", f"{mean / row['printed']:.2f}"]
        table.add_row(row["method"], f"{m} of {M}", str(K), f"{T:,}", *cells)
    out.print("", table, sep="\n")
    print(f"page: {result['page']}")


def show(result: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    for head in ("verdict", "setting", "claim"):
        table.add_column(head, no_wrap=head != "claim")
    for row in result["verdicts"]:
        table.add_row(row["verdict"], row["setting"], row["claim"])
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if result["left_out"]:
        print(f"left out: {', '.join(result['left_out'])}")
    print(f"page: {result['page']}")
