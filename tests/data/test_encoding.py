"""Files and frames of one's own: categories, missing values, a folder of clients."""

import json
import sys
import tracemalloc

import numpy as np
import pandas
import polars
import pytest

import sagda
from sagda.check import BadValue
from sagda.data import readers
from sagda.data.datasets import from_frame
from sagda.data.encoding import MOST, Encoding
from sagda.data.readers import Roles, read_encoded, read_source

CSV = """age,city,ward,outcome,site
30,Ulm,1,yes,north
41.5,Bonn,2,no,south
50,Ulm,2,no,north
62,Köln,1,yes,south
"""
COLUMNS = {
    "age": [30.0, 41.5, 50.0, 62.0],
    "city": ["Ulm", "Bonn", "Ulm", "Köln"],
    "ward": [1, 2, 2, 1],
    "outcome": ["yes", "no", "no", "yes"],
    "site": ["north", "south", "north", "south"],
}
OPTIONS = {"label": "outcome", "client": "site", "positive": "yes"}
NAMES = ["age", "city=Bonn", "city=Köln", "city=Ulm", "ward"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(CSV, encoding="utf-8")
    return path


def parquet(path):
    import duckdb

    rows = ", ".join(
        str(tuple(values)) for values in zip(*COLUMNS.values(), strict=True)
    )
    names = ", ".join(COLUMNS)
    duckdb.sql(f"select * from (values {rows}) t({names})").write_parquet(str(path))
    return path


def same(found):
    table = found.train
    assert found.encoding.names == NAMES
    np.testing.assert_array_equal(
        table.features,
        np.array(
            [[30, 0, 0, 1, 1], [41.5, 1, 0, 0, 2], [50, 0, 0, 1, 2], [62, 0, 1, 0, 1]],
            np.float32,
        ),
    )
    assert table.label.tolist() == [1, -1, -1, 1]
    assert table.client.tolist() == COLUMNS["site"]


def test_every_form_gives_the_same_table(file, tmp_path):
    same(sagda.load(file, **OPTIONS))
    same(from_frame(pandas.DataFrame(COLUMNS), **OPTIONS))
    same(from_frame(polars.DataFrame(COLUMNS), **OPTIONS))
    same(sagda.load(parquet(tmp_path / "d.parquet"), **OPTIONS))


def test_numbers_may_be_categories(file):
    found = sagda.load(file, categorical=["ward"], **OPTIONS)
    assert found.encoding.names[-2:] == ["ward=1", "ward=2"]
    assert found.train.features[:, -2:].tolist() == [[1, 0], [0, 1], [0, 1], [1, 0]]
    with pytest.raises(BadValue, match="`categorical` must name columns of features"):
        sagda.load(file, categorical=["wards"], **OPTIONS)


def test_a_folder_with_a_file_or_a_folder_for_every_client(tmp_path):
    head, *lines = CSV.replace(",site", "").splitlines()
    lines = [line.rpartition(",")[0] for line in lines]
    (tmp_path / "north").mkdir()
    (tmp_path / "north" / "a.csv").write_text(f"{head}\n{lines[0]}\n")
    (tmp_path / "north" / "b.csv").write_text(f"{head}\n{lines[2]}\n")
    (tmp_path / "south.csv").write_text(f"{head}\n{lines[1]}\n{lines[3]}\n")
    found = sagda.load(tmp_path, label="outcome", positive="yes")
    assert found.train.client.tolist() == ["north", "north", "south", "south"]
    assert found.encoding.names == NAMES
    assert found.train.features[:, 0].tolist() == [30, 50, 41.5, 62]
    clients = sagda.partition(found.train, "by-column")
    assert clients.size.tolist() == [2, 2]
    # A mistake is named with its file and line.
    (tmp_path / "south.csv").write_text(f"{head}\n{lines[1]}\n62,,1,yes\n")
    with pytest.raises(
        BadValue, match=r"south.csv, line 3: column 'city' must have no missing"
    ):
        sagda.load(tmp_path, label="outcome", positive="yes")
    (tmp_path / "south.csv").write_text(f"{head}\n")
    with pytest.raises(BadValue, match=r"south.csv must have a header and at least"):
        sagda.load(tmp_path, label="outcome", positive="yes")
    (tmp_path / "south.csv").write_text("age,outcome\n1,yes\n")
    with pytest.raises(BadValue, match=r"south.csv must have the columns of a.csv"):
        sagda.load(tmp_path, label="outcome", positive="yes")
    for path in tmp_path.glob("*.csv"):
        path.unlink()
    for path in (tmp_path / "north").glob("*"):
        path.unlink()
    with pytest.raises(BadValue, match=r"or a .csv or .parquet file for every client"):
        sagda.load(tmp_path)


def test_an_encoding_is_kept_and_makes_the_same_features(file, tmp_path):
    table, encoding = read_encoded(file, Roles("outcome", "site"))
    stored = json.loads(json.dumps(encoding.as_json()))
    assert Encoding.from_json(stored) == encoding
    # Other order, no label, columns that nobody asked for.
    fresh = tmp_path / "new.csv"
    fresh.write_text("note,city,age,ward\nx,Köln,62,1\n", encoding="utf-8")
    found, _ = read_encoded(fresh, Roles(None, encoding=encoding))
    np.testing.assert_array_equal(found.features, table.features[3:])
    for text, said in {
        "city,age,ward\nRom,62,1\n": "line 2: column 'city' must have one of the "
        "values in the training data (Bonn, Köln, Ulm), found 'Rom'.",
        "city,age\nUlm,62\n": "must have all columns of the training data, but does "
        "not have ward.",
        "city,age,ward\nUlm,old,1\n": "line 2: column 'age' must be a number",
        "city,age,ward\nUlm,,1\n": "line 2: column 'age' must have no missing values",
    }.items():
        fresh.write_text(text, encoding="utf-8")
        with pytest.raises(BadValue) as error:
            read_encoded(fresh, Roles(None, encoding=encoding))
        assert said in str(error.value)


def test_values_read_alike_wherever_they_come_from(tmp_path):
    columns = {
        "code": [1234567, 1234568, 12, 12],
        "dose": [0.1234567, 0.25, 0.25, 3.0],
        "old": [True, False, False, True],
        "label": [1, 0, 1, 0],
    }
    frame = pandas.DataFrame(columns)
    frame.to_csv(tmp_path / "d.csv", index=False)
    own = {"label": "label", "categorical": ["code"]}
    written = sagda.load(tmp_path / "d.csv", **own)
    names = ["code=12", "code=1234567", "code=1234568", "dose", "old"]
    for other in (frame, polars.DataFrame(columns)):
        found = from_frame(other, **own)
        assert found.encoding == written.encoding
        assert found.encoding.names == names
        np.testing.assert_array_equal(found.train.features, written.train.features)
    categories = ["dose", "old"]
    texts = from_frame(frame, label="label", categorical=categories).encoding
    assert texts.columns[1].values == ("0.1234567", "0.25", "3")
    assert texts.columns[2].values == ("False", "True")


DAMAGED = {
    "a.npz": (b"", "is not an NPZ file"),
    "b.npz": (b"\x93NUMPY\x01\x00v\x00", "is not an NPZ file"),
    "c.svm.bz2": (b"BZh91AY&SY", "cannot be decompressed"),
    "d.svm.gz": (b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xff\xff\xff", "cannot be decompressed"),
    "e.csv": (b'a,label\n"' + b"1" * 200_000, "line 2: field larger"),
    "f.svm": (b"1 qid:1 1:1\n0 1:2\n", "every row must name its client"),
    "g.svm": (b"1 1:1\n0 1:2\n", "every row must name its client"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_named(tmp_path, name):
    content, said = DAMAGED[name]
    (tmp_path / name).write_bytes(content)
    client = "qid" if name.endswith(".svm") else None
    with pytest.raises(BadValue, match=said):
        read_encoded(tmp_path / name, Roles("label", client))


def test_missing_clients_are_named(tmp_path):
    rows = {"features": np.zeros((3, 1)), "label": np.arange(3)}
    np.savez(tmp_path / "d.npz", **rows, site=np.array([1.0, np.nan, 2.0]))
    with pytest.raises(
        BadValue, match="row 1: column 'site' must have no missing values"
    ):
        read_encoded(tmp_path / "d.npz", Roles("label", "site"))


def test_sites_take_numbers_only(file):
    with pytest.raises(BadValue, match="line 2: column 'city' must be a number"):
        read_encoded(file, Roles("outcome", "site", numeric=True))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"age": [30.0, None, 50.0, 62.0]},
            "the frame, row 1: column 'age' must have no missing",
        ),
        (
            {"city": [None, "a", "b", None]},
            "row 0: column 'city' must have no missing values, found 2",
        ),
        (
            {"site": ["a", "b", None, "c"]},
            "row 2: column 'site' must have no missing values",
        ),
        (
            {"outcome": ["yes", None, "no", "no"]},
            "column 'outcome' must have no missing",
        ),
        ({"city": ["1", "2", "x", "3"]}, "if the column is a category, name it in"),
        (
            {"age": [1e300, 1.0, 2.0, 3.0]},
            "column 'age' must be finite in single precision",
        ),
    ],
)
@pytest.mark.parametrize("make", [pandas.DataFrame, polars.DataFrame])
def test_mistakes_in_frames(make, change, said):
    with pytest.raises(BadValue) as error:
        from_frame(make(COLUMNS | change), **OPTIONS)
    assert said in str(error.value)


