"""Check sweeps of rates and seeds, grids, searches, and the folder of a sweep."""

import csv
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sagda
from sagda.check import BadValue
from sagda.commands.main import main
from sagda.problems.metrics import judged_by
from sagda.report.terminal import RunDisplay
from sagda.runs import grid
from sagda.runs.config import Config
from sagda.runs.execution import RunMonitor, Stopped, execute
from sagda.runs.experiment import prepare, resolve
from sagda.runs.grid import GridPoint
from sagda.simulator.history import History
from sagda.simulator.options import RunOptions
from sagda.simulator.run import Progress, Run
from sagda.simulator.simulate import simulate_stacked


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL = ["--problem", "quadratic", "--rounds", "6", "--batch-size", "2", "--json"]


def command(*words):
    return main([*words, *SMALL])


@pytest.mark.slow
def test_a_sweep_is_its_runs(quadratic):
    methods = [
        sagda.sagda_i(local_lr=lr, local_steps=K) for lr in (0.01, 0.02) for K in (2, 3)
    ]
    options = {"rounds": 5, "batch_size": 2, "cohort": 4, "dropout": 0.2}
    options |= {"seeds": (1, 2), "float64": True}
    together = sagda.sweep(methods, *quadratic, **options)
    assert len(together) == 4
    for method, run in list(zip(methods, together, strict=True))[::3]:
        alone = sagda.simulate(method, *quadratic, **options)
        assert run.history.seeds == (1, 2)
        for column in set(run.history.columns) - {"seconds"}:
            np.testing.assert_allclose(
                run.history[column], alone.history[column], rtol=1e-9, atol=1e-12
            )
        assert run.ledger.rounds.sent.tolist() == alone.ledger.rounds.sent.tolist()


def test_what_diverges_leaves_the_others_alone(quadratic):
    methods = [sagda.fsgda(local_lr=lr) for lr in (0.01, 1e9)]
    good, bad = sagda.sweep(methods, *quadratic, rounds=4, batch_size=2)
    assert bad.diverged
    assert not good.diverged
    assert np.isfinite(good.history["grad_phi_sq"]).all()


def test_only_numbers_may_differ_in_one_program(quadratic):
    methods = [sagda.fsgda(local_steps=2), sagda.fsgda(local_steps=3)]
    with pytest.raises(BadValue, match="must differ in rates and other real numbers"):
        simulate_stacked(methods, *quadratic, RunOptions(rounds=1, batch_size=1))
    with pytest.raises(BadValue, match="at least one method"):
        sagda.sweep([], *quadratic)
    with pytest.raises(BadValue, match="cannot resume"):
        sagda.sweep(methods, *quadratic, resume={})


@pytest.mark.slow
def test_a_grid_leaves_a_folder_with_its_heat_map(here, capsys):
    words = ["sweep", "--grid", "local_lr=0.01,0.02", "--grid", "server_lr.y=1,2,1e30"]
    assert command(*words, "--seeds", "2", "--out", "s") == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert summary["points"]["local_lr=0.02 server_lr.y=1"] == {
        "local_lr": 0.02,
        "server_lr.y": 1,
    }
    assert len(summary["points"]) == len(summary["algorithms"]) == 6
    assert "Rates(x=2.0, y=1.0)" in summary["methods"]["local_lr=0.02 server_lr.y=1"]
    page = Path("s/report.html").read_text()
    assert '"heat"' in page
    assert "diverged" in page
    # Repeating the command is quick, and the saved configuration repeats the sweep.
    assert command(*words, "--seeds", "2", "--out", "s") == 0
    assert main(["sweep", "--config", "s/config.toml", "--out", "t"]) == 0
    model = "model.safetensors"
    assert Path("s", model).read_bytes() == Path("t", model).read_bytes()
    assert main(["report", "s"]) == 0
    assert Path("s/figures/sweep.png").stat().st_size > 5000


