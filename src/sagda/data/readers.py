"""Readers of data files, chosen by the ending. Errors name the line of the file.

This module reads named columns: CSV, Parquet, frames, and folders of clients. Readers
of files without column names are in `array_files.py`. Categories are in `encoding.py`.

| ending                                | format |
|---------------------------------------|--------|
| `.csv`, `.parquet`                    | named columns of numbers and categories; any column can be the label or the client |
| a folder of `.csv` or `.parquet` files | one file or one folder of files per client; its name is the name of the client |
| `.npz`                                | NumPy arrays `features` [rows, d], `label` [rows] and, optionally, `client` [rows] |
| a folder with `features.npy`          | also `label.npy` and, optionally, `client.npy`, mapped into memory: rows sorted by client stay on disk until they are used |
| `.libsvm`, `.svm`, `.svmlight`, `.t`, none | `label index:value ...`, with indices from 1 and `qid:number` for the client |

LIBSVM files may be compressed (`.bz2`, `.gz`).
"""  # noqa: E501 - the table reads better unbroken

import csv
from array import array
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sagda.check import BadValue
from sagda.data.array_files import read_folder, read_libsvm, read_npz
from sagda.data.encoding import (
    Column,
    Columns,
    Encoding,
    Where,
    check_missing,
    is_number,
    numbers,
)
from sagda.data.federation import Table

CLIENT = "client"  # the name of the column that is added for a folder of clients
ENDINGS = (".csv", ".parquet")
CELLS = 2**16  # the number of cells of a CSV file that are converted at a time
LIBSVM = (".libsvm", ".svm", ".svmlight", ".t", "")


class Roles(NamedTuple):
    """The roles of the columns of a file. Columns without a role are features.

    Args:
        label: the name of the label column; None for a prediction without labels.
        client: the name of the client column, if any.
        categorical: numeric columns that are categories.
        encoding: the encoding of the training data, for later rows. None learns a new
            encoding from the file.
        numeric: refuse text columns. Sites of a federation set it: no site sees the
            rows of others, so sites cannot agree on the values of a category.
        unused: a column that is ignored, if the file has it.
    """

    label: str | None
    client: str | None = None
    categorical: tuple[str, ...] = ()
    encoding: Encoding | None = None
    numeric: bool = False
    unused: str | None = None


def read_encoded(
    path: Path, roles: Roles, features: int | None = None
) -> tuple[Table, Encoding | None]:
    """Read a file or folder. Return the table, and the encoding of named columns.

    Args:
        path: the file or folder.
        roles: the roles of its columns.
        features: d, the number of features, for a LIBSVM file whose last features may
            all be zero.
    """
    if not path.exists():
        raise BadValue(f"data file {path} does not exist.")
    packed = path.suffix.lower() in (".bz2", ".gz")
    suffix = (path.with_suffix("").suffix if packed else path.suffix).lower()
    if is_clients(path) or (suffix in (".csv", ".parquet") and not packed):
        if is_clients(path):
            roles = roles._replace(client=roles.client or CLIENT)
        categories = [] if roles.encoding is None else roles.encoding.categories
        special = filter(None, (roles.label, roles.client, roles.unused))
        texts = {*special, *roles.categorical, *categories}
        return table_from(read_source(path, texts), roles)
    if roles.categorical or roles.encoding:
        raise BadValue(
            f"{path} must be a CSV or Parquet file, because columns need names here."
        )
    if path.is_dir():
        return read_folder(path, roles.label, roles.client), None
    if suffix == ".npz" and not packed:
        return read_npz(path, roles.label, roles.client), None
    if suffix in LIBSVM:
        return read_libsvm(path, roles.client, features), None
    raise BadValue(
        f"data file {path} must end in .csv, .parquet, .npz or .libsvm (or .svm, "
        ".svmlight, .t, also with .gz or .bz2); rename the file."
    )


