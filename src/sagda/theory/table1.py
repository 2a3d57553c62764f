"""Table 1 of the paper: what is needed to reach ||grad Phi|| <= epsilon, by order.

Only orders are compared: every unnamed constant is taken as one.
"""

from collections.abc import Callable
from typing import NamedTuple

from sagda import check


class Table1Row(NamedTuple):
    """One method's complexity."""

    method: str
    bounded_dissimilarity: str
    client_sampling: str
    samples: str  # stochastic gradients of each client
    rounds: str
    count_samples: Callable[[int, float], float]  # of m and epsilon
    count_rounds: Callable[[int, float], float] | None
    source: str


TABLE = (
    Table1Row(
        "SGDA", "-", "-", "eps^-4", "-",
        lambda m, e: e**-4, None,
        "Lin, Jin, Jordan (2020), one machine",
    ),
    Table1Row(
        "Local SGDA", "needed", "no",
        "max(eps^-4, m^(-2/3) eps^-6)", "(1/m) eps^-6",
        lambda m, e: max(e**-4, m ** (-2 / 3) * e**-6), lambda m, e: e**-6 / m,
        "Deng, Mahdavi (2021)",
    ),
    Table1Row(
        "(Momentum) Local SGDA", "needed", "no", "(1/m) eps^-4", "eps^-3",
        lambda m, e: e**-4 / m, lambda m, e: e**-3,
        "Sharma et al. (2022)",
    ),
    Table1Row(
        "CD-MAGE", "needed", "yes", "(1/m) eps^-4", "(1/m) eps^-4",
        lambda m, e: e**-4 / m, lambda m, e: e**-4 / m,
        "Xie et al. (2021)",
    ),
    Table1Row(
        "SAGDA", "not needed", "yes", "(1/m) eps^-4", "eps^-2",
        lambda m, e: e**-4 / m, lambda m, e: e**-2,
        "Corollary 1; for m < M see docs/theory.md",
    ),
    Table1Row(
        "FSGDA", "needed", "yes", "(1/m) eps^-4", "eps^-2",
        lambda m, e: e**-4 / m, lambda m, e: e**-2,
        "Corollaries 2 and 3; the rounds for m = M, else (1/m) eps^-4",
    ),
)  # fmt: skip


class Counted(NamedTuple):
    """A row in numbers."""

    row: Table1Row
    samples: float
    rounds: float | None
    best_local_steps: float | None  # K with so few rounds: samples over rounds
    rounds_at: float | None  # with the given K


def counted(cohort: int, epsilon: float, local_steps: int = 10) -> list[Counted]:
    """Table 1 for m clients, a target, and K.

    All samples must be had, K in a round, and no K makes fewer rounds do than the
    table's.
    """
    K = check.integer("local_steps", local_steps, low=1)
    m = check.integer("cohort", cohort, low=1)
    epsilon = check.positive("epsilon", epsilon)
    check.real("epsilon", epsilon, low=1e-30, high=1.0)
    found = []
    for row in TABLE:
        samples = row.count_samples(m, epsilon)
        rounds = None if row.count_rounds is None else row.count_rounds(m, epsilon)
        own = (None, None)
        if rounds is not None:
            own = (max(1.0, samples / rounds), max(rounds, samples / K))
        found.append(Counted(row, samples, rounds, *own))
    return found
