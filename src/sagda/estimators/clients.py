"""Turn rows, labels and client labels in the form of scikit-learn into a federation.

Files are not read here: see `sagda.data.readers`.
"""

from typing import Any

import numpy as np

from sagda.check import BadValue
from sagda.data.encoding import is_missing
from sagda.data.federation import Federation, Table

LARGEST = 8e9  # bytes at most for all features in single precision


def take_column(X: Any, client: Any) -> tuple[Any, Any]:
    """Return the features and the client labels.

    If `client` is the name of a column of the frame `X`, this column is taken out.
    """
    if not isinstance(client, str):
        return X, client
    columns = getattr(X, "columns", None)
    if columns is None:
        raise BadValue(
            "`client` must be an array with the client of each row, or the name of a "
            f"column if X is a pandas or polars frame, got {client!r} with X of type "
            f"{type(X).__name__}."
        )
    if client not in list(columns):
        raise BadValue(
            f"`client` must name one of the columns {', '.join(map(str, columns))} of "
            f"X, got {client!r}."
        )
    return without_column(X, client), X[client]


def without_column(X: Any, name: str) -> Any:
    """Return the frame `X` without the column `name`.

    Return `X` unchanged if it is not a frame or has no such column.
    """
    columns = getattr(X, "columns", None)
    if columns is None or name not in list(columns):
        return X
    return X.drop(columns=name) if hasattr(X, "iloc") else X.drop(name)


def client_labels(client: Any, rows: int) -> np.ndarray:
    """Check `client` and return one client label per row.

    If `client` is None, all rows belong to one client.
    """
    if client is None:
        return np.zeros(rows, int)
    items = client if isinstance(client, list | tuple) else np.asarray(client).tolist()
    labels = np.asarray(client)
    if labels.shape != (rows,):
        raise BadValue(
            f"`client` must have shape ({rows},), one label per row, got "
            f"{labels.shape}."
        )
    # Check `items`, because in an array of texts a missing label becomes "nan".
    missing = [
        i
        for i, label in enumerate(items)
        if not isinstance(label, str) and is_missing(label)
    ]
    if missing:
        raise BadValue(
            f"`client` must name the client of every row, got {len(missing)} missing "
            f"labels, the first in row {missing[0]}."
        )
    return labels.astype(str) if labels.dtype == object else labels


def federation_of(
    features: np.ndarray, label: np.ndarray, order: np.ndarray, size: np.ndarray
) -> Federation:
    """Return a federation in which client i has the next `size[i]` rows of `order`.

    Rows of padding are added. So fits of similar size have the same shapes and share
    compiled programs.
    """
    table = Table(features.astype(np.float32), label.astype(np.float32))
    federation = Federation.of(table, order, size)
    rows = bucket(len(order))
    return federation.padded(rows, min(bucket(int(size.max())), rows))


def bucket(size: int) -> int:
    """Return `size` rounded up: to 8, or by an eighth of it at most."""
    step = max(1, 2 ** max(0, size.bit_length() - 4))
    return max(8, -(-size // step) * step)


def check_size(shape: tuple[int, ...]) -> None:
    """Raise `BadValue` if a dense copy of the rows would need too much memory."""
    size = 4.0 * shape[0] * shape[1]
    if size > LARGEST:
        raise BadValue(
            f"`X` must take at most {LARGEST / 1e9:.0f} GB as a dense array, got "
            f"{size / 1e9:.0f} GB for {shape[0]} rows of {shape[1]} features."
        )
