"""Counts of what a federated run has exchanged, made from the letters themselves.

The simulator computes the same columns from traced programs (`simulator.recorder`).
Here they are counted, so that failed rounds and refused answers are included.
"""

from typing import Any, NamedTuple

import numpy as np

from sagda.algorithms.costs import PhaseCost
from sagda.simulator.recorder import used
from sagda.simulator.rounds import Tally


class Traffic(NamedTuple):
    """Totals over all sites; byte counts are those of the arrays alone."""

    down: int = 0
    up: int = 0
    evaluation: int = 0  # bytes of evaluations, both directions
    framing: int = 0  # bytes that are not arrays, both directions
    lost: int = 0  # rounds that were abandoned
    seconds: float = 0.0  # in rounds that were committed
    asked: dict[str, int] = {}  # noqa: RUF012 # by phase; never changed in place
    answers: dict[str, int] = {}  # noqa: RUF012 # by phase
    rows: dict[str, int] = {}  # noqa: RUF012 # by phase, summed over the sites asked
    refused: dict[str, int] = {}  # noqa: RUF012 # by code

    def plus(self, **amounts: Any) -> "Traffic":
        """With amounts added to the fields of those names; a dict adds key by key."""
        sums: dict[str, Any] = {}
        for field, amount in amounts.items():
            total = getattr(self, field)
            if isinstance(amount, dict):
                more = {key: total.get(key, 0) + n for key, n in amount.items()}
                sums[field] = total | more
            else:
                sums[field] = total + amount
        return self._replace(**sums)

    def columns(
        self,
        rounds: int,
        phases: tuple[PhaseCost, ...],
        opening: tuple[PhaseCost, ...],
    ) -> dict[str, Any]:
        """The counting columns of a history row, as a simulated run has them."""

        def tally(costs: tuple[PhaseCost, ...]) -> Tally:
            of = lambda counts: np.array([[counts.get(c.name, 0) for c in costs]])
            return Tally(
                sent=of(self.asked),
                replied=of(self.answers),
                rows=of(self.rows),
                lost=np.zeros(1),
            )

        # The opening ran once, before all rounds.
        before = used(tally(opening), opening, 1)
        since = used(tally(phases), phases, rounds)
        both = lambda name: (before[name] + since[name])[0].item()
        return {
            "round": rounds,
            "gradients": both("gradients"),
            "samples": both("samples"),
            "bytes_down": self.down,
            "bytes_up": self.up,
            "eval_bytes": self.evaluation,
            "framing_bytes": self.framing,
            "lost_rounds": self.lost,
            "seconds": self.seconds,
        }
