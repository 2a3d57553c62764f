"""The parameters of algorithms and problems, and their values in a configuration.

`experiment.py` builds problems and data from a configuration. `grid.py` sweeps
parameters.
"""

import inspect
from typing import Any

from sagda.algorithms import ALGORITHMS
from sagda.methods import Method
from sagda.problems import PROBLEMS
from sagda.runs.config import Config

# Parameters that have a flag. It sets the parameter in all algorithms that have it.
COMMON = ("local_lr", "server_lr", "local_steps")


def options_of(name: str) -> list[str]:
    """Return the parameters of the algorithm or of the problem with this name."""
    if name in ALGORITHMS:
        return list(inspect.signature(ALGORITHMS[name]).parameters)
    return PROBLEMS[name].options()


def method_of(config: Config, name: str) -> Method:
    """Return the algorithm `name` with the parameters that a configuration sets."""
    return ALGORITHMS[name](**arguments_of(config, name))


def arguments_of(config: Config, name: str) -> dict[str, Any]:
    """Return the arguments of the algorithm `name`: from its flags and from `--set`."""
    known = inspect.signature(ALGORITHMS[name]).parameters
    numbers = config.model_dump()
    common = {key: numbers[key] for key in COMMON if key in known}
    return common | config.set.get(name, {})
