"""The report of a run folder: `report.html`, and its charts as files in figures/.

Simulations and federations have the same report. It needs only the files of a finished
folder, so it can be written again on any machine. `sagda.runs.results` reads the
folder, `charts.py` makes the charts, and `blocks.py` writes the HTML.
"""

from pathlib import Path
from typing import Any

from sagda import durable
from sagda.problems.metrics import AXES, metric_of
from sagda.report import charts, pictures, theory_page
from sagda.report.blocks import (
    Block,
    Chart,
    ChartChoice,
    Code,
    Grid,
    Heading,
    Note,
    Pictures,
    write_html,
)
from sagda.report.charts import BUDGETS
from sagda.report.tables import results_grid, targets_grid
from sagda.runs.config import is_federation
from sagda.runs.results import Results, read_pictures, read_results

PAGE = "report.html"


def write_page(folder: Path) -> Path:
    """Write report.html from the files of a finished folder. Return its path."""
    results = read_results(folder)
    blocks = [
        *progress_blocks(results),
        *table_blocks(results),
        *(
            Pictures(name, pictures.sheet(images), name)
            for name, images in read_pictures(folder).items()
        ),
        *theory_page.blocks(folder, is_federation(folder)),
        *setting_blocks(results, (folder / "config.toml").read_text(encoding="utf-8")),
    ]
    path = folder / PAGE
    write_html(path, blocks, folder.resolve().name)
    return path


def progress_blocks(results: Results) -> list[Block]:
    """Make the list of algorithms, the heat map of a sweep, and the curves."""
    names, rounds = results.ranked, results.summary["rounds"]
    content = ", ".join(names)
    if results.points:
        content = f"{len(names)} points, curves of the best {len(results.shown)}"
    blocks: list[Block] = [Note(f"{content}; {rounds} rounds{results.early}")]
    if results.points:
        caption = (
            "Mean over seeds and over the last rounds. If the sweep has more than two "
            "parameters, a cell shows the best value over the other parameters."
        )
        blocks += [Heading("Sweep"), Chart("heat", charts.heat_map(results), caption)]
    rows = {metric: charts.curve_rows(results, metric) for metric in results.metrics}
    rows = {metric: points for metric, points in rows.items() if points}
    band = f"mean of {results.seeds} seeds, band from lowest to highest"
    choice = ChartChoice(
        name="curves",
        metrics={metric: metric_of(metric).label for metric in rows},
        axes={axis: AXES[axis] for axis in BUDGETS},
        specs={m: {a: charts.curves(results, m, a) for a in BUDGETS} for m in rows},
        rows=rows,
        caption=band if results.seeds > 1 else "one seed",
    )
    return [*blocks, Heading("Progress"), choice]


def table_blocks(results: Results) -> list[Block]:
    """Make the table of final values and the table of budgets until three targets."""
    return [
        Heading("Results"),
        results_grid(results),
        Note(
            "Mean ± standard deviation over seeds. Samples: per participating client. "
            "Bytes: of all messages in both directions. Seconds: the time in rounds, "
            "without compiling."
        ),
        targets_grid(results),
        Note("Means over seeds. A dash: at least one seed never reached the target."),
    ]


def setting_blocks(results: Results, config: str) -> list[Block]:
    """Make the chart of the split, the configuration and the environment."""
    split = results.summary["split"]
    caption = (
        f"{split['clients']} clients of {split['smallest']} to {split['largest']} "
        f"rows; split {split['hash']}"
    )
    environment = [[k, str(v)] for k, v in results.summary["environment"].items()]
    return [
        Heading("Split"),
        Chart("partition", partition_chart(split), caption),
        Heading("Configuration"),
        Code(config),
        Heading("Environment"),
        Grid(["", ""], environment),
    ]


def partition_chart(split: dict[str, Any]) -> dict[str, Any]:
    """Return a bar chart of the rows of each client.

    If the summary has no labels, it has only the size of the largest client. Then all
    bars have this size.
    """
    sizes = [split["largest"]] * split["clients"]
    if split["labels"]:
        sizes = [sum(counts) for counts in zip(*split["labels"].values(), strict=True)]
    return charts.split_chart(split["labels"], sizes)


def write_figures(folder: Path) -> list[Path]:
    """Write all charts of a finished folder as PNG and PDF. Return their paths.

    The charts are each metric over each axis, the split, and the heat map of a sweep.
    """
    results = read_results(folder)
    out = folder / "figures"
    out.mkdir(exist_ok=True)
    specs = {"partition": partition_chart(results.summary["split"])}
    if results.points:
        specs["sweep"] = charts.heat_map(results)
    for metric in results.metrics:
        rows = charts.curve_rows(results, metric)
        for axis in BUDGETS if rows else ():
            data = {"datasets": {"curves": rows}}
            specs[f"{metric}-by-{axis}"] = charts.curves(results, metric, axis) | data
    files = {
        out / f"{name}.{kind}": charts.picture(spec, kind)
        for name, spec in specs.items()
        for kind in ("png", "pdf")
    }
    for name, images in read_pictures(folder).items():
        files[out / f"images-{name}.png"] = pictures.sheet(images)
    for path, content in files.items():
        durable.write(path, content)
    return list(files)
