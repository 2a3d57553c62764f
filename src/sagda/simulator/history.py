"""`History`: what a run measured, one value per seed and evaluated round."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sagda import check

TAIL = 100  # rounds at the end, over which runs are judged

# Columns that say what a run used, not what it found.
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

        The start, before any round, is not among them.
        """
        check.integer("rounds", rounds, low=1)
        last = self.rounds > max(0, self.rounds[-1] - rounds)
        return self[column][:, last].mean(axis=1)

    def until(
        self, epsilon: float, column: str = "grad_phi_sq"
    ) -> dict[str, np.ndarray]:
        """Rounds, samples and bytes until `column` first is at most `epsilon`, by seed.

        `bytes` are those of both directions. NaN where a seed never came there.
        """
        check.real("epsilon", epsilon)
        reached = self[column] <= epsilon
        first = reached.argmax(axis=1)[:, None]
        at = lambda values: np.where(
            reached.any(axis=1), np.take_along_axis(values, first, 1)[:, 0], np.nan
        )
        both = self["bytes_down"] + self["bytes_up"]
        return {
            "rounds": at(self["round"]),
            "samples": at(self["samples"]),
            "bytes": at(both),
        }

    def rows(self) -> Iterator[dict[str, float | int]]:
        """One dictionary per seed and evaluation."""
        for i, seed in enumerate(self.seeds):
            for j in range(len(self.rounds)):
                values = {name: c[i, j].item() for name, c in self.columns.items()}
                yield {"seed": seed, **values}


class HistoryBuffer:
    """A history that grows row by row; to look at it costs little at any length."""

    def __init__(self, seeds: tuple[int, ...]):
        self.seeds, self.count = seeds, 0
        self.room: dict[str, np.ndarray] = {}  # [seeds, more than `count`] each

    def resume(self, past: History) -> None:
        """Start with the rows of an earlier run."""
        self.count = len(past.rounds)
        self.room = {name: np.array(column) for name, column in past.columns.items()}

    def append(self, row: Mapping[str, np.ndarray]) -> None:
        """One value per seed in every column."""
        if not self.room:
            self.room = {name: value[:, None].copy() for name, value in row.items()}
        elif self.count == self.room["round"].shape[1]:
            twice = lambda column: np.concatenate([column, column], axis=1)
            self.room = {name: twice(column) for name, column in self.room.items()}
        for name, column in self.room.items():
            column[:, self.count] = row[name]
        self.count += 1

    @property
    def so_far(self) -> History:
        """The rows as they stand, without a copy and not to be written to."""
        seen = {name: column[:, : self.count] for name, column in self.room.items()}
        for column in seen.values():
            column.flags.writeable = False
        return History(self.seeds, seen)

    @property
    def history(self) -> History:
        """The rows as they stand."""
        kept = {name: c[:, : self.count].copy() for name, c in self.room.items()}
        return History(self.seeds, kept)
