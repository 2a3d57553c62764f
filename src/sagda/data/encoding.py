"""Named columns to features: numbers as they are, categories as zeros and a one.

What a category's values are is learned once and kept with the model: every client and
every later prediction must see the same features in the same places.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sagda.check import BadValue

LARGEST = float(np.finfo(np.float32).max)
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
TRUTH = {"true": 1.0, "false": 0.0}
SHOWN = 5  # values named in a message
MOST = 1000  # values that a category may have

Where = Callable[[int], str]  # names a row, such as `file.csv, line 7`
Columns = dict[str, np.ndarray]  # numbers, or texts


class Column(NamedTuple):
    """A column of a file: one feature, or one for each value of a category."""

    name: str
    values: tuple[str, ...] | None = None

    @property
    def width(self) -> int:
        return 1 if self.values is None else len(self.values)

    @property
    def features(self) -> list[str]:
        if self.values is None:
            return [self.name]
        return [f"{self.name}={value}" for value in self.values]

    def encoded(self, cells: np.ndarray, where: Where) -> np.ndarray:
        """[rows, width]."""
        if self.values is None:
            return numbers(self.name, cells, where)[:, None]
        texts = as_texts(cells)
        one = texts[:, None] == np.array(self.values)[None]
        strange = np.flatnonzero(~one.any(axis=1))
        if len(strange):
            known = ", ".join(self.values[:SHOWN])
            known += ", …" if len(self.values) > SHOWN else ""
            raise BadValue(
                f"{where(strange[0])}: column {self.name!r} must have one of the "
                f"values that training saw ({known}), found {str(texts[strange[0]])!r}."
            )
        return one.astype(np.float32)


class Encoding(NamedTuple):
    """The columns behind the features, in their order."""

    columns: tuple[Column, ...]

    @classmethod
    def learned(
        cls, columns: Columns, where: Where, categorical: tuple[str, ...] = ()
    ) -> "Encoding":
        """Texts are categories, and so are the columns named `categorical`."""
        for name in categorical:
            if name not in columns:
                raise BadValue(
                    f"`categorical` must name columns of features, no {name!r} among "
                    f"{', '.join(columns)}."
                )
        found = []
        for name, cells in columns.items():
            check_missing(name, cells, where)
            if name not in categorical and is_numeric(name, cells, where):
                found.append(Column(name))
                continue
            values = tuple(np.unique(as_texts(cells)).tolist())
            if len(values) > MOST:
                raise BadValue(
                    f"column {name!r} must have at most {MOST} different values to be "
                    f"a category, found {len(values)}; leave it out."
                )
            found.append(Column(name, values))
        return cls(tuple(found))

    @property
    def categories(self) -> list[str]:
        """The names of the columns that are categories."""
        return [column.name for column in self.columns if column.values is not None]

    @property
    def names(self) -> list[str]:
        """The names of the features."""
        return [feature for column in self.columns for feature in column.features]

    def features(self, columns: Columns, where: Where) -> np.ndarray:
        """[rows, d]; columns that are not needed are left alone."""
        missing = [own.name for own in self.columns if own.name not in columns]
        if missing:
            raise BadValue(
                f"{where(0).partition(',')[0]}: columns of the training data are not "
                f"there: {', '.join(missing[:SHOWN])}."
            )
        parts = []
        for own in self.columns:
            check_missing(own.name, columns[own.name], where)
            parts.append(own.encoded(columns[own.name], where))
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")

    def as_json(self) -> list[dict[str, Any]]:
        return [own._asdict() for own in self.columns]

    @classmethod
    def from_json(cls, stored: list[dict[str, Any]]) -> "Encoding":
        values = lambda own: None if own["values"] is None else tuple(own["values"])
        return cls(tuple(Column(own["name"], values(own)) for own in stored))


def as_texts(cells: np.ndarray) -> np.ndarray:
    """Values as they are written; whole numbers without a point."""
    if cells.dtype.kind == "f":
        whole = lambda value: np.isfinite(value) and value == int(value)
        return np.array([str(int(v) if whole(v) else v) for v in cells])
    return np.array([str(cell).strip() for cell in cells.tolist()])


def is_missing(cell: Any) -> bool:
    if cell is None or type(cell).__name__ == "NAType":
        return True
    if isinstance(cell, str):
        return cell.strip().lower() in MISSING
    return cell != cell


def check_missing(name: str, cells: np.ndarray, where: Where) -> None:
    if cells.dtype.kind in "iub":
        return
    if cells.dtype.kind == "f":
        gone = np.flatnonzero(np.isnan(cells))
    else:
        gone = np.array(
            [i for i, cell in enumerate(cells.tolist()) if is_missing(cell)]
        )
    if len(gone):
        raise BadValue(
            f"{where(int(gone[0]))}: column {name!r} has {len(gone)} missing values, "
            "the first one here; fill them in or leave the rows out."
        )


def is_numeric(name: str, cells: np.ndarray, where: Where) -> bool:
    """Whether all cells are numbers; some of them only is taken for a slip."""
    if cells.dtype.kind in "fiub":
        return True
    texts = [str(cell) for cell in cells.tolist()]
    if all(text.lower() in TRUTH for text in texts):
        return True
    fine = [is_number(text) for text in texts]
    if any(fine) and not all(fine):
        first = fine.index(False)
        raise BadValue(
            f"{where(first)}: column {name!r} must be a number, found "
            f"{texts[first]!r}; if it is a category, name it in `categorical`."
        )
    return all(fine)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def numbers(name: str, cells: np.ndarray, where: Where) -> np.ndarray:
    """As floats that single precision has room for."""
    is_numeric_text = cells.dtype.kind not in "fiub"
    if is_numeric_text and not is_numeric(name, cells, where):
        raise BadValue(
            f"{where(0)}: column {name!r} must be a number, found {str(cells[0])!r}."
        )
    if is_numeric_text:
        cells = np.array([TRUTH.get(str(c).lower(), c) for c in cells.tolist()], object)
    values = cells.astype(np.float64, copy=False)
    wrong = np.flatnonzero(~(np.abs(values) <= LARGEST))
    if len(wrong):
        i = int(wrong[0])
        raise BadValue(
            f"{where(i)}: column {name!r} must be finite in single precision, found "
            f"{str(cells[i])!r}."
        )
    return values
