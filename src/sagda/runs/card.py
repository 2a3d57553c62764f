"""The model card: what a run's model is, from the files of its folder alone."""

import json
from pathlib import Path
from typing import Any

from sagda import durable
from sagda.problems.metrics import metric_of
from sagda.runs.config import Config, build, read_toml
from sagda.runs.results import Results, bytes_text, read_results, spread

CARD, EVALUATIONS = "MODEL_CARD.md", "evaluations.json"
LIMITS = (
    "Trained on the rows of the clients above and no others; other clients may differ.",
    "Scores rank rows. Probabilities are calibrated on the training rows (Platt), and "
    "too sure where these are few.",
    "The AUC is of all rows together. That of single clients may be far from it.",
    "The model was not examined for fairness between groups.",
)
SIMULATED = (
    "A simulation: clients' rows were on one machine, and nothing was kept from it."
)
FEDERATED = (
    "A federation: rows stayed at their sites; what is said of them above, sites told."
)


def write_card(folder: Path) -> Path:
    """MODEL_CARD.md, of a simulation or of a federation's server."""
    found, values = read_results(folder), read_toml(folder / "config.toml")[0]
    simulated = values.pop("federation", None) is None
    config = build(values, str(folder / "config.toml"))
    limits = (*LIMITS, SIMULATED if simulated else FEDERATED)
    blocks = [
        f"# Model card: {folder.resolve().name}",
        "## Data",
        data_lines(found, config if simulated else None, bool(config.standardise)),
        "## Training",
        training_lines(found, config),
        "## Measures at the end",
        measures(found),
        *evaluations(folder),
        "## Limits",
        "\n".join(f"- {limit}" for limit in limits),
        "## How to use it",
        f"`sagda predict {folder} FILE` scores rows, `sagda evaluate {folder} FILE` "
        "judges it on labelled ones; in Python `sagda.Scorer.load(FOLDER)`.",
    ]
    path = folder / CARD
    durable.write(path, "\n\n".join(blocks) + "\n")
    return path


def table(head: list[str], rows: list[list[str]]) -> str:
    line = lambda cells: f"| {' | '.join(cells)} |"
    return "\n".join([line(head), f"|{'---|' * len(head)}", *map(line, rows)])


def data_lines(found: Results, config: Config | None, standardised: bool) -> str:
    """Without a configuration every site chose its rows and labels itself."""
    split = found.summary["split"]
    own = [["data", "every site's own"], ["split", f"sites, `{split['hash']}`"]]
    if config is not None:
        own = [
            ["data", config.data],
            ["label", f"{config.label}, positive: {config.positive or 'the larger'}"],
            ["partition", f"{config.partition}, split `{split['hash']}`"],
        ]
    rows = [
        *own,
        ["clients", str(split["clients"])],
        ["rows of a client", f"{split['smallest']} to {split['largest']}"],
        ["standardised", "yes, from clients' sums" if standardised else "no"],
    ]
    for name, held in split["labels"].items():
        rows.append([f"rows of class {name}", f"{sum(held):,}"])
    return table(["", ""], rows)


def training_lines(found: Results, config: Config) -> str:
    rows = [
        ["problem", f"{config.problem}, model {config.model}"],
        ["rounds", f"{found.summary['rounds']}{found.early}"],
        ["clients of a round", str(config.cohort or found.summary["split"]["clients"])],
        ["rows of a stochastic gradient", str(config.batch_size)],
        *(
            [f"algorithm {name}", f"`{text}`"]
            for name, text in found.summary["methods"].items()
        ),
        ["sagda", str(found.summary["environment"].get("sagda", ""))],
    ]
    return table(["", ""], rows)


def measures(found: Results) -> str:
    names = found.metrics
    rows = []
    for algorithm, columns in found.columns.items():
        total = columns["bytes_down"][:, -1] + columns["bytes_up"][:, -1]
        cells = [spread(columns[name][:, -1], "{:.4g}", "{:.1g}") for name in names]
        rows.append([algorithm, *cells, bytes_text(float(total.mean()))])
    shown = table(
        ["algorithm", *(metric_of(name).label for name in names), "bytes"], rows
    )
    if found.seeds == 1:
        return shown
    said = f"Means and standard deviations over {found.seeds} seeds, each a model."
    return f"{shown}\n\n{said}"


def evaluations(folder: Path) -> list[str]:
    path = folder / EVALUATIONS
    if not path.is_file():
        return []
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for own in kept.values():
        auc, worst = own["auc"], own["worst_client"]
        text = f"{auc['value']:.4f} [{auc['low']:.4f}, {auc['high']:.4f}]"
        least = f"{worst['auc']:.4f} ({worst['name']})" if worst else "-"
        error = f"{own['calibration_error']:.3f}"
        rows.append([own["file"], own["model"], f"{own['rows']:,}", text, least, error])
    head = ["file", "model", "rows", "AUC, 95 %", "worst client", "calibration error"]
    return ["## Evaluations", table(head, rows)]
