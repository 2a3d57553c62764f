"""What a federated run has exchanged so far, counted on the letters themselves."""

from typing import Any, NamedTuple

import numpy as np

from sagda.algorithms.costs import PhaseCost
from sagda.simulator.recorder import used
from sagda.simulator.rounds import Tally


def plus(counts: dict[str, int], key: str, number: int = 1) -> dict[str, int]:
    return counts | {key: counts.get(key, 0) + number}


class Traffic(NamedTuple):
    """Totals over all clients; bytes are those of the numbers alone."""

    down: int = 0
    up: int = 0
    looks: int = 0  # of evaluations, both directions
    framing: int = 0  # what was written around all of them
    lost: int = 0  # rounds that were abandoned
    seconds: float = 0.0  # in rounds that were committed
    asked: dict[str, int] = {}  # noqa: RUF012 # never changed in place
    answers: dict[str, int] = {}  # noqa: RUF012
    rows: dict[str, int] = {}  # noqa: RUF012 # of those who were asked, added up
    refused: dict[str, int] = {}  # noqa: RUF012 # by reason

    def sent(self, phase: str, size: int, rows: int) -> "Traffic":
        return self._replace(
            down=self.down + size,
            asked=plus(self.asked, phase),
            rows=plus(self.rows, phase, rows),
        )

    def came(self, size: int) -> "Traffic":
        return self._replace(up=self.up + size)

    def replied(self, phase: str) -> "Traffic":
        return self._replace(answers=plus(self.answers, phase))

    def refuse(self, code: str) -> "Traffic":
        return self._replace(refused=plus(self.refused, code))

    def lose(self) -> "Traffic":
        return self._replace(lost=self.lost + 1)

    def spend(self, seconds: float) -> "Traffic":
        return self._replace(seconds=self.seconds + seconds)

    def framed(self, size: int) -> "Traffic":
        return self._replace(framing=self.framing + size)

    def looked(self, size: int) -> "Traffic":
        return self._replace(looks=self.looks + size)

    def columns(
        self,
        rounds: int,
        phases: tuple[PhaseCost, ...],
        opening: tuple[PhaseCost, ...],
    ) -> dict[str, Any]:
        """The counting columns of a history row."""

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
            "eval_bytes": self.looks,
            "framing_bytes": self.framing,
            "lost_rounds": self.lost,
            "seconds": self.seconds,
        }
