"""Pictures that a model generates, on one sheet.

`sagda.runs.results.read_pictures` reads them from a run folder.
"""

import io

import numpy as np

from sagda.report.charts import MissingExtra

COLUMNS, GAP, ZOOM = 10, 2, 2


def sheet(pictures: np.ndarray) -> bytes:
    """A PNG of grey [count, height, width] pictures, ten in a row, dark on light."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra(
            "pictures need the extra `report`: pip install 'sagda[report]'."
        ) from None
    count, height, width = pictures.shape
    rows = -(-count // COLUMNS)
    shape = rows * (height + GAP) - GAP, COLUMNS * (width + GAP) - GAP
    whole = np.full(shape, 255, np.uint8)
    for k, picture in enumerate(pictures):
        top, left = k // COLUMNS * (height + GAP), k % COLUMNS * (width + GAP)
        whole[top : top + height, left : left + width] = 255 - picture
    image = Image.fromarray(whole)
    size = (ZOOM * image.width, ZOOM * image.height)
    out = io.BytesIO()
    image.resize(size, Image.Resampling.NEAREST).save(out, "png")
    return out.getvalue()
