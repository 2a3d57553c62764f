"""The command that repeats the experiments of the paper: reproduce.

This file only checks flags and prints results. `paper/` runs the figures and checks the
claims of the paper.
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
            "Names of figures: fig1a to fig2d, partial, steps, local-rates, "
            "server-rates, gan. `all` means all of these. `speedup` is not in `all` "
            "and takes no other name with it."
        ),
    ],
    quick: Annotated[
        bool, flag("Use a tenth of the rounds and two seeds, and say so in the report.")
    ] = False,
    out: Annotated[
        Path | None,
        flag("Folder to write to (default: reproduction or reproduction-quick)."),
    ] = None,
    smooth: Annotated[
        int, flag("Smooth each curve over this number of values. The paper uses 5.")
    ] = 1,
    retune: Annotated[
        bool, flag("Repeat the sweeps that choose the tuned rates, and write these.")
    ] = False,
    again: Annotated[
        bool, flag("Repeat the runs of figures that are already finished.")
    ] = False,
    docs: Annotated[
        Path | None, flag("Also write the report and its pictures to a Markdown file.")
    ] = None,
    json: Json = False,
) -> int:
    """Run the figures of the paper with error bars, and check the claims of the paper.

    `speedup` measures the slopes that the corollaries predict, and tests the theorems.
    Repeating the command resumes after a stop. Finished figures are not run again.

    Examples: `sagda reproduce fig1c`, `sagda reproduce all --quick`
    """
    from sagda.paper.figure import chosen

    speedup = "speedup" in figures
    if speedup and (len(figures) > 1 or retune or smooth != 1):
        raise BadValue(
            "`speedup` must be the only figure, without --retune and --smooth; run it "
            "in a separate command."
        )
    names = [] if speedup else chosen(list(figures))
    check.integer("smooth", smooth, low=1)
    start_jax()
    from sagda.paper.reproduce import reproduce_figures, reproduce_speedup
    from sagda.paper.terminal import show_figures, show_speedup
    from sagda.report.charts import drawing
    from sagda.runs.execution import Stopped

    drawing()  # raises now if a package for charts is missing, not after hours of work
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
