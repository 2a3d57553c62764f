"""`sagda.load`: data sets with a name, and your own files and frames.

A new data set is one function that returns a `Dataset` and one line in `DATASETS`. How
files are parsed is in `readers.py`.
"""

import bz2
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from sagda import check
from sagda.check import BadKind, BadValue
from sagda.data.encoding import Encoding, is_number
from sagda.data.federation import Table
from sagda.data.mnist import read_mnist
from sagda.data.readers import Roles, read_encoded, read_frame, table_from
from sagda.keys import generator


class Dataset(NamedTuple):
    """A training table and, if there is one, a test table."""

    name: str
    train: Table
    test: Table | None = None
    encoding: Encoding | None = None  # if columns have names


def binary(table: Table, positive: Any = None) -> Table:
    """The table with labels +1 for the class `positive` and -1 for all others.

    `positive` may be left out if labels are two numbers: it is the larger one.
    """
    check.kind("table", table, Table, "such as load(name).train")
    classes = np.unique(table.label)
    numeric = classes.dtype.kind in "fiu"
    if isinstance(positive, str) and numeric:
        positive = number(positive)
    if len(classes) < 2:
        raise BadValue(
            f"labels must be of two classes or more, found only {classes[0]!s}."
        )
    shown = ", ".join(map(str, classes[:10]))
    if positive is None:
        if len(classes) > 2 or not numeric:
            raise BadValue(
                f"`positive` must name the positive class when labels are not two "
                f"numbers, found {len(classes)} classes: {shown}."
            )
        positive = classes[-1]
    elif positive not in classes.tolist():
        raise BadValue(
            f"`positive` must be one of the labels {shown}, got {positive!r}."
        )
    label = np.where(table.label == positive, 1.0, -1.0).astype(np.float32)
    return table._replace(label=label, origin=table.label)


def number(text: str) -> float | str:
    """The label as a number, if the text is one."""
    return float(text) if is_number(text) else text


def balanced(table: Table, *, per_class: int, seed: int = 0) -> Table:
    """`per_class` rows of each class, drawn at random."""
    check.kind("table", table, Table, "such as load(name).train")
    check.integer("per_class", per_class, low=1)
    rng, chosen = generator(seed, "balanced"), []
    for label in np.unique(table.label):
        rows = np.flatnonzero(table.label == label)
        if len(rows) < per_class:
            raise BadValue(
                f"`per_class` must be at most {len(rows)}, the rows of class "
                f"{label:g}, got {per_class}."
            )
        chosen.append(rng.permutation(rows)[:per_class])
    order = np.sort(np.concatenate(chosen))
    return jax.tree.map(lambda column: column[order], table)


def load_a9a() -> Dataset:
    """a9a: 123 binary features of census rows, +1 for an income above 50,000.

    32,561 training rows and 16,281 test rows. They are part of the package.

    Examples:
        >>> load_a9a().train.features.shape
        (32561, 123)
    """
    from sklearn.datasets import load_svmlight_file

    def part(name: str) -> Table:
        packed = resources.files("sagda.data").joinpath("embedded", name).read_bytes()
        text = io.BytesIO(bz2.decompress(packed))
        features, label, *_ = load_svmlight_file(text, n_features=123)
        dense: Any = features.toarray()  # type: ignore[union-attr] # sparse, always
        return Table(dense.astype(np.float32), label.astype(np.float32))

    return Dataset("a9a", part("a9a.bz2"), part("a9a.t.bz2"))


def load_digits(positive: int | None = None) -> Dataset:
    """Digits of 8 x 8 pixels from scikit-learn: 1,437 training and 360 test rows."""
    from sklearn.datasets import load_digits as digits

    pixels, label = digits(return_X_y=True)
    table = Table((pixels / 16).astype(np.float32), label.astype(np.float32))
    if positive is not None:
        table = binary(table, positive)
    cut = lambda rows: jax.tree.map(lambda column: column[rows], table)
    return Dataset("digits", cut(slice(1437)), cut(slice(1437, None)))


