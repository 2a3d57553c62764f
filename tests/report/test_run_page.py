"""The page in a real browser: it draws, switches, fits, and reports no error."""

import os
import shutil
from pathlib import Path

import pytest

from sagda.commands.main import main
from sagda.paper import figure as figures
from sagda.paper.evidence import load
from sagda.paper.page import blocks
from sagda.report.blocks import Chart, write_html
from support import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        if os.environ.get("SAGDA_NEED_CHROMIUM"):
            pytest.fail("SAGDA_NEED_CHROMIUM is set, but there is no chromium")
        pytest.skip("no chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        running = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """The page of a small comparison on real data."""
    folder = tmp_path_factory.mktemp("page") / "digits"
    code = main(
        [
            *("compare", "--data", "digits", "--clients", "20", "--samples", "30"),
            *("--algorithms", "sagda-i,fsgda", "--seeds", "2", "--rounds", "30"),
            *("--out", str(folder), "--json"),
        ]
    )
    assert code == 0
    return folder / "report.html"


@pytest.fixture
def page(browser, report):
    """The page, open and drawn; errors and requests are collected."""
    tab = browser.new_page(viewport={"width": 1100, "height": 900})
    tab.errors, tab.asked = [], []
    tab.on(
        "console", lambda m: tab.errors.append(m.text) if m.type == "error" else None
    )
    tab.on("pageerror", lambda error: tab.errors.append(str(error)))
    tab.on("request", lambda request: tab.asked.append(request.url))
    tab.goto(report.as_uri())
    tab.wait_for_selector("#curves svg")
    yield tab
    tab.close()


def titles(page) -> str:
    return " ".join(page.locator("#curves svg text").all_text_contents())


def test_the_page_draws_without_errors_or_network(page):
    page.wait_for_selector("#partition svg")
    assert page.errors == []
    assert all(url.startswith("file:") for url in page.asked)
    lines = page.locator("#curves svg .mark-line path").count()
    assert lines == 2
    assert page.locator("#curves svg .mark-area path").count() == 2  # bands over seeds
    dashes = page.locator("#curves svg .mark-line path").evaluate_all(
        "paths => paths.map(p => p.getAttribute('stroke-dasharray'))"
    )
    assert len(set(dashes)) == 2
    colours = page.locator("#curves svg .mark-line path").evaluate_all(
        "paths => paths.map(p => p.getAttribute('stroke').toLowerCase())"
    )
    assert colours == ["#0072b2", "#d55e00"]
    text = page.inner_text("body")
    for part in (
        "sagda-i",
        "fsgda",
        "last 30 rounds",
        "split ",
        "jaxlib",
        "rounds = 30",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("axis", "title"),
    [
        ("samples", "samples per client"),
        ("megabytes", "megabytes, both directions"),
        ("seconds", "seconds in rounds"),
    ],
)
def test_axes_switch(page, axis, title):
    assert "rounds" in titles(page)
    page.check(f"input[value={axis}]")
    page.wait_for_function(
        "t => document.querySelector('#curves svg')?.textContent.includes(t)", arg=title
    )
    assert page.errors == []


def test_measures_switch(page):
    page.check("input[value=auc_test]")
    page.wait_for_function(
        "document.querySelector('#curves svg')?.textContent.includes('test AUC')"
    )
    assert page.errors == []


def test_the_page_fits_a_telephone(page):
    page.set_viewport_size({"width": 380, "height": 800})
    page.reload()
    page.wait_for_selector("#curves svg")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 380


def test_the_page_prints(page):
    content = page.pdf(format="A4")
    assert content.startswith(b"%PDF")
    page.emulate_media(media="print")
    assert not page.locator("#curves-axis").is_visible()
    assert page.locator("#curves svg").is_visible()


@pytest.mark.parametrize(
    "chosen",
    [figures.ORDER[:2], pytest.param(figures.ORDER, marks=pytest.mark.slow)],
    ids=["two", "all"],
)
def test_figures_of_the_reproduction_open_and_print(chosen, browser, tmp_path):
    """From the evidence that is kept with the docs."""
    kept = ROOT / "docs" / "evidence"
    found = {name: load(kept / f"{name}.json") for name in chosen}
    content = list(blocks({n: figures.read(n) for n in found}, found, tmp_path, 5))
    names = [block.name for block in content if isinstance(block, Chart)]
    assert len(names) == 2 * len(chosen)
    write_html(tmp_path / "index.html", content, "Two figures")
    tab = browser.new_page(viewport={"width": 1100, "height": 900})
    errors = []
    tab.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto((tmp_path / "index.html").as_uri())
    for name in names:
        tab.wait_for_selector(f"#{name} svg .mark-line path")
    assert errors == []
    # On paper a figure is as wide as the page, and its text not below seven points.
    tab.emulate_media(media="print")
    tab.set_viewport_size({"width": 718, "height": 1000})
    for name in names:
        wide, small = tab.evaluate(
            """name => {
                const svg = document.querySelector(`#${name} svg`);
                const box = svg.getBoundingClientRect();
                const sizes = [...svg.querySelectorAll("text")].map(
                    t => parseFloat(t.getAttribute("font-size")) || 12);
                const scale = box.width / svg.viewBox.baseVal.width;
                return [box.width, Math.min(...sizes) * scale];
            }""",
            name,
        )
        assert wide <= 718
        assert small * 0.75 >= 7
    assert tab.pdf(format="A4").startswith(b"%PDF")
    tab.close()
