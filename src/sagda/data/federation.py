"""`Table` and `Federation`: rows of data, and which client has which rows.

Both are NumPy arrays in the memory of the host. `sagda.simulator.setup` copies rows to
devices. `sagda.federation` is another thing: the network of real sites.
"""

import hashlib
from typing import Any, NamedTuple

import jax
import numpy as np

from sagda import check
from sagda.check import BadKind, BadValue
from sagda.core import PyTree

BLOCK = 2**20  # the number of rows that are checked at a time, to save memory


class Table(NamedTuple):
    """The rows of a classification data set, stored as columns.

    All columns have the rows on axis 0. Columns that are not needed are None.
    """

    features: Any  # [rows, d]
    label: Any  # [rows]: -1 and +1, or any classes before `datasets.binary`
    origin: Any = None  # [rows]: the class before `datasets.binary`
    client: Any = None  # [rows]: the name of the client, if the file has such a column
    position: Any = None  # [rows]: the number of the row within its client, from 0
    owner: Any = None  # [rows]: the number of the client, only for losses that use it


class Federation(NamedTuple):
    """A table sorted by client: client i has `size[i]` rows, starting at `start[i]`."""

    data: Any  # a `Table` or another pytree of columns, sorted by client
    order: np.ndarray  # [rows]: the number of each row in the table before sorting
    start: np.ndarray  # [clients]: the first row of each client
    size: np.ndarray  # [clients]: the number of rows of each client
    names: np.ndarray | None = None  # [clients], if the data have names of clients
    spare: int = 0  # the number of padding rows at the end, which have weight 0
    room: int = 0  # the number of rows of the largest client after padding

    @classmethod
    def of(cls, table: PyTree, order: np.ndarray, size: np.ndarray) -> "Federation":
        """Return the federation whose client i has the next `size[i]` rows of `order`.

        Args:
            table: the rows, as a `Table` or another pytree of columns.
            order: the numbers of the rows to use, those of client 0 first.
            size: the number of rows of each client.
        """
        order, size = np.asarray(order, np.int64), np.asarray(size, np.int64)
        if len(size) == 0 or size.min() < 1:
            raise BadValue("every client must have at least one row.")
        if len(order) != size.sum():
            raise BadValue(
                f"client sizes must add up to the number of rows, {len(order)}, got "
                f"{size.sum()}."
            )
        rows = len(jax.tree.leaves(table)[0])
        # If rows are sorted already, they are not copied. A memory-mapped file then
        # stays on disk.
        in_order = len(order) == rows and np.array_equal(order, np.arange(rows))
        if not in_order and len(np.unique(order)) != len(order):
            raise BadValue("each row must belong to at most one client.")
        start = np.cumsum(size) - size
        if isinstance(table, Table):
            table = checked_table(table)
        take = lambda column: column if in_order else column[order]
        data = jax.tree.map(lambda column: take(np.asanyarray(column)), table)
        if isinstance(data, Table):
            position = np.arange(len(order)) - np.repeat(start, size)
            data = data._replace(position=position.astype(np.int32))
        return cls(data, order, start, size)

    @property
    def clients(self) -> int:
        """M, the number of clients."""
        return len(self.size)

    @property
    def width(self) -> int:
        """d, the number of features of a row."""
        return self.data.features.shape[1]

    @property
    def owner(self) -> np.ndarray:
        """The number of the client of each row, [rows].

        Padding rows get the number of the last client.
        """
        owner = np.repeat(np.arange(self.clients), self.size)
        return np.pad(owner, (0, self.spare), mode="edge")

    @property
    def weight(self) -> np.ndarray:
        """The weight of each row, [rows]: 1 / (M n_i) for a client with n_i rows.

        For values per row, `weight @ values` is the mean over clients of client means.
        """
        weight = np.repeat(1 / (self.clients * self.size), self.size)
        return np.pad(weight, (0, self.spare))

    @property
    def widest(self) -> int:
        """The number of rows of the largest client, or `room` if `room` is larger."""
        return max(int(self.size.max()), self.room)

    def padded(self, rows: int, widest: int) -> "Federation":
        """Return the federation with padding rows.

        Federations of slightly different sizes can then share a compiled program.

        Args:
            rows: the number of rows after padding.
            widest: the number of rows of the largest client after padding.
        """
        more = rows - len(self.order)
        pad = lambda column: np.concatenate([column, np.repeat(column[:1], more, 0)])
        return self._replace(
            data=jax.tree.map(pad, self.data), spare=self.spare + more, room=widest
        )

    @property
    def content(self) -> str:
        """SHA-256 of the rows of all clients, in order. It identifies the data."""
        digest = hashlib.sha256(self.size.astype("<i8").tobytes())
        for column in jax.tree.leaves(self.data):
            digest.update(f"{column.dtype.str} {column.shape}".encode())
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    @property
    def hash(self) -> str:
        """A hash of the split of a table. Equal hashes mean equal splits."""
        digest = hashlib.sha256(self.size.astype("<i8").tobytes())
        digest.update(self.order.astype("<i8").tobytes())
        return digest.hexdigest()[:16]


