"""Readers for files of one's own; a mistake in a file is named with its line.

| ending                                | format |
|---------------------------------------|--------|
| `.csv`                                | a header line, then numbers; any column may be the label or the client |
| `.npz`                                | NumPy arrays `features` [rows, d], `label` [rows] and, if wanted, `client` |
| a folder                              | `features.npy`, `label.npy` and, if wanted, `client.npy`, mapped into memory and not read: rows sorted by client stay on disk until they are used |
| `.libsvm`, `.svm`, `.svmlight`, `.t`, none | `label index:value ...`, indices from 1, `qid:number` for the client |

LIBSVM files may be packed (`.bz2`, `.gz`).
"""  # noqa: E501 - the table reads better unbroken

import bz2
import csv
import gzip
import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from sagda.check import BadValue
from sagda.data.federation import Table, first_not_finite

LARGEST = float(np.finfo(np.float32).max)
LIBSVM = (".libsvm", ".svm", ".svmlight", ".t", "")


def read_file(
    path: Path, label: str, client: str | None, features: int | None = None
) -> Table:
    """The table in `path`, labels as they stand there."""
    if path.is_dir():
        return read_folder(path, label, client)
    if not path.is_file():
        raise BadValue(f"data file {path} does not exist.")
    packed = path.suffix.lower() in (".bz2", ".gz")
    suffix = (path.with_suffix("").suffix if packed else path.suffix).lower()
    if suffix == ".csv" and not packed:
        return read_csv(path, label, client)
    if suffix == ".npz" and not packed:
        return read_npz(path, label, client)
    if suffix in LIBSVM:
        return read_libsvm(path, client, features)
    raise BadValue(
        f"data file {path} must end in .csv, .npz or .libsvm (or .svm, .svmlight, .t, "
        "packed or not) to show its format."
    )


def read_csv(path: Path, label: str, client: str | None) -> Table:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadValue(f"{path} must be text in UTF-8: {error}.") from None
    with io.StringIO(text, newline="") as file:
        lines = csv.reader(file)
        header = [name.strip() for name in next(lines, [])]
        if not header:
            raise BadValue(f"{path} must hold a header and at least one row, is empty.")
        twice = [name for name in header if header.count(name) > 1]
        if twice:
            raise BadValue(f"{path}, line 1: column {twice[0]!r} stands there twice.")
        for wanted in filter(None, (label, client)):
            if wanted not in header:
                raise BadValue(
                    f"{path}, line 1: no column {wanted!r} among {', '.join(header)}."
                )
        aside = {label, client}
        numbers, others = [], {name: [] for name in aside if name}
        for cells in lines:
            if not cells:
                continue
            if len(cells) != len(header):
                raise BadValue(
                    f"{path}, line {lines.line_num}: expected {len(header)} cells as "
                    f"in the header, found {len(cells)}."
                )
            row = dict(zip(header, cells, strict=True))
            for name, column in others.items():
                if not row[name].strip():
                    raise BadValue(
                        f"{path}, line {lines.line_num}: column {name!r} is empty."
                    )
                column.append((row[name].strip(), lines.line_num))
            numbers.append(
                [
                    _number(cell, f"{path}, line {lines.line_num}: column {name!r}")
                    for name, cell in row.items()
                    if name not in aside
                ]
            )
    if not numbers or not numbers[0]:
        raise BadValue(f"{path} must hold a header and at least one row of features.")
    return Table(
        np.array(numbers, np.float32),
        _labels(path, others[label]),
        client=np.array([cell for cell, _ in others[client]]) if client else None,
    )


