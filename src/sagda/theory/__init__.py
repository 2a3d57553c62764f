"""The paper's theorems as functions: constants, conditions, bounds and step sizes.

Start with `setting` (the symbols), then `conditions` and `bounds` (the inequalities).
`constants` measures a problem, `rates` solves for step sizes, and `advice` combines
all of them. Nothing here draws or prints: see `sagda.report`.
"""

from sagda.theory import rates
from sagda.theory.advice import Advice, advise
from sagda.theory.bounds import Bound, bound, caveats, rounds_to, samples
from sagda.theory.conditions import (
    CONDITIONS,
    ConditionCheck,
    Slack,
    binding,
    check_conditions,
)
from sagda.theory.constants import Estimate, Estimates, estimate
from sagda.theory.practice import Practice, practice
from sagda.theory.setting import Constants, Setting, Steps

__all__ = [
    "CONDITIONS",
    "Advice",
    "Bound",
    "ConditionCheck",
    "Constants",
    "Estimate",
    "Estimates",
    "Practice",
    "Setting",
    "Slack",
    "Steps",
    "advise",
    "binding",
    "bound",
    "caveats",
    "check_conditions",
    "estimate",
    "practice",
    "rates",
    "rounds_to",
    "samples",
]
