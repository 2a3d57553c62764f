"""The two reproductions: the paper's figures with their claims, and its corollaries.

Both make the runs that are missing in a folder and write a page. They return the facts
that `--json` prints. After a stop, the same call resumes. `run` makes the runs of a
figure, `speedup` those of the corollaries. `terminal` shows the results.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from sagda.check import BadValue
from sagda.data.datasets import load
from sagda.paper import slopes, speedup
from sagda.paper.claims import EvidenceOf, verdicts
from sagda.paper.page import blocks
from sagda.paper.run import Reproduction, read_figures
from sagda.paper.terminal import ReproductionDisplay
from sagda.report.blocks import write_html, write_markdown
from sagda.runs.interrupt import Interrupt

INTRO = """# The paper's evaluation, reproduced

This page repeats every figure of the SAGDA paper with several seeds and error bars. It
gives each claim of its section 4 and appendix A a verdict from these data. The page is
written by

```
sagda reproduce all --docs docs/reproduction.md
```

from the results in `docs/evidence`. `sagda reproduce fig1c` runs one figure. *Paper*
uses the rates of the paper, *tuned* the best rates of each method on one grid.
"""


def mnist_problem() -> str | None:
    """Return the reason why MNIST is not available, or None if it is available."""
    try:
        load("mnist")
    except BadValue as error:
        return str(error)
    return None


def reproduce_figures(
    names: list[str],
    out: Path,
    *,
    quick: bool = False,
    retune: bool = False,
    again: bool = False,
    window: int = 1,
    docs: Path | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Make the missing runs of figures, write their page, and check the paper's claims.

    Args:
        names: the names of figures, from `figure.ORDER`.
        out: the folder for runs, evidence and the page.
        quick: use a tenth of the rounds and at most two seeds.
        retune: tune the rates again before the runs.
        again: repeat the runs of figures that are already finished.
        window: the number of values over which curves are smoothed.
        docs: a Markdown file to which the page is also written.
        quiet: show no progress.
    """
    say = lambda line: print(line, file=sys.stderr)
    figures = read_figures(names, out, retune=retune, say=say)
    reproduction = Reproduction(figures, out, quick=quick)
    stored = {name: None if again else reproduction.stored(name) for name in names}
    # A figure with stored evidence is not run, so it needs no data.
    on_mnist = [n for n in names if stored[n] is None and figures[n].needs_mnist]
    missing = mnist_problem() if on_mnist else None
    left_out = on_mnist if missing else []
    names = [name for name in names if name not in left_out]
    work = {name: reproduction.work(name) for name in names}
    evidence: EvidenceOf = {}
    with Interrupt() as stop:
        display = ReproductionDisplay(sum(work.values()), quiet, stop)
        with display.bars:
            if missing:
                display.say(f"without {', '.join(left_out)}: {missing}")
            for name in names:
                if (found := stored[name]) is not None:
                    evidence[name] = found
                    display.skip(work[name])
                    continue
                if again:
                    shutil.rmtree(out / name, ignore_errors=True)
                evidence[name] = reproduction.run(name, display.watch)
    content = list(blocks(figures, evidence, out, window))
    page = out / "index.html"
    out.mkdir(parents=True, exist_ok=True)
    write_html(page, content, "SAGDA, reproduced")
    if docs is not None:
        write_markdown(docs, content, INTRO)
        copy_evidence([reproduction.path(name) for name in names], docs)
    facts = {"figures": names, "left_out": left_out, "missing": missing}
    return {"page": str(page)} | facts | {"verdicts": verdict_facts(evidence)}


def verdict_facts(evidence: EvidenceOf) -> list[dict[str, str]]:
    """Return the verdicts on all claims, as values that can be written to JSON."""
    return [
        {
            "claim": verdict.claim.text,
            "setting": verdict.setting,
            "verdict": verdict.word,
            "why": verdict.why,
        }
        for verdict in verdicts(evidence)
    ]


def reproduce_speedup(
    out: Path,
    *,
    quick: bool = False,
    again: bool = False,
    docs: Path | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Measure the slopes of the corollaries, test the theorems, and write the page.

    The arguments mean the same as in `reproduce_figures`. The file `docs` must have the
    lines `slopes.BEGIN` and `slopes.END`. The text between these lines is replaced.
    """
    path = out / "evidence" / "speedup.json"
    evidence = speedup.read_evidence(path, quick=quick, again=again)
    tasks = evidence.missing()
    with Interrupt() as stop:
        display = ReproductionDisplay(sum(task.work for task in tasks), quiet, stop)
        with display.bars:
            for task in tasks:
                speedup.measure(task, evidence, display.task(str(task), task.work))
    content = list(slopes.blocks(evidence))
    page = out / "speedup.html"
    write_html(page, content, "The corollaries' rates, measured")
    if docs is not None:
        slopes.insert(docs, content)
        copy_evidence([path], docs)
    return {
        "page": str(page),
        "slopes": [
            line._asdict()
            | {"settings": [setting._asdict() for setting in line.settings]}
            | {"predicted": line.predicted}
            | speedup.fitted(line, evidence.errors_of(line))._asdict()
            for line in speedup.lines(quick)
        ],
        "theorems": [
            {"method": theorem.method, "setting": theorem.setting._asdict()}
            | {"counter": not theorem.setting.full}
            | evidence.trials[str(theorem)]._asdict()
            for theorem in speedup.theorems(quick)
        ],
    }


def copy_evidence(paths: list[Path], docs: Path) -> None:
    """Copy evidence files to the folder `evidence` next to a Markdown page."""
    folder = docs.parent / "evidence"
    folder.mkdir(exist_ok=True)
    for path in paths:
        shutil.copyfile(path, folder / path.name)
