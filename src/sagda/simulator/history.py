"""`History`: what a run measured, one value per seed and evaluated round.

How the columns are measured and labelled is in `problems.metrics`. `recorder.py` fills
them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sagda import check

TAIL = 100  # last rounds, over whose mean runs are compared

# Columns that count what a run used. The others measure what it achieved.
COUNTS = (
    "round", "gradients", "samples", "bytes_down", "bytes_up", "eval_bytes",
    "lost_rounds", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class History:
    """Columns of shape [seeds, evaluations]; the first evaluation is the start.

    `gradients` and `samples` are totals of one participating client, `bytes_down` and
    `bytes_up` totals over all clients, `seconds` the time in rounds without compiling.
    """

    seeds: tuple[int, ...]
    columns: dict[str, np.ndarray]

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[check.choice("column", column, self.columns)]

    @property
    def rounds(self) -> np.ndarray:
        """[evaluations], the evaluated rounds."""
        return self.columns["round"][0]

    def tail(self, column: str, rounds: int = TAIL) -> np.ndarray:
        """Each seed's mean over the evaluations in the last `rounds` rounds.

        The evaluation of the start is left out.
        """
        check.integer("rounds", rounds, low=1)
        last = self.rounds > max(0, self.rounds[-1] - rounds)
        return self[column][:, last].mean(axis=1)

    def until(
        self, epsilon: float, column: str = "grad_phi_sq"
    ) -> dict[str, np.ndarray]:
        """Rounds, samples and bytes until `column` is at most `epsilon`, by seed.

        `bytes` counts both directions. NaN for a seed that never reaches `epsilon`.
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
        """One dictionary per seed and evaluation."""
        for i, seed in enumerate(self.seeds):
            for j in range(len(self.rounds)):
                values = {name: c[i, j].item() for name, c in self.columns.items()}
                yield {"seed": seed, **values}


class HistoryBuffer:
    """A history that grows row by row, and is read without a copy."""

    def __init__(self, seeds: tuple[int, ...]):
        self.seeds, self.count = seeds, 0
        self.columns: dict[str, np.ndarray] = {}  # [seeds, capacity >= count] each

    def resume(self, past: History) -> None:
        """Continue the rows of an earlier run."""
        self.count = len(past.rounds)
        self.columns = {name: np.array(column) for name, column in past.columns.items()}

    def append(self, row: Mapping[str, np.ndarray]) -> None:
        """One value per seed in every column."""
        if not self.columns:
            self.columns = {name: value[:, None].copy() for name, value in row.items()}
        elif self.count == self.columns["round"].shape[1]:
            for name, column in self.columns.items():
                self.columns[name] = np.concatenate([column, column], axis=1)
        for name, column in self.columns.items():
            column[:, self.count] = row[name]
        self.count += 1

    @property
    def so_far(self) -> History:
        """The rows so far, as views that cannot be written to."""
        views = {name: column[:, : self.count] for name, column in self.columns.items()}
        for column in views.values():
            column.flags.writeable = False
        return History(self.seeds, views)

    @property
    def history(self) -> History:
        """A copy of the rows so far."""
        copies = {name: c[:, : self.count].copy() for name, c in self.columns.items()}
        return History(self.seeds, copies)
