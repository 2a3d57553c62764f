"""`History`: the table of a run's results, with one value per seed and evaluation.

`recorder.py` fills the table. The columns are defined in `problems/metrics.py`. Files
of histories are written in `runs`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sagda import check

TAIL = 100  # runs are compared by their mean over this number of last rounds

# Columns that count what a run has used. All other columns are metrics.
COUNTS = (
    "round", "gradients", "samples", "bytes_down", "bytes_up", "eval_bytes",
    "lost_rounds", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class History:
    """Columns of shape [seeds, evaluations]. The first evaluation is at the start.

    All counts are totals since the start. `gradients` and `samples` count one client
    that takes part in every round. `bytes_down` and `bytes_up` are sums over all
    clients. `seconds` is the time spent in rounds, without compilation.
    """

    seeds: tuple[int, ...]
    columns: dict[str, np.ndarray]

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[check.choice("column", column, self.columns)]

    @property
    def rounds(self) -> np.ndarray:
        """The rounds that were evaluated, as an array [evaluations]."""
        return self.columns["round"][0]

    def tail(self, column: str, rounds: int = TAIL) -> np.ndarray:
        """Return, for each seed, the mean of a column over the last `rounds` rounds.

        The evaluation at the start does not count.
        """
        check.integer("rounds", rounds, low=1)
        last = self.rounds > max(0, self.rounds[-1] - rounds)
        return self[column][:, last].mean(axis=1)

    def until(
        self, epsilon: float, column: str = "grad_phi_sq"
    ) -> dict[str, np.ndarray]:
        """Return the rounds, samples and bytes that each seed needs to reach `epsilon`.

        A seed reaches `epsilon` when `column` is at most `epsilon`. The values are NaN
        if it never does. `bytes` is the sum of both directions.
        """
        check.real("epsilon", epsilon)
        reached = self[column] <= epsilon
        first = reached.argmax(axis=1)[:, None]
        counts = {
            "rounds": self["round"],
            "samples": self["samples"],
            "bytes": self["bytes_down"] + self["bytes_up"],
        }
        at = lambda values: np.take_along_axis(values, first, 1)[:, 0]
        ever = reached.any(axis=1)
        return {name: np.where(ever, at(c), np.nan) for name, c in counts.items()}

    def rows(self) -> Iterator[dict[str, float | int]]:
        """Yield one dictionary per seed and evaluation."""
        for i, seed in enumerate(self.seeds):
            for j in range(len(self.rounds)):
                values = {name: c[i, j].item() for name, c in self.columns.items()}
                yield {"seed": seed, **values}


class HistoryBuffer:
    """A history to which rows can be added, and which can be read without a copy."""

    def __init__(self, seeds: tuple[int, ...]):
        self.seeds, self.count = seeds, 0
        self.columns: dict[str, np.ndarray] = {}  # [seeds, capacity >= count] each

    def resume(self, past: History) -> None:
        """Start with the rows of an earlier run."""
        self.count = len(past.rounds)
        self.columns = {name: np.array(column) for name, column in past.columns.items()}

    def append(self, row: Mapping[str, np.ndarray]) -> None:
        """Add a row: an array [seeds] for every column."""
        if not self.columns:
            self.columns = {name: value[:, None].copy() for name, value in row.items()}
        elif self.count == self.columns["round"].shape[1]:
            # The capacity doubles, so that adding n rows copies O(n) values.
            for name, column in self.columns.items():
                self.columns[name] = np.concatenate([column, column], axis=1)
        for name, column in self.columns.items():
            column[:, self.count] = row[name]
        self.count += 1

    @property
    def so_far(self) -> History:
        """The rows so far, as read-only views."""
        views = {name: column[:, : self.count] for name, column in self.columns.items()}
        for column in views.values():
            column.flags.writeable = False
        return History(self.seeds, views)

    @property
    def history(self) -> History:
        """A copy of the rows so far."""
        copies = {name: c[:, : self.count].copy() for name, c in self.columns.items()}
        return History(self.seeds, copies)
