"""`theory.json` of a run folder: its rates, judged by the theorems."""

import json
from pathlib import Path

from sagda import durable
from sagda.report.theory_page import FILE
from sagda.runs.experiment import Experiment
from sagda.theory.advice import advise, as_facts, asked
from sagda.theory.conditions import CONDITIONS
from sagda.theory.constants import beyond, estimate


def write_standing(experiment: Experiment, folder: Path) -> None:
    """Measure the constants of a run's problem, and judge its rates by them."""
    config = experiment.config
    names = [name for name in experiment.methods if name in CONDITIONS]
    facts = {}
    if names and beyond(experiment.problem) is None:
        found = estimate(
            experiment.problem,
            experiment.federation,
            batch_size=None if config.batch_size == "all" else config.batch_size,
            seed=config.seed,
        )
        for name in names:
            steps, setting = asked(experiment, name)
            facts[name] = as_facts(advise(name, found, setting, steps))
    durable.write(folder / FILE, json.dumps(facts, indent=1) + "\n")