class Facts(NamedTuple):
    """Four numbers about a federation, from which a problem is built without the rows.

    The sites of a real federation agree on them: no site sees the rows of others.
    """

    clients: int  # M, the number of clients
    width: int  # d, the number of features of a row
    rows: int  # the number of rows of the largest client
    tau: float  # the share of positive rows, a mean over clients

    @classmethod
    def of(cls, data: "Federation | Facts") -> "Facts":
        """Return the facts about a federation of labelled rows, or given facts."""
        if isinstance(data, Facts):
            return data
        tau = share_of_positives(data)
        return cls(data.clients, data.width, int(data.size.max()), tau)


def checked_table(table: Table, place: str = "") -> Table:
    """Return the table. Raise unless shapes fit together and numbers are finite.

    Args:
        table: the table.
        place: the start of an error message, such as `file.npz: `.
    """
    table = Table(*(None if c is None else np.asanyarray(c) for c in table))
    features = table.features
    if features.ndim != 2 or features.dtype.kind not in "fiub":
        raise BadValue(
            f"{place}`features` must be numbers of shape (rows, d), found "
            f"{features.dtype} of shape {features.shape}."
        )
    for name, column in table._asdict().items():
        if column is None or name == "features":
            continue
        if column.shape != features.shape[:1]:
            raise BadValue(
                f"{place}`{name}` must have shape ({len(features)},), one entry per "
                f"row of `features`, found {column.shape}."
            )
    for name, column in (("features", features), ("label", table.label[:, None])):
        row = first_not_finite(column)
        if row is not None:
            raise BadValue(
                f"{place}`{name}` must be finite in {column.dtype}, but row {row} is "
                "not."
            )
    return table


def first_not_finite(columns: np.ndarray) -> int | None:
    """Return the number of the first row with NaN or infinity, or None."""
    # Only floats can be NaN or infinite: other types skip the loop.
    for first in range(0, len(columns) * (columns.dtype.kind == "f"), BLOCK):
        finite = np.isfinite(columns[first : first + BLOCK]).all(axis=1)
        if not finite.all():
            return first + int(finite.argmin())
    return None


def check_rows(federation: Federation) -> None:
    """Raise unless the federation's data are a `Table`."""
    check.kind("federation", federation, Federation, "such as sagda.partition(table)")
    if not isinstance(federation.data, Table):
        raise BadKind(
            "`federation` must have a Table of labelled rows for this problem, got "
            f"{type(federation.data).__name__}; use sagda.partition(table)."
        )


def share_of_positives(federation: Federation) -> float:
    """Return tau, the share of positive rows, as a mean over clients.

    Raise unless labels are -1 and +1 and both occur.
    """
    check_rows(federation)
    label = federation.data.label
    classes = np.unique(label)
    if classes.dtype.kind not in "fiu" or not np.isin(classes, (-1, 1)).all():
        raise BadValue(
            f"labels must be -1 and +1, found {len(classes)} classes from {classes[0]} "
            f"to {classes[-1]}; use sagda.binary(table, positive=...)."
        )
    if len(classes) < 2:
        raise BadValue(
            f"labels must have both classes, found only {classes[0]:+g}; check the "
            "label column or the partition."
        )
    return float(federation.weight @ (label > 0))
