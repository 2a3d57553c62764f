"""Data sets and files of one's own."""

import bz2
import functools
import gzip
import hashlib
import http.server
import os
import threading
from importlib import resources
from pathlib import Path

import numpy as np
import pandas
import pytest

import sagda
from sagda.check import BadKind
from sagda.data import mnist

A9A = {
    "a9a.bz2": "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    "a9a.t.bz2": "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
}


@pytest.mark.parametrize("name", A9A)
def test_the_embedded_a9a_is_the_published_one(name):
    packed = resources.files("sagda.data").joinpath("embedded", name).read_bytes()
    assert hashlib.sha256(bz2.decompress(packed)).hexdigest() == A9A[name]
    assert len(packed) < 200_000


def test_a9a_as_tables():
    data = sagda.load("a9a")
    assert data.train.features.shape == (32561, 123)
    assert data.test.features.shape == (16281, 123)
    assert data.train.features.dtype == np.float32
    assert data.train.features.sum() == 451592
    assert data.test.features.sum() == 225731
    assert (data.train.label == 1).sum() == 7841
    assert (data.test.label == 1).sum() == 3846


def test_digits_one_against_the_rest():
    data = sagda.load("digits", positive=1)
    assert (len(data.train.label), len(data.test.label)) == (1437, 360)
    np.testing.assert_array_equal(data.train.label == 1, data.train.origin == 1)
    assert 0 <= data.train.features.min() < data.train.features.max() <= 1
    assert len(np.unique(sagda.load("digits").train.label)) == 10


def has_mnist() -> bool:
    given = os.environ.get("SAGDA_DATA_DIR")
    return bool(given) and any(Path(given).glob("**/train-images-idx3-ubyte*"))


needs_mnist = pytest.mark.skipif(
    not has_mnist(),
    reason="SAGDA_DATA_DIR names no directory with MNIST's files",
)


@needs_mnist
def test_mnist_as_in_the_paper():
    data = sagda.load("mnist", positive=1)
    assert data.train.features.shape == (60000, 784)
    np.testing.assert_allclose(data.train.features.mean(), 0.13066, atol=1e-5)
    np.testing.assert_allclose(data.train.features.std(), 0.30811, atol=1e-5)
    assert (data.train.label == 1).sum() == 6742
    assert (data.test.origin == 9).sum() == 1009
    table = sagda.balanced(data.train, per_class=5000)
    split = sagda.partition(table, clients=100, samples=100)
    by_client = split.data.label.reshape(100, 100)
    assert (by_client == by_client[:, :1]).all()
    assert (by_client[:, 0] == 1).sum() == 50
    run = sagda.simulate(
        sagda.sagda_i(), sagda.AUC.of(split), split, rounds=30, eval_every=30
    )
    assert run.history["auc_train"][0, -1] > 0.95


def idx(shape, values) -> bytes:
    header = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4) for n in shape)
    return header + bytes(values)


def tiny_mnist(folder: Path) -> dict[str, str]:
    """Two images a part in MNIST's format; the files' checksums."""
    sums = {}
    for name in mnist.SHA256:
        axes, content = "idx1", idx((2,), [1, 0])
        if "images" in name:
            axes, content = "idx3", idx((2, 28, 28), [7] * 1568)
        packed = gzip.compress(content, mtime=0)
        (folder / f"{name}-{axes}-ubyte.gz").write_bytes(packed)
        sums[name] = hashlib.sha256(packed).hexdigest()
    return sums


