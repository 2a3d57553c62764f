"""A site's rows: read once from a file, and stored as columns for memory mapping.

The columns are in folders `rows-*` inside the site's folder. The names of these folders
contain a digest of the file's path, size and time, and of the scaling. So a changed
file is read again. How files become features is in `sagda.data.readers`.
"""

import json
import shutil
from pathlib import Path

import numpy as np

from sagda import durable
from sagda.check import BadValue
from sagda.data.array_files import read_folder
from sagda.data.datasets import number
from sagda.data.encoding import Encoding
from sagda.data.federation import Federation, Table
from sagda.data.readers import Roles, read_encoded
from sagda.data.recipe import Scaling, scaled

NAMES = "columns.json"  # how named columns become features; missing without names


def site_rows(
    state: Path, data: str, label: str, positive: str | None, scaling: Scaling | None
) -> Federation:
    """Return the site's rows as a federation of one client.

    Args:
        state: the site's folder.
        data: the file with the rows.
        label: the column with the labels.
        positive: the label of the positive class. None: the label 1.
        scaling: the scaling to apply to the features. None: no scaling.
    """
    folder = columns(state, data, label, positive)
    if scaling is not None:
        name = durable.digest(np.stack(scaling).tobytes())[:16]
        other = folder.with_name(f"{folder.name}-{name}")
        if not other.exists():
            table = read_folder(folder, "label", None)
            for old in state.glob(f"{folder.name}-*"):
                shutil.rmtree(old)
            write_columns(other, scaled(table, scaling))
        folder = other
    table = read_folder(folder, "label", None)
    count = len(table.label)
    return Federation.of(table, np.arange(count), np.array([count]))


def columns(state: Path, data: str, label: str, positive: str | None) -> Path:
    """Return the folder with the columns of `data`. Reads a new or changed file."""
    path = Path(data)
    try:
        info = path.stat()
        source = [str(path.resolve()), info.st_mtime_ns, info.st_size]
    except FileNotFoundError:
        source = [data]  # the name of a data set; any other text is refused below
    source += [label, positive]
    name = durable.digest(json.dumps(source).encode())[:16]
    folder = durable.private(state) / f"rows-{name}"
    if not folder.exists():
        # The file is new or has changed, so delete the columns of its old content.
        table, encoding = read_encoded(path, Roles(label, numeric=True))
        for old in state.glob("rows-*"):
            shutil.rmtree(old)
        write_columns(folder, signed(table, positive), encoding)
    return folder


def encoding_of(state: Path) -> Encoding | None:
    """Return how the columns of the site's file become features, or None if unnamed."""
    for path in state.glob(f"rows-*/{NAMES}"):
        return Encoding.from_json(json.loads(path.read_text("utf-8")))
    return None


def signed(table: Table, positive: str | None) -> Table:
    """Return `table` with labels -1 and +1. A site may have rows of one class only."""
    label = np.asarray(table.label)
    if positive is not None:
        wanted = number(positive) if label.dtype.kind in "fiub" else positive
        return table._replace(label=np.where(label == wanted, 1.0, -1.0))
    values = np.unique(label)
    if label.dtype.kind not in "fiub" or not np.isin(values, (-1, 0, 1)).all():
        raise BadValue(
            f"labels must be -1 and +1, or 0 and 1, got {len(values)} values such as "
            f"{values[0]}; name the positive class with --positive."
        )
    return table._replace(label=np.where(label > 0, 1.0, -1.0))


def write_columns(folder: Path, table: Table, encoding: Encoding | None = None) -> None:
    """Write a folder of columns. The folder appears only when it is complete."""
    part = folder.with_name(folder.name + durable.TEMPORARY)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700)
    np.save(part / "features.npy", np.asarray(table.features))
    np.save(part / "label.npy", np.asarray(table.label, np.float32))
    if encoding is not None:
        (part / NAMES).write_text(json.dumps(encoding.as_json()), "utf-8")
    part.rename(folder)
