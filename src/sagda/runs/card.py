"""Write MODEL_CARD.md: the data, the training, the metrics and the limits of a model.

The card uses only files of the run folder. It is written when a run ends and again
after every `sagda evaluate`. `results.py` reads the files. The HTML report of a run is
in `sagda.report`.
"""

import json
from pathlib import Path

from sagda import durable
from sagda.problems.metrics import metric_of
from sagda.runs.config import Config, build, read_toml
from sagda.runs.results import Results, bytes_text, read_results, spread

CARD, EVALUATIONS = "MODEL_CARD.md", "evaluations.json"
LIMITS = (
    "The model was trained only on the rows of the clients above. Other clients may "
    "differ.",
    "Scores only order the rows. Probabilities are calibrated on the training rows "
    "(Platt's method). With few training rows they are too close to 0 and 1.",
    "The AUC is computed on all rows together. The AUC of a single client may be very "
    "different.",
    "The model was not examined for fairness between groups.",
)
SIMULATED = "This was a simulation: all clients' rows were on one machine, unprotected."
FEDERATED = (
    "This was a federation: the rows stayed at their sites, and the counts above are "
    "what the sites reported."
)


def write_card(folder: Path) -> Path:
    """Write MODEL_CARD.md into the run folder of a simulation or of a server.

    Returns the path of the card.
    """
    results, values = read_results(folder), read_toml(folder / "config.toml")[0]
    simulated = values.pop("federation", None) is None
    config = build(values, str(folder / "config.toml"))
    limits = (*LIMITS, SIMULATED if simulated else FEDERATED)
    parts = [
        f"# Model card: {folder.resolve().name}",
        "## Data",
        data_table(results, config, simulated),
        "## Training",
        training_table(results, config),
        "## Metrics at the end",
        metrics_table(results),
        *evaluations(folder),
        "## Limits",
        "\n".join(f"- {limit}" for limit in limits),
        "## How to use it",
        f"`sagda predict {folder} FILE` scores rows. `sagda evaluate {folder} FILE` "
        "evaluates the model on labelled rows. In Python, use "
        "`sagda.Scorer.load(FOLDER)`.",
    ]
    path = folder / CARD
    durable.write(path, "\n\n".join(parts) + "\n")
    return path


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown. The characters `|` and `*` in cells are escaped."""
    escape = lambda text: text.replace("|", "\\|").replace("*", "\\*")
    line = lambda cells: f"| {' | '.join(map(escape, cells))} |"
    return "\n".join([line(head), f"|{'---|' * len(head)}", *map(line, rows)])


def data_table(results: Results, config: Config, simulated: bool) -> str:
    """Return the table with the source of the rows and their split over clients."""
    split = results.summary["split"]
    # In a federation the server does not know the sites' files or label columns.
    rows = [["data", "the files of the sites"], ["split", f"sites, `{split['hash']}`"]]
    if simulated:
        rows = [
            ["data", config.data],
            ["label", f"{config.label}, positive: {config.positive or 'the larger'}"],
            ["partition", f"{config.partition}, split `{split['hash']}`"],
        ]
    rows += [
        ["clients", str(split["clients"])],
        ["rows of a client", f"{split['smallest']} to {split['largest']}"],
        ["standardised", "yes, from clients' sums" if config.standardise else "no"],
    ]
    for name, counts in split["labels"].items():
        rows.append([f"rows of class {name}", f"{sum(counts):,}"])
    return markdown_table(["", ""], rows)


def training_table(results: Results, config: Config) -> str:
    """Return the table of the problem, the algorithms and their parameters."""
    summary = results.summary
    methods = summary["methods"].items()
    rows = [
        ["problem", f"{config.problem}, model {config.model}"],
        ["rounds", f"{summary['rounds']}{results.early}"],
        ["clients per round", str(config.cohort or summary["split"]["clients"])],
        ["rows per stochastic gradient", str(config.batch_size)],
        *([f"algorithm {name}", f"`{text}`"] for name, text in methods),
        ["sagda", str(summary["environment"].get("sagda", ""))],
    ]
    return markdown_table(["", ""], rows)


def metrics_table(results: Results) -> str:
    """Return the table of all metrics at the end of the run, by algorithm."""
    rows = []
    for name, columns in results.columns.items():
        ends = [columns[metric][:, -1] for metric in results.metrics]
        cells = [spread(end, "{:.4g}", "{:.1g}") for end in ends]
        rows.append([name, *cells, bytes_text(results.bytes_sent(name)[:, -1].mean())])
    labels = [metric_of(metric).label for metric in results.metrics]
    table = markdown_table(["algorithm", *labels, "bytes"], rows)
    if results.seeds == 1:
        return table
    return (
        f"{table}\n\nMeans and standard deviations over {results.seeds} seeds. Each "
        "seed has its own model."
    )


def evaluations(folder: Path) -> list[str]:
    """Return the section of evaluations; empty if `sagda evaluate` never ran."""
    path = folder / EVALUATIONS
    if not path.is_file():
        return []
    rows = []
    for entry in json.loads(path.read_text(encoding="utf-8")).values():
        auc, worst = entry["auc"], entry["worst_client"]
        rows.append(
            [
                entry["file"],
                entry["model"],
                f"{entry['rows']:,}",
                f"{auc['value']:.4f} [{auc['low']:.4f}, {auc['high']:.4f}]",
                f"{worst['auc']:.4f} ({worst['name']})" if worst else "-",
                f"{entry['calibration_error']:.3f}",
            ]
        )
    head = ["file", "model", "rows", "AUC, 95 %", "worst client", "calibration error"]
    return ["## Evaluations", markdown_table(head, rows)]
