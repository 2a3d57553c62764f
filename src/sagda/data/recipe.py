"""`Recipe`: how the features of a model are made of a file's columns."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sagda.check import BadValue
from sagda.data.array_files import read_encoded
from sagda.data.encoding import Encoding
from sagda.data.federation import Table
from sagda.data.readers import read_frame, table_from
from sagda.data.scaling import Scaling, scaled


class Recipe(NamedTuple):
    """Columns to features, and features to what the model sees."""

    encoding: Encoding | None  # None: features have no names
    scaling: Scaling

    @property
    def width(self) -> int:
        return len(self.scaling.mean)

    def read(
        self,
        path: Path,
        label: str | None,
        client: str | None,
        unused: str | None = None,
    ) -> Table:
        """A file's rows as the model sees them; labels as they stand there."""
        own: dict[str, Any] = {"encoding": self.encoding, "unused": unused}
        if self.encoding is None:
            own["features"] = self.width
        table, _ = read_encoded(path, label, client, **own)
        return self.seen(table, str(path))

    def frame(self, frame: Any, label: str | None, unused: str | None = None) -> Table:
        """The same of a pandas or polars frame."""
        own: dict[str, Any] = {"encoding": self.encoding, "unused": unused}
        table, _ = table_from(read_frame(frame), label, None, **own)
        return self.seen(table, "the frame")

    def seen(self, table: Table, name: str) -> Table:
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
