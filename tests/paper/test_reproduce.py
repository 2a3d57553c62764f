"""The reproduction: figures as files, evidence, effects, verdicts, and the page."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from sagda.algorithms import ALGORITHMS
from sagda.check import BadValue
from sagda.commands.main import main
from sagda.paper import claims, page, tuning
from sagda.paper import figure as figures
from sagda.paper.evidence import (
    Curve,
    Evidence,
    band,
    crossing,
    effect,
    interval,
    load,
    store,
)
from sagda.paper.page import three_targets
from sagda.paper.reproduce import INTRO
from sagda.paper.run import Reproduction
from sagda.report.blocks import Chart, Grid, Heading, Text, markdown_table
from sagda.runs.experiment import resolve
from sagda.runs.parameters import options_of
from support import ROOT

SIX = ["sagda-i", "sagda-ii", "fsgda", "parallel-sgda", "cd-ma", "cd-mage-plus"]


def curve(level, seeds=5, slope=0.0, spread=0.05, cost=1.0, key=0):
    """Errors that fall from 1 as 10^(-slope t), then stay at `level`."""
    rounds = np.arange(0.0, 101.0, 5.0)
    noise = spread * np.random.default_rng(key).normal(size=(seeds, 1))
    fall = np.maximum(10.0 ** (-slope * rounds), level)[None] * 10**noise
    return Curve(rounds, 10 * cost * rounds, 100 * cost * rounds, {"grad_phi_sq": fall})


@pytest.mark.parametrize("name", figures.ORDER)
def test_every_figure_is_complete(name):
    """Its configurations resolve, and the paper's settings are the printed ones."""
    figure = figures.read(name)
    assert set(figure.parts) == set(figures.SETTINGS) == set(figure.captions)
    for setting, parts in figure.parts.items():
        for config in parts.values():
            config = resolve(config)
            assert config.clients == config.samples == 100
            assert config.seeds >= (3 if name == "gan" else 5)
            assert config.partition == "by-label"
            if setting == "paper":
                printed = {"local_lr": 0.01, "server_lr": 2.0, "local_steps": 10}
                found = config.model_dump()
                for key, value in printed.items():
                    assert found[key] == value
                assert not config.set


@pytest.mark.parametrize("name", [*figures.PANELS, "partial"])
def test_tuned_rates_are_inside_their_sweeps(name):
    """All methods have one budget, or more if a grid grew; the best is not an edge."""
    found = figures.read(name).tuning["found"]
    assert list(found) == SIX
    least = min(len(one["sweep"]) for one in found.values())
    assert least >= 30
    for method, one in found.items():
        best, rows = one["best"], one["sweep"]
        assert set(best) <= set(options_of(method))
        (chosen,) = [row for row in rows if row | best == pytest.approx(row)]
        # To the three digits that are stored.
        assert chosen["error"] <= 1.01 * min(row["error"] for row in rows)
        for key in best:
            values = sorted({row[key] for row in rows})
            assert values[0] < chosen[key] < values[-1]


def test_names_of_figures():
    assert figures.chosen(["fig2c"]) == ["fig1c"]
    assert figures.chosen(["gan", "fig1a"]) == ["fig1a", "gan"]
    assert figures.chosen([]) == list(figures.ORDER)
    with pytest.raises(BadValue, match="`figure` must be one of all, fig1a"):
        figures.chosen(["fig9"])


def test_intervals_are_those_of_student_s_t():
    mean, low, high = interval(np.array([1.0, 2.0, 4.0]))
    half = 4.302653 * np.std([1, 2, 4], ddof=1) / 3**0.5
    assert (mean, high - mean, mean - low) == pytest.approx((7 / 3, half, half))
    assert interval(np.array([1.0]))[1:] == (-math.inf, math.inf)


def test_an_effect_is_paired_and_at_equal_budgets():
    near, far = curve(1e-4, slope=0.1), curve(1e-2, slope=0.1)
    found = effect(near, far, "round")
    # Both curves have the same noise per seed, so the interval has no width.
    assert found.factor == pytest.approx(100)
    assert found.low == pytest.approx(found.high)
    assert found.ahead
    # With twenty times the bytes per round, the better one is far behind.
    dear = curve(1e-4, slope=0.1, cost=20.0)
    assert effect(dear, far, "round").ahead
    assert effect(dear, far, "bytes").behind