def _number(cell: str, where: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise BadValue(f"{where} must be a number, found {cell!r}.") from None
    if not abs(value) <= LARGEST:
        raise BadValue(f"{where} must be finite in single precision, found {cell!r}.")
    return value


def _labels(path: Path, cells: list[tuple[str, int]]) -> np.ndarray:
    """Numbers if all of them are, else names."""
    try:
        numbers = [float(cell) for cell, _ in cells]
    except ValueError:
        return np.array([cell for cell, _ in cells])
    for value, (cell, line) in zip(numbers, cells, strict=True):
        if not math.isfinite(value):
            raise BadValue(
                f"{path}, line {line}: the label must be finite, found {cell!r}."
            )
    return np.array(numbers, np.float32)


def read_npz(path: Path, label: str, client: str | None) -> Table:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            columns = {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise BadValue(f"{path} is not an NPZ file of plain arrays: {error}.") from None
    return table_of(path, columns, label, client)


def read_folder(path: Path, label: str, client: str | None) -> Table:
    """Columns that are mapped, not read: single precision is taken as it is."""
    columns = {}
    for name in filter(None, ("features", label, client)):
        file = path / f"{name}.npy"
        if not file.is_file():
            raise BadValue(f"data folder {path} must hold {file.name}, it does not.")
        try:
            columns[name] = np.load(file, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError) as error:
            raise BadValue(
                f"{file} is not a file of one plain array: {error}."
            ) from None
    return table_of(path, columns, label, client)


def table_of(
    path: Path, columns: dict[str, np.ndarray], label: str, client: str | None
) -> Table:
    """Arrays as a table, after a look at their shapes and values."""
    for wanted in filter(None, ("features", label, client)):
        if wanted not in columns:
            found = ", ".join(columns) or "none"
            raise BadValue(f"{path}: no array {wanted!r}, found {found}.")
    features, labels = columns["features"], columns[label]
    if features.ndim != 2 or features.dtype.kind not in "fiub":
        raise BadValue(
            f"{path}: `features` must be numbers of shape (rows, d), found "
            f"{features.dtype} of shape {features.shape}."
        )
    rows = len(features)
    for name in filter(None, (label, client)):
        if columns[name].shape != (rows,):
            raise BadValue(
                f"{path}: `{name}` must have shape ({rows},) as `features` has rows, "
                f"found {columns[name].shape}."
            )
    if labels.dtype.kind in "fiub":
        labels = labels.astype(np.float32, copy=False)
    with np.errstate(over="ignore"):
        features = features.astype(np.float32, copy=False)
    for name, column in (("features", features), (label, labels[:, None])):
        bad = first_not_finite(column) if column.dtype.kind == "f" else None
        if bad is not None:
            raise BadValue(
                f"{path}: `{name}` must be finite in single precision, row {bad} is "
                "not."
            )
    who = None if client is None else columns[client]
    return Table(features, labels, client=who)


def read_libsvm(path: Path, client: str | None, width: int | None = None) -> Table:
    from sklearn.datasets import load_svmlight_file

    if client not in (None, "qid"):
        raise BadValue(
            f"`client` must be 'qid' for a LIBSVM file, which has no columns, got "
            f"{client!r}."
        )
    packed = path.read_bytes()
    unpack = {".bz2": bz2.decompress, ".gz": gzip.decompress}.get(path.suffix, bytes)
    try:
        text = unpack(packed)
    except (OSError, EOFError) as error:
        raise BadValue(f"{path} cannot be unpacked: {error}.") from None
    try:
        # scikit-learn's stubs take the type of a default for the only one.
        options: Any = {"zero_based": False, "query_id": bool(client)}
        parts: Any = load_svmlight_file(io.BytesIO(text), **options)
    except (ValueError, OverflowError) as error:
        raise BadValue(_first_bad_line(path, text) or f"{path}: {error}") from None
    with np.errstate(over="ignore"):
        features = parts[0].toarray().astype(np.float32)
        label = parts[1].astype(np.float32)
    if width is not None:
        if features.shape[1] > width:
            raise BadValue(
                f"`features` must be at least {features.shape[1]}, the largest index "
                f"in {path}, got {width}."
            )
        features = np.pad(features, ((0, 0), (0, width - features.shape[1])))
    finite = np.isfinite(features).all() and np.isfinite(label).all()
    if len(label) == 0 or not finite:
        raise BadValue(
            _first_bad_line(path, text) or f"{path} must hold at least one row."
        )
    return Table(features, label, client=parts[2] if client else None)


def _first_bad_line(path: Path, text: bytes) -> str | None:
    """What is wrong with the first line that is not `label index:value ...`."""
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        label, *pairs = line.split("#")[0].split() or [""]
        where = f"{path}, line {number}"
        if not label:
            continue
        try:
            _number(label, f"{where}: the label")
            last = 0
            for pair in pairs:
                index, colon, value = pair.partition(":")
                if index == "qid" and colon:
                    continue
                if not colon or not index.isdecimal():
                    return f"{where}: expected index:value, found {pair!r}."
                if int(index) <= last:
                    return f"{where}: indices must rise from 1, found {pair!r}."
                _number(value, f"{where}: the value of feature {index}")
                last = int(index)
        except ValueError as error:
            return str(error)
    return None
