"""The command that writes the report of a run again: report.

`report/run_page.py` makes the report. `sagda run` also writes a report.
"""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sagda.check import BadValue
from sagda.commands.app import Folder, Json, say, start_jax
from sagda.runs.config import Config, is_federation


def report(
    folder: Folder,
    /,
    *,
    figures: Annotated[
        bool, Parameter(help="Also write the figures as figures/*.png and *.pdf.")
    ] = True,
    theory: Annotated[
        bool,
        Parameter(
            help="Add a table: how close each step-size condition is to failing."
        ),
    ] = True,
    json: Json = False,
) -> int:
    """Write the report of a finished run again, and its figures as PNG and PDF.

    Example: `sagda report runs/mine`
    """
    from sagda.report.charts import drawing
    from sagda.report.run_page import write_figures, write_page
    from sagda.runs.folder import read_folder_config
    from sagda.runs.results import read_results

    drawing()
    # A federation's server has no data, so it cannot measure the constants.
    if not (folder / "config.toml").is_file() or not is_federation(folder):
        config = read_folder_config(folder)
        read_results(folder)  # raises if the run is not finished
        if theory:
            measure_theory(config, folder)
    files = [write_page(folder), *(write_figures(folder) if figures else [])]
    names = [str(path) for path in files]
    return say(json, {"files": names}, "\n".join(names))


def measure_theory(config: Config, folder: Path) -> None:
    """Write theory.json: the constants and the conditions of the theorems for this run.

    Writes nothing for a sweep or for a custom model. If the theorems do not cover the
    run, or its data cannot be loaded, it prints the reason.
    """
    if config.grid:
        return
    start_jax()
    from sagda.models.user_code import is_own
    from sagda.report.theory_page import write_theory
    from sagda.runs.experiment import prepare

    if is_own(config.model):
        return  # for safety, `report` never runs code of a user
    try:
        write_theory(prepare(config), folder)
    except BadValue as error:
        print(f"sagda: no theory in the report: {error}", file=sys.stderr)