def test_a_diverged_run_loses():
    fine, broken = curve(1e-2), curve(1e-4)
    broken.error[2, -1] = np.nan
    assert effect(fine, broken, "round").factor == math.inf
    assert effect(broken, fine, "round").behind


def test_where_curves_cross():
    fast, slow = curve(1e-2, slope=0.2, spread=0), curve(1e-4, slope=0.05, spread=0)
    assert crossing(slow, fast, "round") == pytest.approx(40, abs=1)
    assert crossing(fast, slow, "round") is None
    assert crossing(fast, curve(1e-1, spread=0), "round") == pytest.approx(0, abs=6)


def test_a_band_contains_its_mean_and_smoothing_keeps_constants():
    low_mean_high = band(curve(1e-3, slope=1.0, spread=0.3), "grad_phi_sq")
    mean, low, high = low_mean_high
    assert ((low < mean) & (mean < high)).all()
    flat = curve(1.0, spread=0)
    np.testing.assert_allclose(band(flat, "grad_phi_sq", 5), 1.0)


def evidence_of(**levels):
    curves = {name.replace("_", "-"): curve(v, slope=0.1) for name, v in levels.items()}
    return Evidence("fig1c", False, {"paper": "x"}, {"paper": curves})


def test_verdicts_follow_the_evidence():
    rest = {"fsgda": 1e-2, "parallel_sgda": 1e-1, "cd_ma": 1e-2}
    good = evidence_of(sagda_i=1e-4, sagda_ii=1e-4, cd_mage_plus=1e-3, **rest)
    word = lambda found: next(iter(claims.verdicts({"fig1c": found}))).word
    assert word(good) == "holds"
    mixed = evidence_of(sagda_i=1e-4, sagda_ii=1e-4, cd_mage_plus=1e-5, **rest)
    assert word(mixed) == "holds partly"
    bad = evidence_of(sagda_i=1, sagda_ii=1, cd_mage_plus=1e-5, **rest)
    assert word(bad) == "does not hold"
    (first, *_) = claims.verdicts({"fig1c": mixed})
    assert "larger in 2: sagda-i against cd-mage-plus (fig1c)" in first.why


def test_evidence_is_stored_to_four_digits(tmp_path):
    found = evidence_of(sagda_i=1e-4, fsgda=1e-2)
    found.curves["paper"]["fsgda"].error[0, 3] = np.nan
    store(tmp_path / "e.json", found)
    again = load(tmp_path / "e.json")
    for name, one in found.curves["paper"].items():
        np.testing.assert_allclose(
            again.curves["paper"][name].error, one.error, rtol=1e-3
        )
    epsilons = three_targets(evidence_of(sagda_i=1e-4, fsgda=1e-2), "paper")
    assert len(epsilons) == 3
    assert sorted(epsilons, reverse=True) == epsilons


def test_a_grid_grows_until_the_best_is_inside(monkeypatch):
    """The minimum of these errors is far outside the first grid."""

    def fake(experiment, name, points):
        at = lambda p: math.prod(v for _, v in p)
        return {p: abs(math.log10(at(p)) - 1.2) + 1e-3 * len(p) for p in points}

    monkeypatch.setattr(tuning, "measured", fake)
    config = figures.read("fig1c").parts["paper"][""]
    asked = {"seed": 9, "seeds": 1, "local_lr": [0.01, 0.1], "server_lr": [1.0, 3.0]}
    for name in ("fsgda", "cd-ma"):
        found = tuning.tuned(config, name, asked)
        best = dict(min(found, key=lambda p: found[p]))
        values = {k: sorted({dict(p)[k] for p in found}) for k in best}
        for key, value in best.items():
            assert values[key][0] < value < values[key][-1]


SMALL = """title = "Small"
where = "nowhere"
cost = 0.1

[config]
problem = "auc"
data = "a9a"
clients = 6
samples = 20
algorithms = ["sagda-i", "fsgda"]
rounds = 6
seeds = 2
eval_every = 1

[settings.paper]
caption = "As printed."

[settings.tuned]
caption = "Tuned."
local_lr = 0.05
"""