def load_mnist(
    positive: int | None = None, directory: str | Path | None = None
) -> Dataset:
    """MNIST: 60,000 training and 10,000 test images of 784 pixels in [0, 1].

    Args:
        positive: the digit to tell from the rest. If None, labels stay 0 to 9.
        directory: the folder of the IDX files, by default `SAGDA_DATA_DIR`. Without
            either they are downloaded once, checked and cached.
    """
    parts = {
        part: Table((pixels / np.float32(255)).reshape(-1, 784), label)
        for part, (pixels, label) in read_mnist(directory).items()
    }
    if positive is not None:
        parts = {part: binary(table, positive) for part, table in parts.items()}
    return Dataset("mnist", parts["train"], parts["t10k"])


def load_file(
    path: str | Path,
    *,
    label: str = "label",
    client: str | None = None,
    positive: Any = None,
    features: int | None = None,
    categorical: Sequence[str] = (),
) -> Dataset:
    """Your own file, read by its ending (see `sagda.data.readers`).

    Args:
        path: the file, or a folder with one file for every client.
        label: the label column or array.
        client: the column or array that says who holds a row; `qid` in LIBSVM.
        positive: the label of the positive class; see `binary`.
        features: d, for a LIBSVM file whose last features may all be zero.
        categorical: numeric columns that are categories. Text columns always are.
    """
    path = Path(path)
    roles = Roles(label, client, categorical=tuple(categorical))
    table, encoding = read_encoded(path, roles, features)
    return Dataset(path.stem, binary(table, positive), encoding=encoding)


def from_frame(
    frame: Any,
    *,
    label: str = "label",
    client: str | None = None,
    positive: Any = None,
    categorical: Sequence[str] = (),
) -> Dataset:
    """A pandas or polars frame as a data set; arguments as for files.

    Examples:
        >>> import pandas
        >>> columns = {"age": [30, 40], "city": ["Ulm", "Bonn"], "label": [0, 1]}
        >>> from_frame(pandas.DataFrame(columns)).encoding.names
        ['age', 'city=Bonn', 'city=Ulm']
    """
    if not hasattr(frame, "columns"):
        raise BadKind(
            "`frame` must be a pandas or polars frame, got one of type "
            f"{type(frame).__name__}."
        )
    roles = Roles(label, client, categorical=tuple(categorical))
    table, encoding = table_from(read_frame(frame), roles)
    return Dataset("frame", binary(table, positive), encoding=encoding)


@dataclass(frozen=True)
class DataSource:
    """A data set with a name: its loader, and what a configuration takes by default.

    Args:
        load: returns the `Dataset`. `sagda.load(name, ...)` takes its keywords. Flags
            such as `--positive` reach it if it has a keyword of that name.
        positive: the default positive class, for problems with two classes.
        classes: the number of classes before labels are made binary.
        rows: the default number of rows to draw, equally from all classes; None keeps
            all rows.
    """

    load: Callable[..., Dataset]
    positive: str | None = None
    classes: int = 2
    rows: int | None = None


DATASETS: dict[str, DataSource] = {
    "a9a": DataSource(load_a9a),
    "mnist": DataSource(load_mnist, positive="1", classes=10, rows=10_000),
    "digits": DataSource(load_digits, positive="1", classes=10),
}


def load(name: str | Path, **options: Any) -> Dataset:
    """The data set of that name, or the file or folder of that path.

    Args:
        name: a key of `DATASETS` (`sagda list` shows them), or a path. A pandas or
            polars frame goes to `sagda.from_frame`.
        options: what its loader takes. For `digits`: `positive`, the digit to tell from
            the rest. For `mnist`: `positive`, and `directory` with the IDX files. For
            `a9a`: nothing. For a file, or a folder with one file per client:

            - `label`: the label column (default "label"),
            - `client`: the column that says who holds a row,
            - `positive`: the label of the positive class,
            - `categorical`: names of numeric columns that are categories,
            - `features`: the number of features of a LIBSVM file.

    Examples:
        >>> load("digits", positive=1).name
        'digits'
    """
    if not isinstance(name, str | Path):
        hint = "; use sagda.from_frame(frame)" if hasattr(name, "columns") else ""
        raise BadKind(
            "`name` must be the name of a data set or the path of a file, got one of "
            f"type {type(name).__name__}{hint}."
        )
    is_path = isinstance(name, Path) or Path(name).suffix or Path(name).exists()
    loader = partial(load_file, name)
    if str(name) in DATASETS or not is_path:
        loader = DATASETS[check.choice("data", str(name), DATASETS)].load
    check.keywords(f"data {name}", loader, options)
    return loader(**options)
