"""The registry of problems, and the function that builds one of them by name.

A new problem is one class in a file of its own and one line in `PROBLEMS`. `--set`,
`--model`, `sagda predict`, federations and the tests find out from the class what it
can do: see `base.py`.
"""

from collections.abc import Mapping
from typing import Any

from sagda import check
from sagda.data.federation import Facts, Federation
from sagda.models.user_code import model_of
from sagda.problems.adversarial import Adversarial
from sagda.problems.agnostic import Agnostic
from sagda.problems.auc import AUC
from sagda.problems.base import Problem
from sagda.problems.dro import DRO
from sagda.problems.fair import Fair
from sagda.problems.gan import GAN
from sagda.problems.quadratic import Quadratic

PROBLEMS: dict[str, type[Problem]] = {
    "adversarial": Adversarial,
    "agnostic": Agnostic,
    "auc": AUC,
    "dro": DRO,
    "fair": Fair,
    "gan": GAN,
    "quadratic": Quadratic,
}


def problem_of(
    name: str,
    data: Federation | Facts,
    model: str = "linear",
    options: Mapping[str, Any] | None = None,
) -> Problem:
    """The registered problem `name`, built from a federation or from facts about it.

    Runs build it from their federation. A federation's server and a stored model have
    only `Facts`, and get the same problem from them.

    Args:
        name: a key of `PROBLEMS`.
        data: the rows, or the four numbers that stand for them.
        model: a key of `MODELS` or FILE.py:FUNCTION, for problems that take a model.
        options: keywords of the problem's `of`.
    """
    kind = PROBLEMS[check.choice("problem", name, PROBLEMS)]
    options = dict(options or {})
    if kind.takes_model():
        options["model"] = model_of(model, data.width)
    return kind.of(data, **options)
