"""`Recipe`: the steps from the columns of a file to the input of a model.

A recipe has an encoding and a scaling. It is stored with a trained model, so that new
rows are prepared like the training data. The scaling is computed from sums over
clients, so no row leaves its client. Categories are in `encoding.py`.
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
    """The first two moments of the features, for the rows of one or more clients."""

    rows: int  # the number of rows
    mean: np.ndarray  # [d]
    squares: np.ndarray  # [d]: sums of squared differences from the mean

    @classmethod
    def of(cls, features: np.ndarray) -> "FeatureMoments":
        wide = np.asarray(features, np.float64)
        mean = wide.mean(axis=0)
        return cls(len(wide), mean, ((wide - mean) ** 2).sum(axis=0))

    def plus(self, other: "FeatureMoments") -> "FeatureMoments":
        """Return the moments of both sets of rows together.

        Plain sums of squares would lose digits by cancellation.
        """
        rows = self.rows + other.rows
        difference = other.mean - self.mean
        mean = self.mean + difference * other.rows / rows
        between = difference**2 * self.rows * other.rows / rows
        return FeatureMoments(rows, mean, self.squares + other.squares + between)


class Scaling(NamedTuple):
    """A scaling of features: the model receives (features - mean) / scale."""

    mean: np.ndarray  # [d]
    scale: np.ndarray  # [d]

    @classmethod
    def from_clients(cls, parts: Iterable[FeatureMoments]) -> "Scaling":
        """Return the scaling to mean 0 and standard deviation 1 over all rows.

        Constant features become 0.
        """
        total = reduce(FeatureMoments.plus, parts)
        deviation = np.sqrt(total.squares / total.rows)
        # Rounding errors give even a constant column a small deviation.
        tiny = 1e-7 * np.maximum(np.abs(total.mean), 1e-30)
        return cls(total.mean, np.where(deviation > tiny, deviation, 1.0))

    @classmethod
    def of(cls, federation: Federation) -> "Scaling":
        """Return the scaling for the rows of all clients of a federation."""
        features = federation.data.features
        each = zip(federation.start, federation.size, strict=True)
        return cls.from_clients(FeatureMoments.of(features[a : a + n]) for a, n in each)

    @classmethod
    def none(cls, features: int) -> "Scaling":
        return cls(np.zeros(features), np.ones(features))

    def __call__(self, features: np.ndarray) -> np.ndarray:
        return (np.asarray(features, np.float64) - self.mean) / self.scale


def scaled(table: Table, scaling: Scaling) -> Table:
    """Return the table with scaled features, in single precision."""
    return table._replace(features=scaling(table.features).astype(np.float32))


class Recipe(NamedTuple):
    """The encoding of columns as features, and the scaling of features."""

    encoding: Encoding | None  # None if the features have no names
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
        """Read rows as a table with the features that the model needs.

        Args:
            rows: the path of a file, or a frame.
            label: the label column, if any.
            client: the client column, if any.
            unused: a column that is ignored, if it exists.
        """
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
                f"{name} must have {self.width} features, as the training data, "
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
