"""The registry of problems, and the function that builds one of them by name.

To add a problem, write one class in a new file and one line in `PROBLEMS`. The class
itself tells `--set`, `--model`, `sagda predict`, federations and the tests what it can
do: see `base.py`. A problem in a script needs no entry: see `minmax.py`.
"""

from collections.abc import Mapping
from typing import Any

from sagda import check
from sagda.data.federation import Facts, Federation
from sagda.models.user_code import model_of
from sagda.problems.base import Problem
from sagda.registry import Registry

PROBLEMS: Registry[type[Problem]] = Registry(
    "sagda.problems",
    {
        "adversarial": "adversarial:Adversarial",
        "agnostic": "agnostic:Agnostic",
        "auc": "auc:AUC",
        "dro": "dro:DRO",
        "fair": "fair:Fair",
        "gan": "gan:GAN",
        "quadratic": "quadratic:Quadratic",
    },
)


def problem_of(
    name: str,
    data: Federation | Facts,
    model: str = "linear",
    options: Mapping[str, Any] | None = None,
) -> Problem:
    """Return the problem `name`, built from a federation or from facts about it.

    A run in the simulator passes its federation. The server of a real federation and
    a stored model know only the `Facts`, and build the same problem from them.

    Args:
        name: a key of `PROBLEMS`.
        data: the clients' rows, or the four numbers that describe them.
        model: a key of `MODELS` or FILE.py:FUNCTION, for problems that take a model.
        options: keyword arguments of the method `of` of the problem.
    """
    kind = PROBLEMS[check.choice("problem", name, PROBLEMS)]
    options = dict(options or {})
    if kind.takes_model():
        options["model"] = model_of(model, data.width)
    return kind.of(data, **options)
