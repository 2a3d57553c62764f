"""`Table` and `Federation`: rows of data, and which client holds which of them.

Both are on the host and describe data only. How rows reach a device is decided in
`sagda.simulator.setup`.
"""

import hashlib
from typing import Any, NamedTuple

import jax
import numpy as np

from sagda import check
from sagda.check import BadKind, BadValue
from sagda.core import PyTree

BLOCK = 2**20  # rows that are checked together


class Table(NamedTuple):
    """Rows of a classification problem, as columns."""

    features: Any  # [rows, d]
    label: Any  # [rows]; -1 and +1, or class numbers before `binary`
    origin: Any = None  # [rows], the class before `binary`
    client: Any = None  # [rows], the name of the row's client, if the data have it
    position: Any = None  # [rows], the number of the row within its client
    owner: Any = None  # [rows], the number of its client, for losses that need it


class Federation(NamedTuple):
    """A table sorted by client: client i holds `size[i]` rows from `start[i]` on."""

    data: Any  # columns [rows used, ...], sorted by client
    order: np.ndarray  # [rows used], each row's number in the original table
    start: np.ndarray  # [clients]
    size: np.ndarray  # [clients]
    names: np.ndarray | None = None  # [clients], if the data name them
    spare: int = 0  # padding rows at the end, without weight
    room: int = 0  # rows that programs allow for the largest client, if more

    @classmethod
    def of(cls, table: PyTree, order: np.ndarray, size: np.ndarray) -> "Federation":
        """Client i takes the next `size[i]` rows of `table`, in the given order."""
        order, size = np.asarray(order, np.int64), np.asarray(size, np.int64)
        if len(size) == 0 or size.min() < 1:
            raise BadValue("every client must hold at least one row.")
        if len(order) != size.sum():
            raise BadValue(
                f"client sizes add up to {size.sum()}, but {len(order)} rows are given."
            )
        rows = len(jax.tree.leaves(table)[0])
        # Rows in order are not copied: memory-mapped files stay on disk.
        in_order = len(order) == rows and np.array_equal(order, np.arange(rows))
        if not in_order and len(np.unique(order)) != len(order):
            raise BadValue("a row may belong to one client only.")
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
        """M."""
        return len(self.size)

    @property
    def width(self) -> int:
        """d, the features of a row."""
        return self.data.features.shape[1]

    @property
    def owner(self) -> np.ndarray:
        """[rows used], the client of each row. Padding rows count as the last one's."""
        owner = np.repeat(np.arange(self.clients), self.size)
        return np.pad(owner, (0, self.spare), mode="edge")

    @property
    def weight(self) -> np.ndarray:
        """[rows used], 1 / (M n_i): `weight @ values` is a mean of client means."""
        weight = np.repeat(1 / (self.clients * self.size), self.size)
        return np.pad(weight, (0, self.spare))

    @property
    def widest(self) -> int:
        """The rows of the largest client, or `room` if that is more."""
        return max(int(self.size.max()), self.room)

    def padded(self, rows: int, widest: int) -> "Federation":
        """The federation with padding rows, so that similar ones share programs."""
        more = rows - len(self.order)
        pad = lambda column: np.concatenate([column, np.repeat(column[:1], more, 0)])
        return self._replace(
            data=jax.tree.map(pad, self.data), spare=self.spare + more, room=widest
        )

    @property
    def content(self) -> str:
        """SHA-256 of every client's rows, in order: identifies the data."""
        digest = hashlib.sha256(self.size.astype("<i8").tobytes())
        for column in jax.tree.leaves(self.data):
            digest.update(f"{column.dtype.str} {column.shape}".encode())
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    @property
    def hash(self) -> str:
        """Identifies the split: equal hashes mean that clients hold the same rows."""
        digest = hashlib.sha256(self.size.astype("<i8").tobytes())
        digest.update(self.order.astype("<i8").tobytes())
        return digest.hexdigest()[:16]


class Facts(NamedTuple):
    """What problems need to know about the data: four numbers clients can agree on."""

    clients: int  # M
    width: int  # d, the features of a row
    rows: int  # of the largest client
    tau: float  # the share of positives, a mean over clients

    @classmethod
    def of(cls, data: "Federation | Facts") -> "Facts":
        """Count them in a federation of labelled rows. Facts are returned unchanged."""
        if isinstance(data, Facts):
            return data
        tau = share_of_positives(data)
        return cls(data.clients, data.width, int(data.size.max()), tau)


def checked_table(table: Table, place: str = "") -> Table:
    """The table with columns of one length and finite numbers, or an error.

    The message starts with `place`, such as `file.npz: `.
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
                f"{place}`{name}` must have shape ({len(features)},) as `features` "
                f"has rows, found {column.shape}."
            )
    for name, column in (("features", features), ("label", table.label[:, None])):
        row = first_not_finite(column)
        if row is not None:
            raise BadValue(
                f"{place}`{name}` must be finite in {column.dtype}, row {row} is not."
            )
    return table


def first_not_finite(columns: np.ndarray) -> int | None:
    """The first row with a value that is not finite, or None; only floats can be so."""
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
            "this problem needs a federation of labelled rows, got one of "
            f"{type(federation.data).__name__}; use sagda.partition(table)."
        )


def share_of_positives(federation: Federation) -> float:
    """tau, a mean over clients. Raises unless labels are -1 and +1, both present."""
    check_rows(federation)
    label = federation.data.label
    classes = np.unique(label)
    if classes.dtype.kind not in "fiu" or not np.isin(classes, (-1, 1)).all():
        raise BadValue(
            f"labels must be -1 and +1, found {len(classes)} classes from {classes[0]} "
            f"to {classes[-1]}; sagda.binary(table, positive=...) makes them so."
        )
    if len(classes) < 2:
        raise BadValue(
            f"labels must be of both classes, found only {classes[0]:+g}; check the "
            "label column or the partition."
        )
    return float(federation.weight @ (label > 0))