@pytest.fixture
def small(tmp_path):
    """A folder with its own fig1c.toml, which replaces the package's."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "fig1c.toml").write_text(SMALL)
    return out


def test_a_figure_runs_once_and_leaves_page_and_evidence(small, capsys):
    docs = small / "docs" / "reproduction.md"
    docs.parent.mkdir()
    words = ["reproduce", "fig1c", "--out", str(small), "--json"]
    assert main([*words, "--docs", str(docs)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["figures"] == ["fig1c"]
    history = (small / "fig1c" / "paper" / "history.csv").read_text()
    assert "Verdicts" in (small / "index.html").read_text()
    assert (docs.parent / "images" / "reproduction-fig1c-paper.png").stat().st_size > 0
    assert "## Verdicts" in docs.read_text()
    # A finished figure runs again only with --again, and gives identical bits.
    written = (small / "fig1c" / "paper" / "history.csv").stat().st_mtime_ns
    assert main(words) == 0
    assert (small / "fig1c" / "paper" / "history.csv").stat().st_mtime_ns == written
    assert main([*words, "--again"]) == 0
    assert without_seconds(small) == without_seconds(history)


def without_seconds(text) -> list[list[str]]:
    if not isinstance(text, str):
        text = (text / "fig1c" / "paper" / "history.csv").read_text()
    rows = [line.split(",") for line in text.splitlines()]
    place = rows[0].index("seconds")
    return [row[:place] + row[place + 1 :] for row in rows]


def test_without_mnist_the_other_figures_run(small, capsys, monkeypatch):
    from sagda.paper import reproduce

    def missing(name):
        raise BadValue("MNIST could not be downloaded; name it in SAGDA_DATA_DIR.")

    monkeypatch.setattr(reproduce, "load", missing)
    assert main(["reproduce", "fig1c", "fig1d", "--out", str(small), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["figures"] == ["fig1c"]
    assert result["left_out"] == ["fig1d"]
    assert "SAGDA_DATA_DIR" in result["missing"]


def test_all_named_algorithms_exist():
    for name in figures.ORDER:
        for parts in figures.read(name).parts.values():
            for config in parts.values():
                assert set(config.algorithms) <= set(ALGORITHMS)


@pytest.mark.parametrize("name", figures.ORDER)
def test_the_published_evidence_is_of_these_figures(name):
    path = ROOT / "docs" / "evidence" / f"{name}.json"
    reproduction = Reproduction({name: figures.read(name)}, Path("none"))
    assert load(path).digests == reproduction.digests(name)


def test_a_retuned_figure_has_its_rates_and_sweeps(monkeypatch):
    def error(point):
        product = math.prod(value for _, value in point)
        return math.inf if product > 1 else abs(math.log10(product) + 1)

    fake = lambda experiment, name, points: {p: error(p) for p in points}
    monkeypatch.setattr(tuning, "measured", fake)
    figure = tuning.retuned(figures.read("fig1c"), lambda line: None)
    found = figure.tuning["found"]
    assert list(found) == SIX
    assert math.prod(found["sagda-i"]["best"].values()) == pytest.approx(0.1)
    assert any(row["error"] == math.inf for row in found["fsgda"]["sweep"])
    assert figure.parts["tuned"][""].set["fsgda"] == found["fsgda"]["best"]


def test_the_page_says_what_the_evidence_says(monkeypatch):
    """Every sentence and table; charts and pictures need the run folders."""
    monkeypatch.setattr(page, "panel", lambda curves, window: {})
    docs = ROOT / "docs"
    evidence = {n: load(docs / "evidence" / f"{n}.json") for n in figures.ORDER}
    read = {name: figures.read(name) for name in figures.ORDER}
    text = (docs / "reproduction.md").read_text(encoding="utf-8")
    assert text.startswith(INTRO.rstrip())
    for block in page.blocks(read, evidence, Path("none"), 1):
        match block:
            case Heading(heading, level):
                assert f"\n{'#' * level} {heading}\n" in text
            case Text(paragraph):
                assert f"\n{paragraph}\n" in text
            case Grid(head, rows):
                assert markdown_table(head, rows) in text
            case Chart(_, _, caption):
                assert f"\n*{caption}*\n" in text