@pytest.fixture
def server(tmp_path):
    """A web server on a free port of this machine, for one folder."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()
        thread.join()


def test_mnist_is_downloaded_once_and_checked(server, tmp_path, monkeypatch):
    folder, url = server
    monkeypatch.delenv("SAGDA_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(mnist, "SHA256", tiny_mnist(folder))
    parts = mnist.read_mnist(url=url)
    assert parts["train"][0].shape == (2, 28, 28)
    np.testing.assert_array_equal(parts["t10k"][1], [1, 0])
    for file in folder.iterdir():
        file.unlink()
    assert mnist.read_mnist(url=url)["train"][0].shape == (2, 28, 28)


def test_a_download_with_another_checksum_is_refused(server, tmp_path, monkeypatch):
    folder, url = server
    monkeypatch.delenv("SAGDA_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tiny_mnist(folder)
    with pytest.raises(ValueError, match=r"could not be downloaded .*SAGDA_DATA_DIR"):
        mnist.read_mnist(url=url)


def test_mnist_from_a_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist, "SHA256", tiny_mnist(tmp_path))
    data = sagda.load("mnist", directory=tmp_path)
    np.testing.assert_allclose(data.train.features, 7 / 255)
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz is not in"):
        sagda.load("mnist", directory=tmp_path / "elsewhere")
    damaged = tmp_path / "train-labels-idx1-ubyte.gz"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(ValueError, match="got another SHA-256"):
        sagda.load("mnist", directory=tmp_path)
    damaged.unlink()
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx((3,), [1, 0]))
    with pytest.raises(ValueError, match="must be a complete IDX file of bytes"):
        sagda.load("mnist", directory=tmp_path)


FEATURES = np.array([[1.0, 0.0, 2.5], [0.0, -1.0, 0.0], [3.0, 0.0, 0.0]], np.float32)
LABEL = np.array([1.0, -1.0, 1.0], np.float32)
INF = np.float32(np.inf)


def write(path: Path) -> Path:
    if path.suffix == ".csv":
        text = "a,site,b,outcome,c\n1,x,0,yes,2.5\n0,y,-1,no,0\n\n3,x,0,yes,0\n"
        path.write_text(text)
    elif path.suffix == ".npz":
        site = np.array(["x", "y", "x"])
        np.savez(path, features=FEATURES, outcome=["yes", "no", "yes"], site=site)
    else:
        text = "1 qid:1 1:1 3:2.5 # a note\n0 qid:2 2:-1\n1 qid:1 1:3\n"
        packed = bz2.compress(text.encode()) if path.suffix == ".bz2" else text.encode()
        path.write_bytes(packed)
    return path


@pytest.mark.parametrize("name", ["d.csv", "d.npz", "d.libsvm", "d.svm.bz2", "d"])
def test_files_of_ones_own(tmp_path, name):
    path = write(tmp_path / name)
    named = path.suffix in (".csv", ".npz")
    options = (
        {"label": "outcome", "client": "site", "positive": "yes"}
        if named
        else {"client": "qid"}
    )
    table = sagda.load(path, **options).train
    np.testing.assert_array_equal(table.features, FEATURES)
    np.testing.assert_array_equal(table.label, LABEL)
    split = sagda.partition(table, "by-column")
    assert split.size.tolist() == [2, 1]
    assert [str(n) for n in split.names] == (["x", "y"] if named else ["1", "2"])


def bad(tmp_path, name, content):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, **content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.csv", b"", "a header and at least one row, got no line"),
        (
            "d.csv",
            b"a,a,label\n1,2,3\n",
            "line 1: column names must be different",
        ),
        ("d.csv", b"a,label\n1e300,1\n", "line 2: column 'a' must be finite in single"),
        ("d.csv", b"a,label\n1,1\n1,inf\n", "line 3: column 'label' must be finite in"),
        (
            "d.csv",
            b"a,label\n1,1\n1,nan\n",
            "line 3: column 'label' must have no missing",
        ),
        ("d.csv", "a,label\né,1\n".encode("latin-1"), "must be text in UTF-8"),
        ("d.svm", b"1 1:1\nnan 1:2\n", "line 2: the label must be finite"),
        ("d.csv", b"a,b\n1,2\n", "d.csv must have a column 'label', found a, b."),
        ("d.csv", b"a,label\n", "at least one row"),
        ("d.csv", b"label\n1\n0\n", "at least one row of features"),
        ("d.csv", b"a,label\n1,1\n2\n", "line 3: expected 2 cells"),
        ("d.csv", b"a,label\n1,1\nx,0\n", "line 3: column 'a' must be a number, found"),
        (
            "d.csv",
            b"a,label\n1,1\nnan,0\n",
            "line 3: column 'a' must have no missing values",
        ),
        ("d.csv", b"a,label\n1,\n", "line 2: column 'label' must have no missing"),
        ("d.csv", b"a,label\n1,1\n2,1\n", "at least two classes, found only 1.0"),
        ("d.csv", b"a,label\n1,1\n2,2\n3,3\n", "`positive` must name the positive"),
        ("d.csv", b"a,label\n1,y\n2,n\n", "`positive` must name the positive"),
        ("d.npz", b"PK nonsense", "not an NPZ file"),
        ("d.npz", {"label": LABEL}, "must contain an array 'features', found label"),
        ("d.npz", {"features": FEATURES}, "must contain an array 'label'"),
        ("d.npz", {"features": LABEL, "label": LABEL}, "shape (rows, d)"),
        ("d.npz", {"features": FEATURES, "label": LABEL[:2]}, "must have shape (3,)"),
        (
            "d.npz",
            {"features": FEATURES + INF, "label": LABEL},
            "`features` must be finite in float32, but row 0 is not",
        ),
        ("d.npz", {"features": np.array([[{}]]), "label": LABEL}, "not an NPZ file"),
        ("d.svm", b"1 1:2\n0 b:3\n", "line 2: expected index:value, found 'b:3'"),
        ("d.svm", b"1 1:2\n0 3\n", "line 2: expected index:value, found '3'"),
        ("d.svm", b"1 1:2\nyes 1:3\n", "line 2: the label must be a number"),
        ("d.svm", b"1 1:2\n0 1:x\n", "line 2: the value of feature 1 must be a number"),
        ("d.svm", b"1 2:2 1:1\n0 1:1\n", "line 1: indices must increase from 1"),
        ("d.svm", b"1 0:2\n0 1:1\n", "line 1: indices must increase from 1"),
        ("d.svm", b"1 1:inf\n0 1:1\n", "line 1: the value of feature 1 must be finite"),
        ("d.svm", b"", "at least one row"),
        ("d.svm.bz2", b"not packed", "cannot be decompressed"),
        ("d.xlsx", b"", "must end in .csv, .parquet, .npz or .libsvm"),
    ],
)
def test_mistakes_in_files(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=r"\.$") as caught:
        sagda.load(bad(tmp_path, name, content))
    assert message in str(caught.value)


def test_names_of_clients_and_classes_stay_out_of_the_program(tmp_path):
    """From a CSV with names in both columns to a trained model."""
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal():.3f},{'AB'[i % 2]},{'yn'[i % 3 == 0]}" for i in range(30)]
    path = tmp_path / "SITES.CSV"
    path.write_text("a,site,ill\n" + "\n".join(rows))
    table = sagda.load(path, label="ill", client="site", positive="y").train
    split = sagda.partition(table, "by-column")
    run = sagda.simulate(sagda.fsgda(), sagda.AUC.of(split), split, rounds=2)
    assert run.history["auc_train"].shape == (1, 3)


def test_a_libsvm_file_may_lack_its_last_features(tmp_path):
    path = write(tmp_path / "d.svm")
    assert sagda.load(path, features=5).train.features.shape == (3, 5)
    with pytest.raises(ValueError, match=r"so indices must be at most 2, got 3"):
        sagda.load(path, features=2)


def test_a_positive_label_may_be_written_as_a_text():
    same = [sagda.load("digits", positive=p).train.label for p in (1, "1", 1.0)]
    assert all((label == same[0]).all() for label in same)


def test_mistakes_in_names(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'a9a'"):
        sagda.load("a9")
    with pytest.raises(ValueError, match=r"gone\.csv does not exist"):
        sagda.load(tmp_path / "gone.csv")
    with pytest.raises(ValueError, match=r"`positive` must be one of the labels 0\.0"):
        sagda.load("digits", positive=10)
    with pytest.raises(ValueError, match="`client` must be 'qid'"):
        sagda.load(write(tmp_path / "d.svm"), client="site")
    with pytest.raises(ValueError, match="`per_class` must be at most"):
        sagda.balanced(sagda.load("digits", positive=1).train, per_class=1000)


def test_a_frame_given_to_load_is_sent_to_from_frame():
    with pytest.raises(BadKind, match=r"type DataFrame; use sagda\.from_frame"):
        sagda.load(pandas.DataFrame({"a": [1.0], "label": [1]}))