class Source(NamedTuple):
    """The columns of a file before encoding."""

    columns: Columns
    where: Where  # gives the place of a row, for error messages

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))


def read_source(path: Path, texts: Collection[str] = ()) -> Source:
    """Read the columns of a CSV or Parquet file, or of a folder of clients.

    Args:
        path: the file or folder.
        texts: columns whose cells must stay strings, such as categories.
    """
    if path.is_dir():
        return read_clients(path, texts)
    if path.suffix.lower() == ".parquet":
        return read_parquet(path)
    try:
        with path.open(encoding="utf-8-sig") as file:
            return read_csv(csv.reader(file), path, texts)
    except UnicodeDecodeError as error:
        raise BadValue(f"{path} must be text in UTF-8: {error}.") from None


def read_csv(lines: Any, path: Path, texts: Collection[str]) -> Source:
    """Read the columns of a CSV file: numbers as float64, all others as strings.

    Cells are converted block by block. A whole file of Python strings would take eight
    times as much memory.

    Args:
        lines: the CSV reader.
        path: the file, for error messages.
        texts: columns whose cells must stay strings.
    """
    rows = rows_of(lines, path)
    header = [name.strip() for name in next(rows, [])]
    if not header:
        raise BadValue(f"{path} must have a header and at least one row, got no line.")
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise BadValue(
            f"{path}, line 1: column names must be different, found {twice[0]!r} twice."
        )
    parts: dict[str, list[np.ndarray]] = {name: [] for name in header}
    line = array("q")  # the line number of each row, for error messages

    def convert(block: list[list[str]]) -> None:
        for name, cells in zip(header, zip(*block, strict=True), strict=True):
            parts[name].append(parsed(cells, as_text=name in texts))

    block: list[list[str]] = []
    for row in filter(None, rows):
        if len(row) != len(header):
            raise BadValue(
                f"{path}, line {lines.line_num}: expected {len(header)} cells as in "
                f"the header, found {len(row)}."
            )
        block.append(row)
        line.append(lines.line_num)
        if len(block) * len(header) >= CELLS:
            convert(block)
            block = []
    if not line:
        raise BadValue(f"{path} must have a header and at least one row of features.")
    if block:
        convert(block)
    # If only some blocks of a column have texts, the column holds objects: numbers from
    # some blocks, strings from others. `is_numeric` refuses such a mix.
    columns = {name: np.concatenate(parts.pop(name)) for name in header}
    return Source(columns, lambda i: f"{path}, line {line[i]}")


def parsed(cells: Sequence[str], *, as_text: bool) -> np.ndarray:
    """Return the cells as float64 if all are numbers, or else as strings."""
    if not as_text:
        try:
            return np.array(list(map(float, cells)))
        except ValueError:
            pass
    return np.array([cell.strip() for cell in cells], object)


def rows_of(lines: Any, path: Path) -> Iterator[list[str]]:
    """Yield the rows of a CSV reader. An error names the line."""
    try:
        yield from lines
    except csv.Error as error:
        raise BadValue(
            f"{path}, line {lines.line_num}: {error}; check for an open quote."
        ) from None


def read_parquet(path: Path) -> Source:
    try:
        import duckdb
    except ImportError:
        raise BadValue(
            f"{path} needs duckdb, which is not installed; run "
            "pip install 'sagda[parquet]'."
        ) from None
    try:
        arrays = duckdb.read_parquet(str(path)).fetchnumpy()
    except duckdb.Error as error:
        raise BadValue(f"{path} is not a Parquet file: {error}.") from None
    columns = {name: plain(column) for name, column in arrays.items()}
    return checked(Source(columns, lambda i: f"{path}, row {i + 1}"), str(path))


def read_frame(frame: Any) -> Source:
    """Return the columns of a pandas or polars frame."""
    columns = {str(name): plain(frame[name].to_numpy()) for name in frame.columns}
    return checked(Source(columns, lambda i: f"the frame, row {i}"), "the frame")


