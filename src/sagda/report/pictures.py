"""Pictures that a model generates, on one sheet.

`sagda.runs.results.read_pictures` reads them from a run folder.
"""

import io

import numpy as np

from sagda.report.charts import drawing

COLUMNS, GAP, ZOOM = 10, 2, 2


def sheet(pictures: np.ndarray) -> bytes:
    """A PNG of grey [count, height, width] pictures, ten in a row, dark on light."""
    drawing()  # its extra has PIL too
    from PIL import Image

    count, height, width = pictures.shape
    rows = -(-count // COLUMNS)
    cells = np.full((rows * COLUMNS, height + GAP, width + GAP), 255, np.uint8)
    cells[:count, :height, :width] = 255 - pictures
    # From [rows of the sheet, columns, height, width] to the pixels of the sheet.
    grid = cells.reshape(rows, COLUMNS, height + GAP, width + GAP).swapaxes(1, 2)
    image = Image.fromarray(grid.reshape(rows * (height + GAP), -1)[:-GAP, :-GAP])
    size = (ZOOM * image.width, ZOOM * image.height)
    out = io.BytesIO()
    image.resize(size, Image.Resampling.NEAREST).save(out, "png")
    return out.getvalue()
