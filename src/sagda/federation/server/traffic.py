"""Counts of what a federated run has exchanged, made from the letters themselves.

The simulator computes the same columns from traced programs (`simulator.recorder`).
Here they are counted, so that failed rounds and refused answers are included.
"""

from typing import Any, NamedTuple

import numpy as np

from sagda.algorithms.costs import PhaseCost
from sagda.simulator.recorder import used
from sagda.simulator.rounds import Tally


def plus(counts: dict[str, int], key: str, number: int = 1) -> dict[str, int]:
    """The counts with one of them increased."""
    return counts | {key: counts.get(key, 0) + number}


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

    def sent(self, phase: str, size: int, rows: int) -> "Traffic":
        """With an instruction to a site of `rows` rows."""
        return self._replace(
            down=self.down + size,
            asked=plus(self.asked, phase),
            rows=plus(self.rows, phase, rows),
        )

    def received(self, size: int) -> "Traffic":
        """With the arrays of an answer, accepted or not."""
        return self._replace(up=self.up + size)

    def replied(self, phase: str) -> "Traffic":
        """With an accepted reply."""
        return self._replace(answers=plus(self.answers, phase))

    def refusal(self, code: str) -> "Traffic":
        """With a refused answer."""
        return self._replace(refused=plus(self.refused, code))

    def abandoned(self) -> "Traffic":
        """With a round that was abandoned."""
        return self._replace(lost=self.lost + 1)

    def spent(self, seconds: float) -> "Traffic":
        """With the time of a committed round."""
        return self._replace(seconds=self.seconds + seconds)

    def framed(self, size: int) -> "Traffic":
        """With bytes that are not arrays."""
        return self._replace(framing=self.framing + size)

    def evaluated(self, size: int) -> "Traffic":
        """With the arrays of an evaluation."""
        return self._replace(evaluation=self.evaluation + size)

    def columns(
        self,
        rounds: int,
        phases: tuple[PhaseCost, ...],
        opening: tuple[PhaseCost, ...],
    ) -> dict[str, Any]:
        """The counting columns of a history row, as a simulated run has them."""

        def tally(costs: tuple[PhaseCost, ...]) -> Tally:
            of = lambda counts: np.array([[counts.get(c.name, 0) for c in costs]])
            rows = of(self.asked), of(self.answers), of(self.rows)
            return Tally(*rows, np.zeros(1))

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
