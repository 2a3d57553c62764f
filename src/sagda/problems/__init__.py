"""The registry of problems: one line each; tests, docs and commands read it."""

from sagda.problems.auc import AUC
from sagda.problems.base import Problem
from sagda.problems.dro import DRO
from sagda.problems.gan import GAN
from sagda.problems.quadratic import Quadratic

PROBLEMS: dict[str, type[Problem]] = {
    "auc": AUC,
    "dro": DRO,
    "gan": GAN,
    "quadratic": Quadratic,
}
