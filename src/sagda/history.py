"""`History`: what a run measured, one value per seed and evaluated round."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sagda import check


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

    def tail(self, column: str, rounds: int = 100) -> np.ndarray:
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

    def followed_by(self, other: "History") -> "History":
        """This history with a later one's rows behind it."""
        columns = {
            name: np.concatenate([column, other.columns[name]], axis=1)
            for name, column in self.columns.items()
        }
        return History(self.seeds, columns)
