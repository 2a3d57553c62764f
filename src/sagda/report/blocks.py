"""The blocks of a report (headings, tables, charts), written as HTML or as Markdown.

Every HTML report and every generated page of the docs is a list of these blocks. This
module does not choose the content: `run_page.py`, `evaluation_page.py`,
`theory_page.py` and `sagda.paper.page` do. The HTML templates are in `templates/`. Read
`charts.py` next: it makes the charts.
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

# `templates/blocks.html.jinja` chooses the HTML of a block by the name of its class.


class Heading(NamedTuple):
    """A section title; level 1 is the title of the page."""

    text: str
    level: int = 2


class Text(NamedTuple):
    """One paragraph."""

    text: str


class Note(NamedTuple):
    """A paragraph in small print that explains the block before it."""

    text: str


class Code(NamedTuple):
    """Text in a fixed-width font that keeps its line breaks."""

    text: str


class Grid(NamedTuple):
    """A table. With `numeric`, all columns after the first are aligned to the right."""

    head: list[str]
    rows: list[list[str]]
    numeric: bool = False


class Chart(NamedTuple):
    """A Vega-Lite chart. Its `name` must be unique in a report."""

    name: str
    spec: dict[str, Any]
    caption: str


class ChartChoice(NamedTuple):
    """Charts of several metrics over several axes.

    The HTML report shows one chart. The reader chooses its metric and its axis.
    """

    name: str
    metrics: dict[str, str]  # by name: the label for readers
    axes: dict[str, str]  # by name: the label for readers
    # By metric and axis: a chart that reads its rows from the data set `curves`.
    specs: dict[str, dict[str, Any]]
    rows: dict[str, list[dict[str, Any]]]  # by metric: the rows of `curves`
    caption: str

    def chart(self, metric: str, axis: str) -> dict[str, Any]:
        """Return the chart of one metric over one axis, with its data."""
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
        """The image as a data URL. So the HTML file needs no other file."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


Block = Heading | Text | Note | Code | Grid | Chart | ChartChoice | Pictures


def as_html(title: str, blocks: Sequence[Block]) -> str:
    """Return one self-contained HTML file, which opens offline and can be e-mailed."""
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
    # By default jinja2 sorts keys. Radio buttons need the order of the dictionaries.
    environment.policies["json.dumps_kwargs"] = {}
    # The drawing library becomes a script in the file. The text `</script` inside the
    # library would end this script too early, so escape it.
    bundle = vl_convert.javascript_bundle().replace("</script", "<\\/script")
    return environment.get_template("page.html.jinja").render(
        title=title,
        blocks=blocks,
        charts={block.name: block.spec for block in blocks if isinstance(block, Chart)},
        choices=[block._asdict() for block in blocks if isinstance(block, ChartChoice)],
        bundle=markupsafe.Markup(bundle),
    )


def write_html(path: Path, blocks: Sequence[Block], title: str) -> None:
    """Write the blocks to `path` as one self-contained HTML file."""
    durable.write(path, as_html(title, blocks))


def write_markdown(path: Path, blocks: Sequence[Block], intro: str) -> None:
    """Write `intro` and the blocks to `path` as Markdown.

    Pictures go into the folder images/ next to `path`.
    """
    body = as_markdown(blocks, path.parent / "images", path.stem)
    durable.write(path, f"{intro.rstrip()}\n\n{body}")


def as_markdown(blocks: Sequence[Block], images: Path, prefix: str) -> str:
    """Return the blocks as Markdown, and write their pictures into the folder `images`.

    The names of the picture files begin with `prefix`.
    """
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
    """Return a chart as a PNG with 128 colours, which needs fewer bytes."""
    from PIL import Image

    image = Image.open(io.BytesIO(picture(spec, "png")))
    size = [3 * side // 4 for side in image.size]
    image = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    out = io.BytesIO()
    # Most pixels are white. MAXCOVERAGE also keeps rare colours, such as the curves'.
    few = image.quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(out, "png", optimize=True)
    return out.getvalue()