@pytest.mark.slow
def test_a_search_tries_points_and_asks_for_the_same_ones_again(here, capsys):
    words = ["sweep", "--grid", "local_lr=0.001:0.1", "--trials", "10", "--seed", "3"]
    assert command(*words, "--out", "a") == 0
    first = json.loads(capsys.readouterr().out)["summary"]["points"]
    assert len(first) == 10
    assert all(0.001 <= point["local_lr"] <= 0.1 for point in first.values())
    assert command(*words, "--out", "b") == 0
    assert json.loads(capsys.readouterr().out)["summary"]["points"] == first


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "`grid` must have at least one parameter"),
        (["--grid", "local_lr"], "`--grid` must have the form local_lr=0.01,0.1"),
        (
            ["--grid", "local_lr=0.01", "--grid", "local_lr=0.1"],
            "`--grid` must name each parameter once, got local_lr again in 'local_lr=0",
        ),
        (["--grid", "locallr=1"], "grid of sagda-i"),
        (["--grid", "local_lr.z=1"], "grid local_lr"),
        (["--grid", "local_lr=0.1:0.2"], "`trials` must be set to search local_lr"),
        (
            ["--grid", "local_lr=2:1", "--trials", "2"],
            "a range LOW:HIGH with 0 < LOW < HIGH",
        ),
        (
            ["--grid", "local_lr=a:b", "--trials", "2"],
            "a range LOW:HIGH with 0 < LOW < HIGH",
        ),
        (["--grid", "local_lr=-1"], "`local_lr (x)` must be"),
        (["--grid", "local_steps=2.5"], "`local_steps` must be"),
        (["--grid", "start=warm,cold"], "`start` must be"),
        (["--grid", "local_lr=1", "--trials", "0"], "`trials` must be"),
    ],
)
def test_mistakes_in_a_grid(here, capsys, words, said):
    assert command("sweep", *words) == 2
    answer = json.loads(capsys.readouterr().out)["error"]
    assert said in answer
    assert not list(here.iterdir())


