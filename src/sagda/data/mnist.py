"""The files of MNIST in IDX format: found in a folder, or downloaded and checked.

This module returns arrays of pixels and labels. `datasets.load_mnist` turns them into
tables.
"""

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np

from sagda.check import BadValue

URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
SHA256 = {  # of the gzipped files, by the beginning of their names
    "train-images": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


def read_mnist(
    directory: str | Path | None = None, url: str = URL
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the pixels and labels of `train` and of `t10k`, the test images.

    Args:
        directory: the folder with the files; see `find`.
        url: the address to download them from.
    """
    read = lambda name: read_idx(find(f"{name}-ubyte.gz", directory, url))
    return {
        part: (read(f"{part}-images-idx3"), read(f"{part}-labels-idx1"))
        for part in ("train", "t10k")
    }


def find(name: str, directory: str | Path | None, url: str) -> Path:
    """Return the path of the file `name`, after a download if necessary.

    The file is searched in `directory` or, if that is None, in the folder of the
    environment variable `SAGDA_DATA_DIR`.
    """
    given = directory or os.environ.get("SAGDA_DATA_DIR")
    if given:
        for folder in (Path(given), Path(given) / "mnist"):
            for path in (folder / name, folder / name.removesuffix(".gz")):
                if path.is_file():
                    return path
    if directory:
        raise BadValue(
            f"`directory` must contain the IDX files of MNIST, but {name} is not in "
            f"{directory}; leave out `directory` to download them."
        )
    return download(name, url)


def download(name: str, url: str) -> Path:
    """Download a file into the cache, check its SHA-256, and return its path."""
    import pooch

    cache = pooch.os_cache("sagda") / "mnist"
    known = f"sha256:{known_hash(name)}"
    try:
        path = pooch.retrieve(url + name, known_hash=known, fname=name, path=cache)
    except Exception as error:  # requests and pooch raise many kinds of errors
        raise BadValue(
            f"{name} of MNIST could not be downloaded from {url} ({error}); put the "
            "four IDX files in a folder and set SAGDA_DATA_DIR to this folder."
        ) from error
    return Path(path)


def known_hash(name: str) -> str | None:
    """Return the SHA-256 of a gzipped file of MNIST, or None for other names."""
    return SHA256.get(name.partition("-idx")[0]) if name.endswith(".gz") else None


def read_idx(path: Path) -> np.ndarray:
    """Return the array in an IDX file, which may be gzipped."""
    packed = path.read_bytes()
    known = known_hash(path.name)
    if known and hashlib.sha256(packed).hexdigest() != known:
        raise BadValue(
            f"{path} must be the original file of MNIST, got another SHA-256; download "
            "it again."
        )
    content = gzip.decompress(packed) if path.suffix == ".gz" else packed
    axes = content[3] if len(content) > 4 else 0
    header = 4 + 4 * axes
    shape = np.frombuffer(content[4:header], ">u4").astype(int)
    if content[:3] != b"\0\0\x08" or len(content) != header + shape.prod():
        raise BadValue(
            f"{path} must be a complete IDX file of bytes, got {len(content)} bytes "
            "that do not fit its header."
        )
    values = np.frombuffer(content, np.uint8, offset=header).reshape(shape)
    return values.astype(np.float32) if axes == 1 else values
