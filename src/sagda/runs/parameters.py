"""The parameters of algorithms and problems, and the values that a configuration sets.

`experiment.py` builds problems and data from a configuration; `grid.py` sweeps
parameters.
"""

import inspect
from typing import Any

from sagda.algorithms import ALGORITHMS
from sagda.methods import Method
from sagda.problems import PROBLEMS
from sagda.runs.config import Config

COMMON = ("local_lr", "server_lr", "local_steps")  # flags of all algorithms with them


def options_of(name: str) -> list[str]:
    """The names of the parameters of an algorithm or of a problem."""
    if name in ALGORITHMS:
        return list(inspect.signature(ALGORITHMS[name]).parameters)
    return PROBLEMS[name].options()


def method_of(config: Config, name: str) -> Method:
    """The algorithm with the parameters that a configuration sets for it."""
    return ALGORITHMS[name](**arguments_of(config, name))


def arguments_of(config: Config, name: str) -> dict[str, Any]:
    """The common parameters that the algorithm has, and those from `--set`."""
    known = inspect.signature(ALGORITHMS[name]).parameters
    numbers = config.model_dump()
    common = {key: numbers[key] for key in COMMON if key in known}
    return common | config.set.get(name, {})
