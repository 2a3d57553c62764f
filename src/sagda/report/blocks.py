"""The blocks of a report (headings, tables, charts), written as HTML or as Markdown.

Every HTML file and every generated page of the docs is a list of these blocks. This
module knows nothing of their content: `run_page.py`, `evaluation_page.py`,
`theory_page.py` and `sagda.paper.page` make the blocks. The HTML templates are in
`templates/`. Read `charts.py` next, for the charts themselves.
"""

import base64
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sagda import durable
from sagda.report.charts import drawing, picture
from sagda.runs.card import markdown_table

# `templates/blocks.html.jinja` shows each class by its name.


class Heading(NamedTuple):
    """A section title; level 1 is the title of the page."""

    text: str
    level: int = 2


class Text(NamedTuple):
    """One paragraph."""

    text: str


class Note(NamedTuple):
    """A paragraph in small print: how to read the block before it."""

    text: str


class Code(NamedTuple):
    """Text in a fixed-width font with its line breaks."""

    text: str


class Grid(NamedTuple):
    """A table. With `numeric`, all columns but the first are aligned to the right."""

    head: list[str]
    rows: list[list[str]]
    numeric: bool = False


class Chart(NamedTuple):
    """A Vega-Lite chart. Its `name` occurs once in a page."""

    name: str
    spec: dict[str, Any]
    caption: str


class ChartChoice(NamedTuple):
    """Charts of several measures over several axes; the reader chooses one of each."""

    name: str
    metrics: dict[str, str]  # name: label
    axes: dict[str, str]
    specs: dict[str, dict[str, Any]]  # by metric and axis, over the data set `curves`
    rows: dict[str, list[dict[str, Any]]]  # by metric: the data set `curves`
    caption: str

    def chart(self, metric: str, axis: str) -> dict[str, Any]:
        """The chart of one metric over one axis, with its data."""
        return self.specs[metric][axis] | {"datasets": {"curves": self.rows[metric]}}

    @property
    def spec(self) -> dict[str, Any]:
        """The chart that is shown before the reader chooses."""
        return self.chart(next(iter(self.metrics)), next(iter(self.axes)))


class Pictures(NamedTuple):
    """A PNG image."""

    name: str
    png: bytes
    caption: str

    @property
    def source(self) -> str:
        """The image as a data URL, so that a page needs no other file."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


Block = Heading | Text | Note | Code | Grid | Chart | ChartChoice | Pictures


def as_html(title: str, blocks: Sequence[Block]) -> str:
    """One self-contained HTML page: it opens offline and can be e-mailed."""
    _, vl_convert = drawing()
    import jinja2
    import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sagda.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Radio buttons come in the order of the dictionaries: do not sort keys.
    environment.policies["json.dumps_kwargs"] = {}
    # The drawing library is inside the page. `</script` would end its script early.
    bundle = vl_convert.javascript_bundle().replace("</script", "<\\/script")
    return environment.get_template("page.html.jinja").render(
        title=title,
        blocks=blocks,
        charts={block.name: block.spec for block in blocks if isinstance(block, Chart)},
        choices=[block._asdict() for block in blocks if isinstance(block, ChartChoice)],
        bundle=markupsafe.Markup(bundle),
    )


def write_html(path: Path, blocks: Sequence[Block], title: str) -> None:
    """Write one self-contained HTML page."""
    durable.write(path, as_html(title, blocks))


def write_markdown(path: Path, blocks: Sequence[Block], intro: str) -> None:
    """Write a page of the docs, with its pictures in the folder images/ next to it."""
    body = as_markdown(blocks, path.parent / "images", path.stem)
    durable.write(path, f"{intro.rstrip()}\n\n{body}")


def as_markdown(blocks: Sequence[Block], images: Path, prefix: str) -> str:
    """The blocks as Markdown; `prefix` begins the names of the files in `images`."""
    images.mkdir(exist_ok=True)
    out = []
    for block in blocks:
        match block:
            case Heading(text, level):
                out += [f"{'#' * level} {text}", ""]
            case Text(text) | Note(text):
                out += [text, ""]
            case Code(text):
                out += ["```", text.rstrip("\n"), "```", ""]
            case Grid(head, rows):
                out += [markdown_table(head, rows), ""]
            case Chart() | ChartChoice() | Pictures():
                file = f"{prefix}-{re.sub('[^a-z0-9-]', '-', block.name)}.png"
                png = (
                    block.png if isinstance(block, Pictures) else small_png(block.spec)
                )
                durable.write(images / file, png)
                caption = block.caption
                out += [f"![{caption}](images/{file})", "", f"*{caption}*", ""]
    return "\n".join(out)


def small_png(spec: dict[str, Any]) -> bytes:
    """A chart as a PNG of few colours, a fraction of the usual size in bytes."""
    from PIL import Image

    image = Image.open(io.BytesIO(picture(spec, "png")))
    size = [3 * side // 4 for side in image.size]
    image = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    out = io.BytesIO()
    # This method keeps rare colours, and the curves' colours are rare.
    few = image.quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(out, "png", optimize=True)
    return out.getvalue()
