"""`Traffic`: the messages, bytes and rows of a federated run, counted letter by letter.

The simulator computes the same columns of the history from traced programs
(`simulator.recorder`). The counts here include abandoned rounds and refused answers.
"""

from typing import Any, NamedTuple

import numpy as np

from sagda.algorithms.costs import PhaseCost
from sagda.simulator.recorder import used
from sagda.simulator.rounds import Tally


class Traffic(NamedTuple):
    """Totals of a run over all sites, since its start."""

    down: int = 0  # bytes of arrays from the server to sites, in rounds
    up: int = 0  # bytes of arrays from sites to the server, in rounds
    evaluation: int = 0  # bytes of arrays in evaluations, both directions
    framing: int = 0  # bytes that are not arrays, both directions
    lost: int = 0  # abandoned attempts at rounds
    seconds: float = 0.0  # the duration of all committed rounds
    # The dicts are replaced at every change, so these defaults are never changed.
    asked: dict[str, int] = {}  # noqa: RUF012 # letters sent, by phase
    answers: dict[str, int] = {}  # noqa: RUF012 # accepted replies, by phase
    rows: dict[str, int] = {}  # noqa: RUF012 # rows of the sites asked, by phase
    refused: dict[str, int] = {}  # noqa: RUF012 # refused answers, by code

    def plus(self, **amounts: Any) -> "Traffic":
        """Return a copy with the amounts added to the fields of those names.

        An amount that is a dict is added key by key.
        """
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
        """Return the columns of a history row that count gradients, bytes and time.

        Args:
            rounds: the number of committed rounds.
            phases: the costs of the phases of a round.
            opening: the costs of the phases of the opening exchange.
        """

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
