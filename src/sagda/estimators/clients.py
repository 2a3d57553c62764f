"""Rows, labels and client labels of scikit-learn become a federation.

Files are read elsewhere, in `sagda.data.readers`.
"""

from typing import Any

import numpy as np

from sagda.check import BadValue
from sagda.data.encoding import is_missing
from sagda.data.federation import Federation, Table

LARGEST = 8e9  # bytes of features in single precision


def take_column(X: Any, client: Any) -> tuple[Any, Any]:
    """Features and client labels; `client` may name a column of a frame."""
    if not isinstance(client, str):
        return X, client
    columns = getattr(X, "columns", None)
    if columns is None:
        raise BadValue(
            f"`client` may name a column of a pandas or polars frame only, got "
            f"{client!r} with X of type {type(X).__name__}; give an array of labels."
        )
    if client not in list(columns):
        raise BadValue(
            f"`client` must name a column of X, no {client!r} among "
            f"{', '.join(map(str, columns))}."
        )
    return without_column(X, client), X[client]


def without_column(X: Any, name: str) -> Any:
    """The frame without this column; anything else unchanged."""
    columns = getattr(X, "columns", None)
    if columns is None or name not in list(columns):
        return X
    return X.drop(columns=name) if hasattr(X, "iloc") else X.drop(name)


def client_labels(client: Any, rows: int) -> np.ndarray:
    """One label per row; without labels, one client holds all rows."""
    if client is None:
        return np.zeros(rows, int)
    items = client if isinstance(client, list | tuple) else np.asarray(client).tolist()
    labels = np.asarray(client)
    if labels.shape != (rows,):
        raise BadValue(
            f"`client` must have shape ({rows},), one label per row, got "
            f"{labels.shape}."
        )
    # `items` and not `labels`: an array of texts turns a missing label into "nan".
    missing = [
        i
        for i, label in enumerate(items)
        if not isinstance(label, str) and is_missing(label)
    ]
    if missing:
        raise BadValue(
            f"`client` must name the client of every row, {len(missing)} are missing, "
            f"the first in row {missing[0]}."
        )
    return labels.astype(str) if labels.dtype == object else labels


def federation_of(
    features: np.ndarray, label: np.ndarray, order: np.ndarray, size: np.ndarray
) -> Federation:
    """A federation with padding rows: fits of similar size share compiled programs.

    Client i takes the next `size[i]` rows in the given order.
    """
    table = Table(features.astype(np.float32), label.astype(np.float32))
    federation = Federation.of(table, order, size)
    rows = bucket(len(order))
    return federation.padded(rows, min(bucket(int(size.max())), rows))


def bucket(size: int) -> int:
    """`size` rounded up, by an eighth at most.

    Fits of similar size then have the same shapes, and share compiled programs.
    """
    step = max(1, 2 ** max(0, size.bit_length() - 4))
    return max(8, -(-size // step) * step)


def check_size(shape: tuple[int, ...]) -> None:
    """Raise if the rows are too many to be made dense for training."""
    size = 4.0 * shape[0] * shape[1]
    if size > LARGEST:
        raise BadValue(
            f"X must be smaller: {shape[0]} rows of {shape[1]} features take "
            f"{size / 1e9:.0f} GB when they are dense, more than {LARGEST / 1e9:.0f}."
        )
