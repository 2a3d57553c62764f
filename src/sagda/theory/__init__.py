"""The paper's theorems as functions: constants, conditions, bounds and step sizes.

Start with `setting` (the symbols), then `conditions` and `bounds` (the inequalities).
`constants` measures a problem, `rates` computes step sizes, and `advice` combines these
modules. This room neither draws nor prints: see `sagda.report`.
"""

from sagda.theory import rates
from sagda.theory.advice import advise
from sagda.theory.bounds import bound, caveats, rounds_to, samples
from sagda.theory.conditions import CONDITIONS, binding, check_conditions
from sagda.theory.constants import estimate
from sagda.theory.practice import practice
from sagda.theory.setting import Constants, Setting, Steps

__all__ = [
    "CONDITIONS",
    "Constants",
    "Setting",
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
