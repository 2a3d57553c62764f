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

# In each class, `kind` is the name by which `templates/blocks.html.jinja` shows it.


class Heading(NamedTuple):
    """A section title; level 1 is the title of the page."""

    text: str
    level: int = 2

    kind = "heading"


class Text(NamedTuple):
    """One paragraph."""

    text: str

    kind = "text"


class Note(NamedTuple):
    """A paragraph in small print: how to read the block before it."""

    text: str

    kind = "note"


class Code(NamedTuple):
    """Text in a fixed-width font with its line breaks."""

    text: str

    kind = "code"


class Grid(NamedTuple):
    """A table. With `numeric`, all columns but the first are aligned to the right."""

    head: list[str]
    rows: list[list[str]]
    numeric: bool = False

    kind = "grid"


class Chart(NamedTuple):
    """A Vega-Lite chart. Its `name` occurs once in a page."""

    name: str
    spec: dict[str, Any]
    caption: str

    kind = "chart"


class ChartChoice(NamedTuple):
    """Charts of several measures over several axes; the reader chooses one of each."""

    name: str
    metrics: dict[str, str]  # name: label
    axes: dict[str, str]
    specs: dict[str, dict[str, Any]]  # by metric and axis, over the data set `curves`
    rows: dict[str, list[dict[str, Any]]]  # by metric: the data set `curves`
    caption: str

    kind = "choice"

    @property
    def first(self) -> dict[str, Any]:
        """The chart that is shown before the reader chooses."""
        metric, axis = next(iter(self.metrics)), next(iter(self.axes))
        return self.specs[metric][axis] | {"datasets": {"curves": self.rows[metric]}}


class Pictures(NamedTuple):
    """A PNG image."""

    name: str
    png: bytes
    caption: str

    kind = "pictures"

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
            case Chart() | ChartChoice():
                spec = block.spec if isinstance(block, Chart) else block.first
                file = images / f"{prefix}-{block.name}.png"
                durable.write(file, small_png(spec))
                out += image_lines(file.name, block.caption)
            case Pictures(name, png, caption):
                file = images / f"{prefix}-{re.sub('[^a-z0-9-]', '-', name)}.png"
                durable.write(file, png)
                out += image_lines(file.name, caption)
    return "\n".join(out)


def image_lines(file: str, caption: str) -> list[str]:
    return [f"![{caption}](images/{file})", "", f"*{caption}*", ""]


def small_png(spec: dict[str, Any]) -> bytes:
    """A chart as a PNG of few colours, a fraction of the usual size in bytes."""
    from PIL import Image

    image = Image.open(io.BytesIO(picture(spec, "png", width=None)))
    size = [3 * side // 4 for side in image.size]
    image = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    out = io.BytesIO()
    # This method keeps rare colours, and the curves' colours are rare.
    few = image.quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(out, "png", optimize=True)
    return out.getvalue()
