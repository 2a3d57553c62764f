"""Table 1 of the paper and Parallel SGDA: the cost of reaching ||grad Phi|| <= epsilon.

The costs are orders of growth as published. Every unnamed constant is replaced by 1.
For the bound of a concrete problem use `bounds` and `rates`. The table *Complexity* in
docs/algorithms.md has the same rows, and a test compares both.
"""

from collections.abc import Callable
from typing import NamedTuple

from sagda import check


class Order(NamedTuple):
    """An order of growth in m and epsilon."""

    formula: str
    numeric: Callable[[int, float], float]  # the value for m and epsilon


EPS_2 = Order("ε⁻²", lambda m, e: e**-2)
EPS_3 = Order("ε⁻³", lambda m, e: e**-3)
EPS_4 = Order("ε⁻⁴", lambda m, e: e**-4)
EPS_4_OVER_M = Order("ε⁻⁴/m", lambda m, e: e**-4 / m)
EPS_6_OVER_M = Order("ε⁻⁶/m", lambda m, e: e**-6 / m)
LOCAL_SGDA = Order(
    "max(ε⁻⁴, ε⁻⁶/m^(2/3))", lambda m, e: max(e**-4, m ** (-2 / 3) * e**-6)
)


class Table1Row(NamedTuple):
    """The published complexity of one method."""

    method: str
    rounds: Order | None  # None: the method runs on one machine
    samples: Order  # stochastic gradients of each client
    bounded_dissimilarity: str  # whether the analysis bounds how gradients differ
    client_sampling: str  # whether the analysis covers m < M
    source: str
    names: tuple[str, ...] = ()  # the method's names in `sagda.ALGORITHMS`


TABLE = (
    Table1Row(
        method="SGDA", rounds=None, samples=EPS_4,
        bounded_dissimilarity="-", client_sampling="-",
        source="Lin, Jin, Jordan 2020, one machine",
    ),
    Table1Row(
        method="Parallel SGDA", rounds=EPS_4_OVER_M, samples=EPS_4_OVER_M,
        bounded_dissimilarity="not needed", client_sampling="no",
        source="Lin, Jin, Jordan 2020, batch shared by m clients; not in Table 1",
        names=("parallel-sgda",),
    ),
    Table1Row(
        method="Local SGDA", rounds=EPS_6_OVER_M, samples=LOCAL_SGDA,
        bounded_dissimilarity="needed", client_sampling="no",
        source="Deng, Mahdavi 2021",
        names=("local-sgda",),
    ),
    Table1Row(
        method="(Momentum) Local SGDA", rounds=EPS_3, samples=EPS_4_OVER_M,
        bounded_dissimilarity="needed", client_sampling="no",
        source="Sharma et al. 2022, a later analysis",
        names=("local-sgda", "momentum-local-sgda"),
    ),
    Table1Row(
        method="CD-MAGE", rounds=EPS_4_OVER_M, samples=EPS_4_OVER_M,
        bounded_dissimilarity="needed", client_sampling="yes",
        source="Xie et al. 2021",
        names=("cd-mage",),
    ),
    Table1Row(
        method="SAGDA", rounds=EPS_2, samples=EPS_4_OVER_M,
        bounded_dissimilarity="not needed", client_sampling="yes",
        source="SAGDA paper, Corollary 1; for m < M see docs/theory.md",
        names=("sagda-i", "sagda-ii"),
    ),
    Table1Row(
        method="FSGDA", rounds=EPS_2, samples=EPS_4_OVER_M,
        bounded_dissimilarity="needed", client_sampling="yes",
        source="SAGDA paper, Corollaries 2 and 3; rounds for m = M, else ε⁻⁴/m",
        names=("fsgda",),
    ),
)  # fmt: skip


class Counted(NamedTuple):
    """A row of the table, evaluated for one m, one epsilon and one K."""

    row: Table1Row
    samples: float
    rounds: float | None
    best_local_steps: float | None  # the smallest K that reaches `rounds`
    rounds_at: float | None  # rounds with the given K


def counted(cohort: int, epsilon: float, local_steps: int = 10) -> list[Counted]:
    """Evaluate every row of the table for m (`cohort`), `epsilon` and K.

    A round uses K samples of each client. So a method needs samples / K rounds, but
    never fewer than the rounds in the table.
    """
    K = check.integer("local_steps", local_steps, low=1)
    m = check.integer("cohort", cohort, low=1)
    epsilon = check.positive("epsilon", epsilon)
    check.real("epsilon", epsilon, low=1e-30, high=1.0)
    rows = []
    for row in TABLE:
        samples = row.samples.numeric(m, epsilon)
        rounds = best_local_steps = rounds_at = None
        if row.rounds is not None:
            rounds = row.rounds.numeric(m, epsilon)
            best_local_steps = max(1.0, samples / rounds)
            rounds_at = max(rounds, samples / K)
        rows.append(Counted(row, samples, rounds, best_local_steps, rounds_at))
    return rows