def test_too_many_values_and_no_frame():
    many = {"name": [f"n{i}" for i in range(MOST + 1)], "label": [0.0, 1] * (MOST // 2)}
    many["label"].append(0.0)
    with pytest.raises(BadValue, match="at most 1000 different values"):
        from_frame(pandas.DataFrame(many))
    with pytest.raises(TypeError, match="must be a pandas or polars frame"):
        from_frame([1, 2])
    with pytest.raises(BadValue, match="must have at least one row"):
        from_frame(pandas.DataFrame({"a": [], "label": []}))


def test_parquet_without_its_extra_and_a_broken_one(tmp_path, monkeypatch):
    path = tmp_path / "d.parquet"
    path.write_bytes(b"no")
    with pytest.raises(BadValue, match="is not a Parquet file"):
        sagda.load(path)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(BadValue, match=r"pip install 'sagda\[parquet\]'"):
        sagda.load(path)


def test_a_wide_csv_is_never_held_as_python_strings(tmp_path):
    """400,000 cells take 3 MB as numbers, and would take 26 MB as strings."""
    rows, width = 2000, 200
    values = np.random.default_rng(0).normal(size=(rows, width)).round(3)
    frame = pandas.DataFrame(values, columns=[f"c{i}" for i in range(width)])
    frame["ward"], frame["label"] = "north", [0, 1] * (rows // 2)
    path = tmp_path / "wide.csv"
    frame.to_csv(path, index=False)
    tracemalloc.start()
    columns = read_source(path, {"label"}).columns
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert {columns[f"c{i}"].dtype for i in range(width)} == {np.dtype(float)}
    assert columns["ward"].dtype == columns["label"].dtype == object
    assert columns["label"][1] == "1"
    assert peak < 14e6
    table, _ = read_encoded(path, Roles("label"))
    np.testing.assert_array_equal(table.features[:, :-1], values.astype(np.float32))


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("old", "line 8: column 'age' must be a number, found 'old'; if the"),
        ("", "line 8: column 'age' must have no missing values"),
        ("1e99", "line 8: column 'age' must be finite in single precision"),
    ],
)
def test_a_late_text_in_a_column_of_numbers_is_named(
    cell, message, tmp_path, monkeypatch
):
    monkeypatch.setattr(readers, "CELLS", 4)  # two rows are read together
    path = tmp_path / "late.csv"
    ages = ["30"] * 6 + [cell, "31"]
    path.write_text("age,label\n" + "".join(f"{age},1\n" for age in ages))
    with pytest.raises(BadValue, match=message):
        read_encoded(path, Roles("label"))


def test_categories_keep_their_leading_zeros(tmp_path):
    path = tmp_path / "wards.csv"
    path.write_text("ward,label\n01,1\n02,0\n01,0\n")
    table, encoding = read_encoded(path, Roles("label", categorical=("ward",)))
    assert encoding.names == ["ward=01", "ward=02"]
    again, _ = read_encoded(path, Roles("label", encoding=encoding))
    np.testing.assert_array_equal(again.features, table.features)
