"""Pictures that a model generates, combined in one PNG image.

`sagda.runs.results.read_pictures` reads the pictures from a run folder. Charts are in
`charts.py`.
"""

import io

import numpy as np

from sagda.report.charts import drawing

COLUMNS = 10  # pictures in a row
GAP = 2  # pixels between pictures
ZOOM = 2  # pixels of the PNG for each pixel of a picture, in both directions


def sheet(pictures: np.ndarray) -> bytes:
    """Return a PNG with all pictures, ten in a row, dark on a light background.

    `pictures` has shape [count, height, width] and grey values from 0 to 255.
    """
    drawing()  # raises if the extra `report` is missing, to which PIL also belongs
    from PIL import Image

    count, height, width = pictures.shape
    rows = -(-count // COLUMNS)
    cells = np.full((rows * COLUMNS, height + GAP, width + GAP), 255, np.uint8)
    cells[:count, :height, :width] = 255 - pictures
    # From [rows, columns, height, width] to [rows, height, columns, width].
    grid = cells.reshape(rows, COLUMNS, height + GAP, width + GAP).swapaxes(1, 2)
    image = Image.fromarray(grid.reshape(rows * (height + GAP), -1)[:-GAP, :-GAP])
    size = (ZOOM * image.width, ZOOM * image.height)
    out = io.BytesIO()
    image.resize(size, Image.Resampling.NEAREST).save(out, "png")
    return out.getvalue()
