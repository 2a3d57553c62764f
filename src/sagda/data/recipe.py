"""`Recipe`: how a model's features are made from a file's columns, with their scaling.

It is stored next to a trained model, so that a prediction treats new rows as training
did. Scaling comes from sums that clients add up: no row leaves its client.
"""

from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sagda.check import BadValue
from sagda.data.encoding import Encoding
from sagda.data.federation import Federation, Table
from sagda.data.readers import Roles, read_encoded, read_frame, table_from


class FeatureMoments(NamedTuple):
    """Count, mean and squared deviations of one client's rows, or of several."""

    rows: int
    mean: np.ndarray  # [d]
    squares: np.ndarray  # [d], sums of squared distances from the mean

    @classmethod
    def of(cls, features: np.ndarray) -> "FeatureMoments":
        wide = np.asarray(features, np.float64)
        mean = wide.mean(axis=0)
        return cls(len(wide), mean, ((wide - mean) ** 2).sum(axis=0))

    def plus(self, other: "FeatureMoments") -> "FeatureMoments":
        """The moments of both sets of rows, without the cancellation of plain sums."""
        rows = self.rows + other.rows
        difference = other.mean - self.mean
        mean = self.mean + difference * other.rows / rows
        between = difference**2 * self.rows * other.rows / rows
        return FeatureMoments(rows, mean, self.squares + other.squares + between)


class Scaling(NamedTuple):
    """Features as the model gets them: (features - mean) / scale."""

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def from_clients(cls, parts: Iterable[FeatureMoments]) -> "Scaling":
        """Scale features to mean zero and deviation one; constant ones become zero."""
        total = reduce(FeatureMoments.plus, parts)
        deviation = np.sqrt(total.squares / total.rows)
        # A constant column has a deviation too, of rounding errors.
        tiny = 1e-7 * np.maximum(np.abs(total.mean), 1e-30)
        return cls(total.mean, np.where(deviation > tiny, deviation, 1.0))

    @classmethod
    def of(cls, federation: Federation) -> "Scaling":
        """The scaling from the moments of every client."""
        features = federation.data.features
        each = zip(federation.start, federation.size, strict=True)
        return cls.from_clients(FeatureMoments.of(features[a : a + n]) for a, n in each)

    @classmethod
    def none(cls, features: int) -> "Scaling":
        return cls(np.zeros(features), np.ones(features))

    def __call__(self, features: np.ndarray) -> np.ndarray:
        return (np.asarray(features, np.float64) - self.mean) / self.scale


def scaled(table: Table, scaling: Scaling) -> Table:
    """The table with scaled features in single precision."""
    return table._replace(features=scaling(table.features).astype(np.float32))


class Recipe(NamedTuple):
    """From columns to features, and from features to the model's input."""

    encoding: Encoding | None  # None: features have no names
    scaling: Scaling

    @property
    def width(self) -> int:
        return len(self.scaling.mean)

    def read(
        self,
        rows: Any,
        label: str | None,
        client: str | None = None,
        unused: str | None = None,
    ) -> Table:
        """The rows of a file or a frame with the model's features, and its labels."""
        roles = Roles(label, client, encoding=self.encoding, unused=unused)
        if isinstance(rows, str | Path):
            name, width = str(rows), self.width if self.encoding is None else None
            table, _ = read_encoded(Path(rows), roles, width)
        else:
            name = "the frame"
            table, _ = table_from(read_frame(rows), roles)
        width = table.features.shape[1]
        if width != self.width:
            raise BadValue(
                f"{name} must have {self.width} features, those of the training data, "
                f"found {width}."
            )
        return scaled(table, self.scaling)

    def as_json(self) -> dict[str, Any]:
        return {
            "columns": None if self.encoding is None else self.encoding.as_json(),
            "mean": np.asarray(self.scaling.mean).tolist(),
            "scale": np.asarray(self.scaling.scale).tolist(),
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Recipe":
        columns = stored["columns"]
        encoding = None if columns is None else Encoding.from_json(columns)
        return cls(encoding, Scaling(*(np.array(stored[k]) for k in ("mean", "scale"))))
