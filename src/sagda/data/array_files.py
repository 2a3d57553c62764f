"""Readers of files without column names: NPZ, folders of NumPy files, and LIBSVM.

All features in such files are numbers. `readers.py` chooses the reader of a file, and
reads files with named columns itself.
"""

import bz2
import gzip
import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from sagda.check import BadValue
from sagda.data.encoding import LARGEST, check_missing, is_number
from sagda.data.federation import Table, checked_table


def _check_number(cell: str, where: str) -> None:
    """Raise unless `cell` is a number that is finite in single precision."""
    if not is_number(cell):
        raise BadValue(f"{where} must be a number, found {cell!r}.")
    if not abs(float(cell)) <= LARGEST:
        raise BadValue(f"{where} must be finite in single precision, found {cell!r}.")


def read_npz(path: Path, label: str | None, client: str | None) -> Table:
    """Read the features, labels and clients of an NPZ file.

    Args:
        path: the file.
        label: the name of the array of labels, if any.
        client: the name of the array of clients, if any.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            columns = {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise BadValue(f"{path} is not an NPZ file of plain arrays: {error}.") from None
    return table_of(path, columns, label, client)


def read_folder(path: Path, label: str | None, client: str | None) -> Table:
    """Read a folder with one NumPy file per column, mapped into memory.

    Features in single precision are not copied, and so stay on disk until used.
    """
    columns = {}
    for name in filter(None, ("features", label, client)):
        file = path / f"{name}.npy"
        if not file.is_file():
            raise BadValue(
                f"data folder {path} must contain {file.name}, which is missing."
            )
        try:
            columns[name] = np.load(file, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise BadValue(
                f"{file} is not a NumPy file with one plain array: {error}."
            ) from None
    return table_of(path, columns, label, client)


def table_of(
    path: Path, columns: dict[str, np.ndarray], label: str | None, client: str | None
) -> Table:
    """Return the arrays as a table, after checks of their shapes and values.

    If `label` is None, as for a prediction, all labels are zero.
    """
    for wanted in filter(None, ("features", label, client)):
        if wanted not in columns:
            names = ", ".join(columns) or "none"
            raise BadValue(f"{path} must contain an array {wanted!r}, found {names}.")
    features = columns["features"]
    labels = np.zeros(features.shape[:1]) if label is None else columns[label]
    owner = None if client is None else columns[client]
    table = checked_table(
        Table(single(features), single(labels), client=owner), f"{path}: "
    )
    if owner is not None:
        check_missing(client or "", owner, lambda i: f"{path}, row {i}")
    return table


def single(column: np.ndarray) -> np.ndarray:
    """Return a column of numbers in single precision, and other columns unchanged."""
    if column.dtype.kind not in "fiub":
        return column
    with np.errstate(over="ignore"):
        return column.astype(np.float32, copy=False)


def read_libsvm(path: Path, client: str | None, width: int | None = None) -> Table:
    """Read a LIBSVM file, which may be compressed.

    Args:
        path: the file.
        client: "qid" if the file names the client of each row, or None.
        width: the number of features. It may exceed the largest index in the file,
            because files omit zeros. If it is None, the largest index is used.
    """
    from sklearn.datasets import load_svmlight_file

    if client not in (None, "qid"):
        raise BadValue(
            "`client` must be 'qid' for a LIBSVM file, because its columns have no "
            f"names, got {client!r}."
        )
    packed = path.read_bytes()
    unpack = {".bz2": bz2.decompress, ".gz": gzip.decompress}.get(path.suffix, bytes)
    try:
        text = unpack(packed)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise BadValue(f"{path} cannot be decompressed: {error}.") from None
    try:
        # The type stubs of scikit-learn allow only the type of each default.
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
                f"{path}: the data must have {width} features, so indices must be at "
                f"most {width}, got {features.shape[1]}."
            )
        features = np.pad(features, ((0, 0), (0, width - features.shape[1])))
    finite = np.isfinite(features).all() and np.isfinite(label).all()
    if len(label) == 0 or not finite:
        raise BadValue(
            _first_bad_line(path, text) or f"{path} must contain at least one row."
        )
    owner = parts[2] if client else None
    if owner is not None and len(owner) != len(label):
        raise BadValue(
            f"{path}: every row must name its client as qid:number, got "
            f"{len(owner)} of {len(label)} rows with qid."
        )
    return Table(features, label, client=owner)


def _first_bad_line(path: Path, text: bytes) -> str | None:
    """Return the error in the first line that is invalid, or None."""
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        label, *pairs = line.split("#")[0].split() or [""]
        where = f"{path}, line {number}"
        if not label:
            continue
        try:
            _check_number(label, f"{where}: the label")
            last = 0
            for pair in pairs:
                index, colon, value = pair.partition(":")
                if index == "qid" and colon:
                    continue
                if not colon or not index.isdecimal():
                    return f"{where}: expected index:value, found {pair!r}."
                if int(index) <= last:
                    return f"{where}: indices must increase from 1, found {pair!r}."
                _check_number(value, f"{where}: the value of feature {index}")
                last = int(index)
        except ValueError as error:
            return str(error)
    return None
