"""Deep AUC: its page agrees with its evidence, and tuning ends inside a grid."""

import importlib
import json
import sys
from itertools import product

import numpy as np
import pytest
from scipy import stats

from support import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
deep, runs = map(importlib.import_module, ("deep_auc", "deep_auc_runs"))
COHORTS = runs.COHORTS


@pytest.fixture(scope="module")
def evidence():
    return json.loads(deep.EVIDENCE.read_text(encoding="utf-8"))


def test_the_page_has_the_numbers_of_the_evidence(evidence):
    page = (ROOT / "docs" / "deep-auc.md").read_text(encoding="utf-8")
    assert deep.generated(evidence) in page
    assert evidence["settings"] == runs.SETTINGS
    assert deep.finished(evidence)


def test_chosen_rates_are_the_best_of_all_and_inside_their_grids(evidence):
    for cohort in deep.finished(evidence):
        for method, axes in runs.METHODS.items():
            entry = evidence["runs"][f"{method}/{cohort}"]
            tried = runs.places(evidence["tuning"][f"{method}/{cohort}"])
            best = tuple(runs.rung(entry["rates"][axis]) for axis in axes)
            assert tried[best] == max(tried.values())
            for move in product((-1, 0, 1), repeat=len(best)):
                assert tuple(np.add(best, move).tolist()) in tried
            values = runs.neighbours(tried, best)
            assert entry["validation"] == dict(zip(axes, values, strict=True))


def test_tuning_and_reporting_share_no_seed():
    assert not set(runs.SEEDS) & set().union(*runs.TUNING_SEEDS.values())


def test_rates_are_on_a_ladder():
    shown = [f"{runs.rate(i):g}" for i in range(-4, 4)]
    assert shown == ["0.01", "0.03", "0.1", "0.3", "1", "3", "10", "30"]
    assert [runs.rung(runs.rate(i)) for i in range(-9, 9)] == list(range(-9, 9))


def test_a_grid_grows_until_its_best_is_inside():
    measured = []

    def hill(place):
        measured.append(place)
        return -((place[0] - 3) ** 2) - (place[1] + 2) ** 2

    assert runs.tune(hill, (0, 0), {}) == (3, -2)
    assert len(measured) == len(set(measured))
    tried = {place: hill(place) for place in set(measured)}
    assert runs.neighbours(tried, (3, -2)) == [[-1, 0, -1]] * 2


def test_an_optimum_at_an_edge_is_refused():
    line = {(0,): 0.7, (1,): 0.8, (2,): 0.9}
    with pytest.raises(ValueError, match="edge of axis 0"):
        runs.neighbours(line, (2,))
    with pytest.raises(ValueError, match="must be the best point on axis 0"):
        runs.neighbours(line, (1,))
    assert runs.neighbours(line | {(3,): 0.6}, (2,)) == [[0.8, 0.9, 0.6]]


def test_a_diverged_run_counts_as_the_worst():
    points = {"0.1 3": [{"auc": [0.5, None]}, {"auc": [0.5, 0.9]}]}
    assert runs.places(points) == {(-2, 1): 0.45}


def made_up(shift: float) -> dict:
    """Evidence in which SAGDA is ahead by `shift` and a little noise."""
    noise = np.array([0.0, 1.0, -1.0, 2.0, 0.5]) / 10_000
    evaluations = runs.ROUNDS // runs.EVERY + 1

    def runs_of(ahead):
        curves = {
            str(seed): {
                "auc": [0.9 + seed / 1000 + ahead * (shift + more)] * evaluations
            }
            for seed, more in zip(runs.SEEDS, noise, strict=True)
        }
        return curves

    return {
        "runs": {
            f"{method}/{cohort}": runs_of(method == "sagda-i")
            for method in runs.METHODS
            for cohort in COHORTS
        }
    }


@pytest.mark.parametrize(
    ("shift", "word", "ahead"),
    [(1e-3, "ahead", 5), (0.0, "level", 3), (-1e-3, "behind", 0)],
)
def test_differences_are_paired_with_their_intervals(shift, word, ahead):
    evidence = made_up(shift)
    ours, theirs = (deep.aucs(evidence, m, 50)[:, 5] for m in ("sagda-i", "fsgda"))
    low, high = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    mean = 1000 * (ours - theirs).mean()
    row = next(
        r for r in deep.differences(evidence, 50).splitlines() if "round 50" in r
    )
    assert f"{mean:+.2f} [{1000 * low:+.2f}, {1000 * high:+.2f}]" in row
    assert f"| {ahead} of 5 | {word} |" in row


def test_intervals_of_one_method():
    evidence = made_up(0.0)
    values = deep.aucs(evidence, "fsgda", 50)[:, -1]
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    row = next(r for r in deep.results(evidence, 50).splitlines() if "FSGDA" in r)
    assert row.endswith(f"{values.mean():.4f} [{low:.4f}, {high:.4f}] |")
