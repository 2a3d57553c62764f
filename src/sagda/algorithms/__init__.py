"""The registry of algorithms. Each algorithm has a module in this folder.

To add an algorithm, write a module with a `@method` function, and add one line to
`ALGORITHMS`. The commands, tests, docs and federations read this registry. Read
`algorithms/sagda.py` first for an example, and `core.py` for the types. No algorithm
runs here: see `simulator` and `federation`.
"""

from collections.abc import Callable

from sagda import check
from sagda.methods import Method
from sagda.registry import Registry

ALGORITHMS: Registry[Callable[..., Method]] = Registry(
    "sagda.algorithms",
    {
        "sagda-i": "sagda:sagda_i",
        "sagda-ii": "sagda:sagda_ii",
        "fsgda": "sagda:fsgda",
        "parallel-sgda": "parallel_sgda:parallel_sgda",
        "cd-ma": "cd_ma:cd_ma",
        "cd-mage": "cd_mage:cd_mage",
        "cd-mage-plus": "cd_mage:cd_mage_plus",
        "local-sgda": "local_sgda:local_sgda",
        "local-sgda-plus": "local_sgda:local_sgda_plus",
        "momentum-local-sgda": "momentum_local_sgda:momentum_local_sgda",
    },
)


def algorithm(name: str, **parameters) -> Method:
    """Return the algorithm called `name` with the given hyperparameters.

    Examples:
        >>> algorithm("fsgda", local_lr=0.1, local_steps=5).arguments["local_steps"]
        5
    """
    return ALGORITHMS[check.choice("algorithm", name, ALGORITHMS)](**parameters)
