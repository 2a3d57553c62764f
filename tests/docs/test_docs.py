"""The programs and commands in the README and in the docs work as printed."""

import re
import runpy
from pathlib import Path

import jax
import pytest

from support import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def programs(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


TUTORIALS = (
    "hospitals", "from-csv", "choosing-rates", "gallery", "pytorch", "new-objective",
    "new-algorithm", "to-deployment",
)  # fmt: skip


LONG = (*TUTORIALS, "trackers", "simulate")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=pytest.mark.slow if p.stem in LONG else ())
        for p in PAGES[1:]
        if programs(p)
    ],
    ids=lambda page: page.stem,
)
def test_the_programs_of_a_page_run(page, capsys, tmp_path, monkeypatch):
    """The programs of a page run in sequence, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    with jax.numpy_rank_promotion("allow"):
        for program in programs(page):
            exec(compile(program, str(page), "exec"), names)
    assert capsys.readouterr().out.strip()
    if page.stem in TUTORIALS:
        made = [picture.name for picture in tmp_path.glob("*.png")]
        assert made
        for name in made:
            assert (ROOT / "docs" / "images" / f"tutorial-{name}").is_file()
            assert f"images/tutorial-{name}" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_readme_prints_what_it_says(capsys):
    """The README's program is examples/quickstart.py, and its output is as printed."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = programs(ROOT / "README.md")
    example = ROOT / "examples" / "quickstart.py"
    docstring, source = example.read_text(encoding="utf-8").split("\n\n", 1)
    assert docstring.startswith('"""')
    assert source == program
    runpy.run_path(str(example))
    printed = capsys.readouterr().out.splitlines()
    shown = [line for line in text.splitlines() if "||grad Phi||^2 " in line][-3:]
    for line, expected in zip(printed, shown, strict=True):
        # Processors round differently; the message is in the magnitudes.
        name, *_, error, _, _, auc = line.split()
        name_shown, *_, error_shown, _, _, auc_shown = expected.split()
        assert name == name_shown
        assert float(error) == pytest.approx(float(error_shown), rel=0.3)
        assert float(auc) == pytest.approx(float(auc_shown), abs=0.002)


def test_the_ten_lines_are_ten():
    (program,) = programs(ROOT / "README.md")
    lines = [line for line in program.splitlines() if line.strip()]
    assert len(lines) <= 10


def test_the_demo_compares_what_the_readme_shows():
    makefile = (ROOT / "Makefile").read_text()
    assert "sagda compare --problem auc --data a9a --seeds 3" in makefile


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_on_the_pages_are_understood(page, tmp_path, monkeypatch):
    """Every command is parsed; nothing runs."""
    from sagda.commands.main import app

    text = page.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("sagda ")]
    lines += [c for c in re.findall(r"`(sagda [a-z][^`]*)`", text) if "--" in c]
    for line in lines:
        tokens = line.split()[1:]
        if tokens[0] != "--install-completion":
            app.parse_args(tokens, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_files_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
