"""Writes `theory.json` into a run folder: its step sizes, assessed by the theorems.

`theory_page` turns this file into the section of the report.
"""

import json
from pathlib import Path

from sagda import durable
from sagda.report.theory_page import FILE
from sagda.runs.experiment import Experiment
from sagda.theory.advice import advise, as_facts
from sagda.theory.conditions import CONDITIONS
from sagda.theory.constants import estimate, not_covered


def write_theory(experiment: Experiment, folder: Path) -> None:
    """Measure the constants of a run's problem and assess the run's step sizes."""
    problem, federation = experiment.problem, experiment.federation
    config = experiment.config
    size = None if config.batch_size == "all" else config.batch_size
    names = [name for name in experiment.methods if name in CONDITIONS]
    facts = {}
    if names and not_covered(problem) is None:
        seed = config.seed
        estimates = estimate(problem, federation, batch_size=size, seed=seed)
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
