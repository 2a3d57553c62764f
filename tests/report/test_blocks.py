"""Blocks as HTML and as Markdown: escaped, complete, and without other files."""

from sagda.report.blocks import (
    Chart,
    Code,
    Grid,
    Heading,
    Note,
    Pictures,
    Text,
    as_html,
    as_markdown,
)

SPEC = {
    "mark": "point",
    "data": {"values": [{"x": 1, "y": 2}]},
    "encoding": {"x": {"field": "x", "type": "quantitative"}},
}
BLOCKS = [
    Heading("1 < 2"),
    Text("a & b"),
    Note("a * b"),
    Code("x = '<y>'\n"),
    Grid(["a|b", "<c>"], [["1*2", "</script>"]], numeric=True),
    Chart("points", SPEC, "Points <here>"),
    Pictures("Some one", b"PNG", "50 rows"),
]


def test_html_is_escaped_and_self_contained():
    page = as_html("<Title>", BLOCKS)
    for text in (
        "<title>&lt;Title&gt;</title>",
        "<h2>1 &lt; 2</h2>",
        "<p>a &amp; b</p>",
        '<p class="note">a * b</p>',
        '<table class="numeric">',
        "<td>&lt;/script&gt;</td>",
        '<div id="points" class="chart">',
        "Points &lt;here&gt;",
        'src="data:image/png;base64,UE5H"',
    ):
        assert text in page, text
    assert "<script src" not in page
    # Nothing inside a script ends it early.
    assert page.count("</script>") == page.count("<script")


def test_markdown_has_every_block_and_its_pictures(tmp_path):
    text = as_markdown(BLOCKS, tmp_path / "images", "page")
    for part in (
        "## 1 < 2",
        "```\nx = '<y>'\n```",
        "| a\\|b | <c> |\n|---|---|\n| 1\\*2 | </script> |",
        "![Points <here>](images/page-points.png)",
        "![50 rows](images/page--ome-one.png)",
    ):
        assert part in text, part
    images = sorted(path.name for path in (tmp_path / "images").iterdir())
    assert images == ["page--ome-one.png", "page-points.png"]
    assert (tmp_path / "images" / "page-points.png").read_bytes()[1:4] == b"PNG"
