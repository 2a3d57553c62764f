"""The command that repeats the paper's experiments: reproduce.

`paper/` has the figures, the claims and their verdicts. This file checks the flags.
"""

import signal
import sys
from pathlib import Path
from typing import Annotated

from sagda import check
from sagda.check import BadValue
from sagda.commands.app import Json, flag, say, start_jax


def reproduce(
    *figures: Annotated[
        str,
        flag(
            "fig1a to fig2d, partial, steps, local-rates, server-rates, gan; `all` of "
            "them; or `speedup`."
        ),
    ],
    quick: Annotated[
        bool, flag("Use a tenth of the rounds and two seeds; the page says so.")
    ] = False,
    out: Annotated[
        Path | None, flag("Folder (default: reproduction, or reproduction-quick).")
    ] = None,
    smooth: Annotated[
        int, flag("Smooth curves over this many values; the paper uses 5.")
    ] = 1,
    retune: Annotated[
        bool, flag("Choose the tuned rates again, and write them to the folder.")
    ] = False,
    again: Annotated[
        bool, flag("Repeat the runs of figures that are already finished.")
    ] = False,
    docs: Annotated[
        Path | None, flag("Also write the page as Markdown, with its pictures.")
    ] = None,
    json: Json = False,
) -> int:
    """Run the paper's figures with error bars, and check its claims against them.

    `speedup` measures the slopes that the corollaries predict, and tests the theorems.
    Repeating the command resumes after a stop. Finished figures are not run again.

    Examples: `sagda reproduce fig1c`, `sagda reproduce all --quick`
    """
    from sagda.paper.figure import chosen

    speedup = "speedup" in figures
    if speedup and (len(figures) > 1 or retune or smooth != 1):
        raise BadValue(
            "`speedup` writes its own page; run it alone, without --retune and "
            "--smooth."
        )
    names = [] if speedup else chosen(list(figures))
    check.integer("smooth", smooth, low=1)
    start_jax()
    from sagda.paper.reproduce import reproduce_figures, reproduce_speedup
    from sagda.paper.terminal import show_figures, show_speedup
    from sagda.report.charts import drawing
    from sagda.runs.execution import Stopped

    drawing()  # a missing package is reported before hours of work
    out = out or Path("reproduction-quick" if quick else "reproduction")
    options = {"quick": quick, "again": again, "docs": docs, "quiet": json}
    try:
        if speedup:
            facts = reproduce_speedup(out, **options)
        else:
            facts = reproduce_figures(
                names, out, retune=retune, window=smooth, **options
            )
    except Stopped as stopped:
        print(f"stopped in {stopped}; repeat the command to resume.", file=sys.stderr)
        return 128 + signal.SIGINT
    return say(json, facts, lambda: (show_speedup if speedup else show_figures)(facts))
