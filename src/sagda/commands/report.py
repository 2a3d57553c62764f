"""Commands that show: reproduce, report, partition, data, list."""

import json as json_module
import signal
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sagda import check
from sagda.check import BadValue
from sagda.commands import app as base
from sagda.commands.app import (
    AllFlags,
    File,
    Folder,
    Json,
    app,
    merged,
    said,
)
from sagda.runs import config as configs


@app.command
def reproduce(
    *figures: Annotated[
        str,
        said(
            "fig1a to fig2d, partial, steps, local-rates, server-rates, gan; all of "
            "them; or speedup."
        ),
    ],
    quick: Annotated[
        bool, said("A tenth of the rounds and two seeds, marked as such.")
    ] = False,
    out: Annotated[
        Path | None, said("Where (default: reproduction, or reproduction-quick).")
    ] = None,
    smooth: Annotated[
        int, said("Smooth curves over that many values; the paper has 5.")
    ] = 1,
    retune: Annotated[
        bool, said("Choose the tuned rates anew, and write them to the folder.")
    ] = False,
    again: Annotated[bool, said("Run finished figures again.")] = False,
    docs: Annotated[
        Path | None, said("Also write the page as Markdown, with its pictures.")
    ] = None,
    json: Json = False,
) -> int:
    """Run the paper's figures with error bars, and judge its claims by them.

    `speedup` measures the slopes that the corollaries predict, and tries the theorems.
    Stopped, it goes on where it was; finished figures are not run again.

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
    base.start_jax()
    from sagda.paper.reproduce import reproduce_figures, reproduce_speedup
    from sagda.paper.terminal import show_figures, show_speedup
    from sagda.report.charts import drawing
    from sagda.runs.folder import Stopped

    drawing()  # before hours of work, not after
    out = out or Path("reproduction-quick" if quick else "reproduction")
    try:
        if speedup:
            facts = reproduce_speedup(
                out, quick=quick, again=again, docs=docs, quiet=json
            )
        else:
            facts = reproduce_figures(
                names,
                out,
                quick=quick,
                retune=retune,
                again=again,
                window=smooth,
                docs=docs,
                quiet=json,
            )
    except Stopped as stopped:
        print(f"stopped in {stopped}; repeat the command to resume.", file=sys.stderr)
        return 128 + signal.SIGINT
    if json:
        print(json_module.dumps(facts))
    else:
        (show_speedup if speedup else show_figures)(facts)
    return 0


@app.command
def report(
    folder: Folder,
    /,
    *,
    figures: Annotated[bool, Parameter(help="Write figures/*.png and *.pdf.")] = True,
    theory: Annotated[
        bool, Parameter(help="Measure where the rates stand in the theory.")
    ] = True,
    json: Json = False,
) -> int:
    """Write the page of a finished run again, and its figures as PNG and PDF.

    Example: `sagda report runs/mine`
    """
    from sagda.report.charts import drawing
    from sagda.report.run_page import write_figures, write_page
    from sagda.runs.folder import read_folder
    from sagda.runs.results import read_results

    drawing()
    if not (folder / "config.toml").is_file() or not configs.is_federation(folder):
        config = read_folder(folder)
        read_results(folder)  # a run that is not finished is not judged
        if theory:
            judge(config, folder)
    made = [write_page(folder), *(write_figures(folder) if figures else [])]
    show_files(made, json)
    return 0


def judge(config: configs.Config, folder: Path) -> None:
    """theory.json, where the data of the run are still at hand."""
    from sagda.runs.experiment import prepare

    if config.grid:
        return
    base.start_jax()
    from sagda.models.user_code import is_own
    from sagda.report.theory_section import write_theory

    if is_own(config.model):
        return  # code, which a page does not run

    try:
        write_theory(prepare(config), folder)
    except BadValue as why:
        print(f"sagda: without the theory: {why}", file=sys.stderr)


def show_files(paths: list[Path], json: bool) -> None:
    if json:
        print(json_module.dumps({"files": [str(path) for path in paths]}))
    else:
        for path in paths:
            print(path)


@app.command
def partition(
    *,
    config: File = None,
    flags: AllFlags = None,
    picture: Annotated[
        Path | None, said("Draw it, as .png, .pdf, .svg or .html.")
    ] = None,
    json: Json = False,
) -> int:
    """Show how data are split over clients: labels per client, and the split's hash.

    Example: `sagda partition --partition dirichlet --alpha 0.1 --clients 20`
    """
    from sagda.report.terminal import show_split
    from sagda.runs.experiment import prepare, resolve
    from sagda.runs.folder import label_counts

    experiment = prepare(resolve(merged(config, flags, None)))
    counts = label_counts(experiment.federation)
    if picture is not None:
        from sagda.report.charts import draw_partition

        draw_partition(counts, experiment.federation.size.tolist(), picture)
    show_split(experiment.federation, counts, picture, json)
    return 0


@app.command
def data(
    name: Annotated[str, said("a9a, mnist, digits, or a file.")],
    /,
    *,
    label: Annotated[str, said("The label column of a file.")] = "label",
    client_column: Annotated[
        str | None, said("The column of a file that says who holds a row.")
    ] = None,
    positive: Annotated[str | None, said("The label of the positive class.")] = None,
    categorical: Annotated[
        str | None, said("Columns of numbers that are categories, as a,b.")
    ] = None,
    json: Json = False,
) -> int:
    """Describe a data set or a file: rows, features, classes, clients.

    Examples: `sagda data a9a`, `sagda data hospital.csv --label outcome`
    """
    from sagda.report.terminal import show_data
    from sagda.runs.experiment import load_options

    values = {"data": name, "label": label, "client_column": client_column}
    values |= {"positive": positive, "categorical": categorical}
    chosen = configs.build(values)
    show_data(name, load_options(chosen), json)
    return 0


@app.command(name="list")
def list_(*, json: Json = False) -> int:
    """Name the algorithms with their parameters, the problems, data and partitions."""
    from sagda.report.terminal import catalogue, show_catalogue

    parts = catalogue()
    if json:
        print(json_module.dumps(parts))
        return 0
    show_catalogue(parts)
    return 0
