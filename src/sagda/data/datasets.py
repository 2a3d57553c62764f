"""`sagda.load`: built-in data sets, and your own files and frames.

A new data set is one file with a `DataSource`, such as `MOONS` in `moons.py`, and one
line in `DATASETS`, such as `"moons": "moons:MOONS"`. How files are parsed is in
`readers.py`.
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
from sagda.registry import Registry


class Dataset(NamedTuple):
    """A named data set: a training table and, if available, a test table."""

    name: str
    train: Table
    test: Table | None = None
    encoding: Encoding | None = None  # of named columns; None for plain arrays


def binary(table: Table, positive: Any = None) -> Table:
    """Return the table with label +1 for the class `positive` and -1 for all others.

    If there are two classes and labels are numbers, `positive` may be left out. It is
    then the larger number.
    """
    check.kind("table", table, Table, "such as load(name).train")
    classes = np.unique(table.label)
    numeric = classes.dtype.kind in "fiu"
    if isinstance(positive, str) and numeric:
        positive = number(positive)
    if len(classes) < 2:
        raise BadValue(
            f"labels must have at least two classes, found only {classes[0]!s}."
        )
    shown = ", ".join(map(str, classes[:10]))
    if positive is None:
        if len(classes) > 2 or not numeric:
            raise BadValue(
                "`positive` must name the positive class if labels are not two "
                f"numbers, got none; choose one of {len(classes)} classes: {shown}."
            )
        positive = classes[-1]
    elif positive not in classes.tolist():
        raise BadValue(
            f"`positive` must be one of the labels {shown}, got {positive!r}."
        )
    label = np.where(table.label == positive, 1.0, -1.0).astype(np.float32)
    return table._replace(label=label, origin=table.label)


def number(text: str) -> float | str:
    """Return the text as a number if it is one, or else unchanged."""
    return float(text) if is_number(text) else text


def balanced(table: Table, *, per_class: int, seed: int = 0) -> Table:
    """Return a table with `per_class` random rows of each class."""
    check.kind("table", table, Table, "such as load(name).train")
    check.integer("per_class", per_class, low=1)
    rng, chosen = generator(seed, "balanced"), []
    for label in np.unique(table.label):
        rows = np.flatnonzero(table.label == label)
        if len(rows) < per_class:
            raise BadValue(
                f"`per_class` must be at most {len(rows)}, the number of rows of class "
                f"{label:g}, got {per_class}."
            )
        chosen.append(rng.permutation(rows)[:per_class])
    order = np.sort(np.concatenate(chosen))
    return jax.tree.map(lambda column: column[order], table)


def load_a9a() -> Dataset:
    """Load a9a: census data with 123 binary features; +1 is an income above $50,000.

    It has 32,561 training rows and 16,281 test rows. The package contains them.

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
    """Load the digits of scikit-learn, 8 x 8 pixels: 1,437 training, 360 test images.

    Args:
        positive: the digit with label +1; all others get -1. None keeps labels 0 to 9.
    """
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
    """Load MNIST: 60,000 training and 10,000 test images of digits, 28 x 28 pixels.

    Pixels are numbers in [0, 1].

    Args:
        positive: the digit with label +1; all others get -1. None keeps labels 0 to 9.
        directory: the folder with the IDX files, by default the environment variable
            `SAGDA_DATA_DIR`. Without a folder, the files are downloaded once, checked
            and cached.
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
    """Load your own file. Its ending tells the format: see `sagda.data.readers`.

    Args:
        path: the file, or a folder with one file per client.
        label: the name of the label column or array.
        client: the name of the column or array with the client of each row; `qid` in
            LIBSVM.
        positive: the label of the positive class; see `binary`.
        features: d, the number of features, for a LIBSVM file whose last features may
            all be zero.
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
    """Return a pandas or polars frame as a data set. Options are those of `load_file`.

    Examples:
        >>> import pandas
        >>> columns = {"age": [30, 40], "city": ["Ulm", "Bonn"], "label": [0, 1]}
        >>> from_frame(pandas.DataFrame(columns)).encoding.names
        ['age', 'city=Bonn', 'city=Ulm']
    """
    if not hasattr(frame, "columns"):
        raise BadKind(
            "`frame` must be a pandas or polars frame, got an object of type "
            f"{type(frame).__name__}."
        )
    roles = Roles(label, client, categorical=tuple(categorical))
    table, encoding = table_from(read_frame(frame), roles)
    return Dataset("frame", binary(table, positive), encoding=encoding)


@dataclass(frozen=True)
class DataSource:
    """A built-in data set: its loader, and the defaults of a configuration.

    Args:
        load: a function that returns the `Dataset`. Its keywords are the options of
            `sagda.load(name, ...)`. A flag such as `--positive` is passed to it if it
            has a keyword of that name.
        positive: the default positive class, for problems with two classes.
        classes: the number of classes before labels become -1 and +1.
        rows: the default number of random rows to use, with the same number from each
            class. None means all rows.
    """

    load: Callable[..., Dataset]
    positive: str | None = None
    classes: int = 2
    rows: int | None = None


DATASETS: Registry[DataSource] = Registry(
    "sagda.data",
    {
        "a9a": DataSource(load_a9a),
        "mnist": DataSource(load_mnist, positive="1", classes=10, rows=10_000),
        "digits": DataSource(load_digits, positive="1", classes=10),
    },
)


def load(name: str | Path, **options: Any) -> Dataset:
    """Load a built-in data set by name, or your own file or folder by path.

    For a pandas or polars frame, use `sagda.from_frame`.

    Args:
        name: a key of `DATASETS` (`sagda list` shows them), or a path.
        options: keyword arguments of the loader. `digits` and `mnist` take `positive`,
            the digit with label +1. `mnist` also takes `directory`, the folder with the
            IDX files. `a9a` takes no options. A file, or a folder with one file per
            client, takes:

            - `label`: the label column (default "label"),
            - `client`: the column with the client of each row,
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
            "`name` must be the name of a data set or the path of a file, got an "
            f"object of type {type(name).__name__}{hint}."
        )
    is_path = isinstance(name, Path) or Path(name).suffix or Path(name).exists()
    loader = partial(load_file, name)
    if str(name) in DATASETS or not is_path:
        loader = DATASETS[check.choice("data", str(name), DATASETS)].load
    check.keywords(f"data {name}", loader, options)
    return loader(**options)
