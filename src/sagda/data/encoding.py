"""Encoding of named columns as features: numbers unchanged, categories one-hot.

The values of a category are learned once, from training data, and stored with the
model. So every client and every later prediction has the same features in the same
order. Scaling of features is in `recipe.py`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sagda.check import BadValue

LARGEST = float(np.finfo(np.float32).max)
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")  # in lower case
TRUTH = {"true": 1.0, "false": 0.0}
SHOWN = 5  # the number of values that a message lists
MOST = 1000  # the largest number of values of a category

# Returns the place of a row for a message, such as `file.csv, line 7`.
Where = Callable[[int], str]
Columns = dict[str, np.ndarray]  # by name: numbers, or objects such as strings


class Column(NamedTuple):
    """A column of a file, which becomes one feature or one per value of a category."""

    name: str
    values: tuple[str, ...] | None = None  # of a category; None for numbers

    @property
    def features(self) -> list[str]:
        """The names of the features of this column."""
        if self.values is None:
            return [self.name]
        return [f"{self.name}={value}" for value in self.values]

    def encoded(self, cells: np.ndarray, where: Where) -> np.ndarray:
        """Return the features of this column, [rows, number of features].

        Args:
            cells: the values in the column.
            where: gives the place of a row, for error messages.
        """
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
                f"values in the training data ({known}), found "
                f"{str(texts[strange[0]])!r}."
            )
        return one.astype(np.float32)


class Encoding(NamedTuple):
    """The columns from which all features are made, in order."""

    columns: tuple[Column, ...]

    @classmethod
    def learned(
        cls, columns: Columns, where: Where, categorical: tuple[str, ...] = ()
    ) -> "Encoding":
        """Return the encoding of training data.

        Args:
            columns: the columns of the features.
            where: gives the place of a row, for error messages.
            categorical: numeric columns that are categories. Text columns always are.
        """
        for name in categorical:
            if name not in columns:
                raise BadValue(
                    "`categorical` must name columns of features, which are "
                    f"{', '.join(columns)}, got {name!r}."
                )
        learned = []
        for name, cells in columns.items():
            check_missing(name, cells, where)
            if name not in categorical and is_numeric(name, cells, where):
                learned.append(Column(name))
                continue
            values = tuple(np.unique(as_texts(cells)).tolist())
            if len(values) > MOST:
                raise BadValue(
                    f"column {name!r} must have at most {MOST} different values to be "
                    f"a category, found {len(values)}; remove the column."
                )
            learned.append(Column(name, values))
        return cls(tuple(learned))

    @property
    def categories(self) -> list[str]:
        """The names of the columns that are categories."""
        return [column.name for column in self.columns if column.values is not None]

    @property
    def names(self) -> list[str]:
        """The names of the features."""
        return [feature for column in self.columns for feature in column.features]

    def features(self, columns: Columns, where: Where) -> np.ndarray:
        """Return the features, [rows, d]. Other columns are ignored."""
        missing = [c.name for c in self.columns if c.name not in columns]
        if missing:
            raise BadValue(
                f"{where(0).partition(',')[0]} must have all columns of the training "
                f"data, but does not have {', '.join(missing[:SHOWN])}."
            )
        for column in self.columns:
            check_missing(column.name, columns[column.name], where)
        parts = [c.encoded(columns[c.name], where) for c in self.columns]
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")

    def as_json(self) -> list[dict[str, Any]]:
        return [column._asdict() for column in self.columns]

    @classmethod
    def from_json(cls, stored: list[dict[str, Any]]) -> "Encoding":
        values = lambda entry: entry["values"] and tuple(entry["values"])
        return cls(tuple(Column(entry["name"], values(entry)) for entry in stored))


def as_texts(cells: np.ndarray) -> np.ndarray:
    """Return the values as strings. Whole numbers of floats get no decimal point."""
    if cells.dtype.kind == "f":
        whole = lambda value: np.isfinite(value) and value == int(value)
        return np.array([str(int(v) if whole(v) else v) for v in cells])
    return np.array([str(cell).strip() for cell in cells.tolist()])


def is_missing(cell: Any) -> bool:
    if isinstance(cell, str):
        return cell.strip().lower() in MISSING
    return cell is None or type(cell).__name__ == "NAType" or cell != cell


def check_missing(name: str, cells: np.ndarray, where: Where) -> None:
    """Raise if the column has missing values. The message names the first such row."""
    if cells.dtype.kind in "fiub":
        missing = np.flatnonzero(np.isnan(cells))
    else:
        missing = np.flatnonzero(list(map(is_missing, cells.tolist())))
    if len(missing):
        raise BadValue(
            f"{where(int(missing[0]))}: column {name!r} must have no missing values, "
            f"found {len(missing)} from this row on; fill them in or remove the rows."
        )


def is_numeric(name: str, cells: np.ndarray, where: Where) -> bool:
    """Return whether all cells are numbers. Raise if only some cells are numbers."""
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
            f"{texts[first]!r}; if the column is a category, name it in `categorical`."
        )
    return all(fine)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def numbers(name: str, cells: np.ndarray, where: Where) -> np.ndarray:
    """Return the cells as float64. Raise unless they are finite in single precision."""
    if cells.dtype.kind not in "fiub":
        if not is_numeric(name, cells, where):
            raise BadValue(
                f"{where(0)}: column {name!r} must be a number, found "
                f"{str(cells[0])!r}."
            )
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