def plain(column: Any) -> np.ndarray:
    """Return a column as an array of numbers or objects. Masked values become None."""
    if isinstance(column, np.ma.MaskedArray):
        if not column.mask.any():
            return column.data
        cells = column.data.astype(object)
        cells[column.mask] = None
        return cells
    array = np.asarray(column)
    return array if array.dtype.kind in "fiub" else array.astype(object)


def checked(source: Source, name: str) -> Source:
    if not source.columns or not source.rows:
        raise BadValue(f"{name} must have at least one row, got none.")
    return source


def is_clients(path: Path) -> bool:
    """Return whether `path` is a folder with one file or one folder per client."""
    return path.is_dir() and not (path / "features.npy").exists()


def read_clients(path: Path, texts: Collection[str]) -> Source:
    """Read all files of a folder of clients, and add a column of client names."""
    files = []
    for entry in sorted(path.iterdir()):
        if entry.is_dir():
            inner = sorted(f for f in entry.iterdir() if f.suffix.lower() in ENDINGS)
            files += [(entry.name, file) for file in inner]
        elif entry.suffix.lower() in ENDINGS:
            files.append((entry.stem, entry))
    if not files:
        raise BadValue(
            f"data folder {path} must contain features.npy, or a .csv or .parquet file "
            "for every client, got neither."
        )
    parts = [(name, file, read_source(file, texts)) for name, file in files]
    names = list(parts[0][2].columns)
    for _, file, part in parts:
        if sorted(part.columns) != sorted(names) or CLIENT in part.columns:
            raise BadValue(
                f"{file} must have the columns of {files[0][1].name} "
                f"({', '.join(names)}), and none named {CLIENT!r}, found "
                f"{', '.join(part.columns)}."
            )
    columns = {
        name: np.concatenate([part.columns[name] for *_, part in parts])
        for name in names
    }
    rows = [part.rows for *_, part in parts]
    columns[CLIENT] = np.repeat(np.array([name for name, *_ in parts], object), rows)
    ends = np.cumsum(rows)

    def where(i: int) -> str:
        part = int(np.searchsorted(ends, i, side="right"))
        return parts[part][2].where(i - (int(ends[part - 1]) if part else 0))

    return Source(columns, where)


def table_from(source: Source, roles: Roles) -> tuple[Table, Encoding]:
    """Return the columns as a table, and the encoding of its features."""
    label, client, encoding = roles.label, roles.client, roles.encoding
    for wanted in filter(None, (label, client)):
        if wanted not in source.columns:
            raise BadValue(
                f"{source.where(0).partition(',')[0]} must have a column {wanted!r}, "
                f"found {', '.join(source.columns)}."
            )
    special = label, client, roles.unused
    others = {k: v for k, v in source.columns.items() if k not in special}
    if encoding is None:
        if not others:
            raise BadValue(
                f"{source.where(0).partition(',')[0]} must have a header and at least "
                "one row of features."
            )
        if roles.numeric:
            encoding = Encoding(tuple(map(Column, others)))
        else:
            encoding = Encoding.learned(others, source.where, roles.categorical)
    features = encoding.features(others, source.where)
    labels = np.zeros(source.rows, np.float32)
    if label is not None:
        labels = label_values(label, source)
    owner = None
    if client is not None:
        owner = source.columns[client]
        check_missing(client, owner, source.where)
        owner = owner.astype(str) if owner.dtype.kind == "O" else owner
    return Table(features, labels, client=owner), encoding


def label_values(name: str, source: Source) -> np.ndarray:
    """Return the labels as numbers if all are numbers, or else as strings."""
    cells = source.columns[name]
    check_missing(name, cells, source.where)
    if cells.dtype.kind not in "fiub":
        texts = [str(cell) for cell in cells.tolist()]
        if not all(map(is_number, texts)):
            return np.array(texts)
        cells = numbers(name, np.array(texts, object), source.where)
    return cells.astype(np.float32)
