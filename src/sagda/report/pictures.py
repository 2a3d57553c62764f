"""Pictures that a run made: kept as arrays in its folder, shown as grids."""

import base64
import html
import io
from pathlib import Path

import jax
import numpy as np
import safetensors.numpy

from sagda import durable
from sagda.check import BadValue
from sagda.problems.base import Problem
from sagda.simulator.run import Run

FILE = "images.safetensors"
ACROSS, GAP, LARGER = 10, 2, 2


def keep(problem: Problem, runs: dict[str, Run], folder: Path) -> None:
    """Write the pictures of each run's first seed, if the problem makes any."""
    found = {}
    for name, run in runs.items():
        pictures = problem.pictures(jax.tree.map(lambda a: a[0], run.z.x))
        if pictures is not None:
            grey = np.nan_to_num(np.asarray(pictures))
            found[name] = np.clip(255 * grey + 0.5, 0, 255).astype(np.uint8)
    if found:
        durable.write(folder / FILE, safetensors.numpy.save(found))


def read(folder: Path) -> dict[str, np.ndarray]:
    """By run, [count, height, width] bytes; nothing where there are no pictures."""
    path = folder / FILE
    return safetensors.numpy.load(path.read_bytes()) if path.is_file() else {}


def grid(pictures: np.ndarray) -> bytes:
    """A PNG of all of them, dark on light."""
    try:
        from PIL import Image
    except ImportError:
        raise BadValue(
            "pictures need the extra `report`: pip install 'sagda[report]'."
        ) from None
    count, height, width = pictures.shape
    down = -(-count // ACROSS)
    sheet = np.full(
        (down * (height + GAP) - GAP, ACROSS * (width + GAP) - GAP), 255, np.uint8
    )
    for k, picture in enumerate(pictures):
        top, left = k // ACROSS * (height + GAP), k % ACROSS * (width + GAP)
        sheet[top : top + height, left : left + width] = 255 - picture
    image = Image.fromarray(sheet)
    image = image.resize(
        [LARGER * side for side in image.size], Image.Resampling.NEAREST
    )
    out = io.BytesIO()
    image.save(out, "png")
    return out.getvalue()


def figure(name: str, png: bytes) -> str:
    """An HTML figure with the picture inside."""
    data = base64.b64encode(png).decode()
    text = html.escape(name)
    return (
        f'<figure><img alt="pictures of {text}" src="data:image/png;base64,{data}">'
        f"<figcaption>{text}</figcaption></figure>"
    )
