"""Sweeps: rates and seeds in one program, grids, searches, and their folder."""

import json
from pathlib import Path

import numpy as np
import pytest

import sagda
from sagda import cli
from sagda.check import BadValue
from sagda.engines.simulate import run_side_by_side


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sagda.commands.base.start_jax", lambda: None)
    return tmp_path


SMALL = ["--problem", "quadratic", "--rounds", "6", "--batch-size", "2", "--json"]


def command(*words):
    return cli.main([*words, *SMALL])


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
        run_side_by_side(methods, *quadratic, rounds=1, batch_size=1)
    with pytest.raises(BadValue, match="at least one method"):
        sagda.sweep([], *quadratic)
    with pytest.raises(BadValue, match="cannot resume"):
        sagda.sweep(methods, *quadratic, resume=None)


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
    # The same again is done at once, and the saved configuration repeats it.
    assert command(*words, "--seeds", "2", "--out", "s") == 0
    assert cli.main(["sweep", "--config", "s/config.toml", "--out", "t"]) == 0
    model = "model.safetensors"
    assert Path("s", model).read_bytes() == Path("t", model).read_bytes()
    assert cli.main(["report", "s"]) == 0
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
        ([], "`grid` must have a parameter"),
        (["--grid", "local_lr"], "`--grid` must look like local_lr=0.01,0.1"),
        (["--grid", "locallr=1"], "grid of sagda-i"),
        (["--grid", "local_lr.z=1"], "grid local_lr"),
        (["--grid", "local_lr=0.1:0.2"], "`trials` must be set for the range"),
        (["--grid", "local_lr=2:1", "--trials", "2"], "a range from low to high"),
        (["--grid", "local_lr=a:b", "--trials", "2"], "a range from low to high"),
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
