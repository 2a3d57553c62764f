"""Standardisation from what clients add up: counts, means and squared deviations.

No row leaves its client: each sends three numbers per feature, in one exchange.
"""

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

import numpy as np

from sagda.data.federation import Federation, Table


class FeatureMoments(NamedTuple):
    """Of one client's rows, or of several clients' together."""

    rows: int
    mean: np.ndarray  # [d]
    squares: np.ndarray  # [d], the sum of squared distances from the mean

    @classmethod
    def of(cls, features: np.ndarray) -> "FeatureMoments":
        wide = np.asarray(features, np.float64)
        mean = wide.mean(axis=0)
        return cls(len(wide), mean, ((wide - mean) ** 2).sum(axis=0))

    def plus(self, other: "FeatureMoments") -> "FeatureMoments":
        """Exact, without the loss of digits that plain sums of squares have."""
        rows = self.rows + other.rows
        away = other.mean - self.mean
        mean = self.mean + away * other.rows / rows
        between = away**2 * self.rows * other.rows / rows
        return FeatureMoments(rows, mean, self.squares + other.squares + between)


class Scaling(NamedTuple):
    """(features - mean) / scale."""

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def from_clients(cls, parts: Iterable[FeatureMoments]) -> "Scaling":
        """Every feature to mean zero and deviation one; a constant one to zero."""
        total = reduce(FeatureMoments.plus, parts)
        deviation = np.sqrt(total.squares / total.rows)
        # What is left of a constant column is rounding.
        tiny = 1e-7 * np.maximum(np.abs(total.mean), 1e-30)
        return cls(total.mean, np.where(deviation > tiny, deviation, 1.0))

    @classmethod
    def of(cls, federation: Federation) -> "Scaling":
        """From the moments of every client."""
        features = federation.data.features
        each = zip(federation.start, federation.size, strict=True)
        return cls.from_clients(FeatureMoments.of(features[a : a + n]) for a, n in each)

    @classmethod
    def none(cls, features: int) -> "Scaling":
        return cls(np.zeros(features), np.ones(features))

    def __call__(self, features: np.ndarray) -> np.ndarray:
        return (np.asarray(features, np.float64) - self.mean) / self.scale


def scaled(table: Table, scaling: Scaling) -> Table:
    return table._replace(features=scaling(table.features).astype(np.float32))
