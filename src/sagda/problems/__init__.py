"""The registry of problems: one line each; tests, docs and commands read it."""

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
