"""The paper's theorems as tools: constants, conditions, bounds, rates."""

from sagda.theory import rates
from sagda.theory.bounds import Bound, bound, caveats, rounds_to, samples
from sagda.theory.conditions import CONDITIONS, ConditionCheck, Slack, binding, judged
from sagda.theory.constants import Estimate, Estimates, estimate
from sagda.theory.practice import Practice, practice
from sagda.theory.setting import Constants, Setting, Steps

__all__ = [
    "CONDITIONS",
    "Bound",
    "ConditionCheck",
    "Constants",
    "Estimate",
    "Estimates",
    "Practice",
    "Setting",
    "Slack",
    "Steps",
    "binding",
    "bound",
    "caveats",
    "estimate",
    "judged",
    "practice",
    "rates",
    "rounds_to",
    "samples",
]