def test_a_search_needs_its_extra_before_anything_is_written(here, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert command("sweep", "--grid", "local_lr=0.1:1", "--trials", "2") == 2
    answer = json.loads(capsys.readouterr().out)["error"]
    assert answer == "`trials` needs the extra `sweep`: pip install 'sagda[sweep]'."
    assert not list(here.iterdir())


@pytest.mark.parametrize("keys", [*itertools.permutations(["", ".x", ".y"])])
def test_halves_are_set_in_whole_rates_whatever_the_order(keys):
    values = {"": 0.01, ".x": 0.2, ".y": 0.3}
    point = [(f"local_lr{key}", values[key]) for key in keys]
    both = GridPoint(tuple(point)).method(Config()).arguments["local_lr"]
    assert (both.x, both.y) == (0.2, 0.3)
    point.remove(("local_lr.x", 0.2))
    half = GridPoint(tuple(point)).method(Config()).arguments["local_lr"]
    assert (half.x, half.y) == (0.01, 0.3)


def test_every_point_has_a_name_of_its_own():
    values = [0.01, 1e30, 2.0, 500, 0.1234567, 0.12345671, 1234567, "warm"]
    names = [GridPoint((("local_lr", value),)).name for value in values]
    short = ["0.01", "1e+30", "2", "500", "0.1234567", "0.12345671", "1234567", "warm"]
    assert names == [f"local_lr={text}" for text in short]


@pytest.mark.parametrize("seed", range(3))
def test_a_search_learns_where_runs_diverge(monkeypatch, seed):
    monkeypatch.setattr(grid, "tail_of", lambda error: error)
    config = Config(grid={"local_lr": "0.000001:1000000"}, trials=40, seed=seed)
    errors = {}
    for points in grid.searched(config, errors):
        for point in points:
            lr = dict(point.values)["local_lr"]
            errors[point.name] = 1 / lr if lr <= 0.01 else math.inf
    later = list(errors.values())[16:]
    assert sum(map(math.isfinite, later)) >= 10


def test_a_search_where_all_diverges_goes_on(monkeypatch):
    monkeypatch.setattr(grid, "tail_of", lambda _: math.inf)
    listed = {"local_lr": "0.1:10", "server_lr": [1, 2]}
    anything = {"trials": 24, "grid": listed}
    points = grid.searched(Config(**anything), Everything())
    assert sum(map(len, points)) == 24


class Everything(dict):
    def __missing__(self, name):
        return None


def swept(folder, stop=lambda: False, **values):
    """Run a sweep into a folder, with two programs or two batches, and two seeds."""
    common = {"problem": "quadratic", "clients": 4, "samples": 4, "batch_size": 2}
    common |= {"rounds": 9, "seeds": 2, "dropout": 0.2, "cohort": 2}
    nothing = lambda *_: None
    monitor = RunMonitor(nothing, nothing, nothing, stop, checkpoint_seconds=0)
    return execute(prepare(resolve(Config(**common | values))), folder, monitor)


def interrupted(folder, after, **values):
    """Run the same sweep, but stop it after `after` calls of `stop`."""
    looks = itertools.count(1)
    with pytest.raises(Stopped):
        swept(folder, lambda: next(looks) >= after, **values)
    assert not (folder / "history.csv").exists()


def rows(folder):
    with (folder / "history.csv").open(newline="") as file:
        return [{**row, "seconds": ""} for row in csv.DictReader(file)]


SWEEPS = {
    "grid": {"grid": {"local_lr": [0.01, 0.02], "local_steps": [2, 3]}},
    "search": {"grid": {"local_lr": "0.001:0.1"}, "trials": 10},
}


@pytest.mark.parametrize(
    "kind", ["grid", pytest.param("search", marks=pytest.mark.slow)]
)
def test_a_stopped_sweep_ends_as_if_unbroken(tmp_path, kind):
    swept(tmp_path / "whole", **SWEEPS[kind])
    parts = tmp_path / "parts"
    interrupted(parts, 3, **SWEEPS[kind])
    # The first batch is complete now, and the second one has begun.
    interrupted(parts, 10, **SWEEPS[kind])
    kept = json.loads((parts / "checkpoint/manifest.json").read_text())["algorithms"]
    assert [entry["round"] == 9 for entry in kept.values()] == [True, False]
    swept(parts, **SWEEPS[kind])
    assert rows(parts) == rows(tmp_path / "whole")


def test_other_points_never_go_on_from_a_batch(tmp_path, monkeypatch):
    """After a stop, a new version of the sampler may propose different points."""
    search = {"grid": {"local_lr": "0.001:0.1"}, "trials": 2}
    asked = lambda *points: [[GridPoint((("local_lr", lr),)) for lr in points]]
    monkeypatch.setattr(grid, "searched", lambda *_: asked(0.01, 0.02))
    interrupted(tmp_path / "r", 2, **search)
    monkeypatch.setattr(grid, "searched", lambda *_: asked(0.03, 0.04))
    swept(tmp_path / "r", **search)
    swept(tmp_path / "other", **search)
    assert rows(tmp_path / "r") == rows(tmp_path / "other")


def test_runs_are_judged_alike_everywhere():
    assert judged_by({"phi": 0, "grad_x_sq": 0, "grad_phi_sq": 0}) == "grad_phi_sq"
    assert judged_by(["f", "grad_y_sq", "grad_x_sq"]) == "grad_x_sq"
    columns = {"grad_x_sq": np.array([[1.0, 2, 9]]), "round": np.array([[0, 1, 102]])}
    none: Any = None
    assert grid.tail_of(Run(History((0,), columns), none, 102, none, 0.0)) == 9
    latest = {"grad_x_sq": np.array([3.0, 2.0]), "grad_phi_sq": np.array([7.0, 5.0])}
    display = RunDisplay(Config(), quiet=True)
    display.started("sweep", 0)
    display.progress("sweep", Progress(1, 2, 0.1, latest, none, none, (), {}))
    assert display.bars.tasks[0].fields["error"] == "||grad Phi||^2 6.0e+00"


def test_a_run_of_a_sweep_is_resumed_as_its_own_alone(quadratic):
    methods = [sagda.fsgda(local_lr=lr) for lr in (0.01, 0.02)]
    options = {"batch_size": 2, "cohort": 4, "seeds": (1, 2), "layout": "mapped"}
    _, run = sagda.sweep(methods, *quadratic, rounds=3, **options)
    alone = sagda.simulate(methods[1], *quadratic, rounds=3, **options)
    assert run.setting == alone.setting
    assert list(run.history.columns) == list(alone.history.columns)
    go_on = {"rounds": 5} | options
    for past in (run, run.arrays()):
        again = sagda.simulate(methods[1], *quadratic, resume=past, **go_on)
        assert again.round == 5
        for field, other in {"cohort": 3, "batch_size": 3, "seeds": (1, 3)}.items():
            given = go_on | {field: other}
            with pytest.raises(BadValue, match=f"configuration, but its {field} was"):
                sagda.simulate(methods[1], *quadratic, resume=past, **given)
        with pytest.raises(BadValue, match="but its method was"):
            sagda.simulate(methods[0], *quadratic, resume=past, **go_on)
