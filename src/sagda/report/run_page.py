"""The report of a run folder: `report.html`, and its charts as files in figures/.

Both are made from the files of a finished folder alone, so they can be made again
anywhere. `results.py` of `sagda.runs` reads the folder, `charts.py` draws, and
`blocks.py` writes the HTML. Simulations and federations have the same report.
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
    """Write report.html from the files of a finished folder."""
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
    """What ran, the heat map of a sweep, and the curves."""
    names, rounds = results.ranked, results.summary["rounds"]
    content = ", ".join(names)
    if results.points:
        content = f"{len(names)} points, curves of the best {len(results.shown)}"
    blocks: list[Block] = [Note(f"{content}; {rounds} rounds{results.early}")]
    if results.points:
        caption = (
            "Mean over seeds of the last rounds. With more than two parameters, each "
            "cell is the best over the others."
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
    """Final values, and what it took to reach three targets."""
    return [
        Heading("Results"),
        results_grid(results),
        Note(
            "Mean ± standard deviation over seeds. Samples are those of one "
            "participating client. Bytes are those of all messages in both "
            "directions. Seconds are those in rounds."
        ),
        targets_grid(results),
        Note("Means over seeds. A dash means that at least one seed never reached it."),
    ]


def setting_blocks(results: Results, config: str) -> list[Block]:
    """The split, the configuration and the environment."""
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
    """Rows per client; without labels only the largest client's size is known."""
    sizes = [split["largest"]] * split["clients"]
    if split["labels"]:
        sizes = [sum(counts) for counts in zip(*split["labels"].values(), strict=True)]
    return charts.split_chart(split["labels"], sizes)


def write_figures(folder: Path) -> list[Path]:
    """Write every metric over every axis, and the split, as PNG and PDF."""
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
