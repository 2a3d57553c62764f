"""The section of a report that compares a run's step sizes with the theorems.

`write_theory` measures the constants and writes `theory.json` into the run folder.
`blocks` reads only this file, so a report can be written again without the data.
`sagda.theory` computes the advice, and `terminal_theory` prints advice on a terminal.
"""

import json
from pathlib import Path
from typing import Any

from sagda import durable
from sagda.report.blocks import Block, Grid, Heading, Note
from sagda.runs.experiment import Experiment

FILE = "theory.json"
MISSING = (
    "This report does not compare the step sizes with the theorems yet. `sagda report "
    "FOLDER` measures the constants that this needs, and writes the report again."
)
NOTE = (
    "Margin: 1 - right/left of a condition. It is 0 if both sides are equal and "
    "negative if the condition fails. Formulas use r = eta_y/eta_x; docs/theory.md "
    "defines the other symbols. Conditions are those that the proofs support. The "
    "rates of the theorem are those that minimise its bound. The theorem says nothing "
    "about rates that fail a condition, but such rates may work well."
)


def write_theory(experiment: Experiment, folder: Path) -> None:
    """Write theory.json: the constants of a run's problem, and advice for its methods.

    The file has `{}` if the theorems do not cover the problem or any of the methods.
    """
    from sagda.theory.advice import advise, as_facts
    from sagda.theory.conditions import CONDITIONS
    from sagda.theory.constants import estimate, not_covered

    problem, federation = experiment.problem, experiment.federation
    config = experiment.config
    size = None if config.batch_size == "all" else config.batch_size
    names = [name for name in experiment.methods if name in CONDITIONS]
    facts = {}
    if names and not_covered(problem) is None:
        estimates = estimate(problem, federation, batch_size=size, seed=config.seed)
        for name in names:
            advice = advise(
                experiment.methods[name],
                problem,
                federation,
                rounds=config.rounds,
                cohort=config.cohort,
                estimates=estimates,
                try_rates=False,
            )
            facts[name] = as_facts(advice)
    durable.write(folder / FILE, json.dumps(facts, indent=1) + "\n")


def blocks(folder: Path, federation: bool) -> list[Block]:
    """Make the section from theory.json.

    Without this file, the section of a simulation says how to write it. A federation
    has no section, because the data stay at the sites.
    """
    path = folder / FILE
    if not path.is_file():
        return [] if federation else [Note(MISSING)]
    facts = json.loads(path.read_text(encoding="utf-8"))
    if not facts:
        return [Note("The paper's theorems do not cover these algorithms.")]
    remarks = dict.fromkeys(
        text for advice in facts.values() for text in advice["remarks"]
    )
    return [
        Heading("Where these rates stand in the theory"),
        constants(facts),
        conditions(facts),
        bounds(facts),
        *map(Note, [NOTE, *remarks]),
    ]


def constants(facts: dict[str, Any]) -> Grid:
    """Return the table of constants, which are the same for all algorithms."""
    rows = []
    for constant in next(iter(facts.values()))["constants"].values():
        value = f"{constant['value']:.4g}"
        if constant["low"] is not None:
            value += f" [{constant['low']:.4g}, {constant['high']:.4g}]"
        rows.append([constant["symbol"], value, constant["how"], constant["where"]])
    return Grid(["constant", "value", "how", "where it holds"], rows)


def conditions(facts: dict[str, Any]) -> Grid:
    """Return the table of conditions of each algorithm at the rates of the run."""
    rows = []
    for name, advice in facts.items():
        for one in advice["given"]["proof"]["conditions"]:
            word = "holds" if one["holds"] else "fails"
            left, right = one["left"], one["right"]
            margin = f"{1 - right / left:.2g}" if left > 0 else "negative at any K"
            rows.append([name, one["name"], word, margin, one["formula"]])
    return Grid(["algorithm", "condition", "verdict", "margin", "formula"], rows)


def bounds(facts: dict[str, Any]) -> Grid:
    """Return the table of bounds on the mean of ||grad Phi||^2.

    An algorithm has two rows: for the rates of the run and for the best rates.
    """
    rows, terms = [], []
    for name, advice in facts.items():
        given, best = advice["given"]["proof"], advice["best"]
        for whose, at in (("run", given), ("theorem", best)):
            e, terms = at["rates"], list(at["bound"])
            local = f"{e['x_local']:.3g}, {e['y_local']:.3g}"
            server = f"{e['x_server']:.3g}, {e['y_server']:.3g}"
            values = [f"{value:.3g}" for value in at["bound"].values()]
            rows.append([name, whose, local, server, *values])
    return Grid(["algorithm", "rates of", "local", "server", *terms], rows)
