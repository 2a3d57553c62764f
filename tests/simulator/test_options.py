"""Check the options of `simulate` and `sweep`, and custom metrics."""

import inspect
from dataclasses import fields

import jax.numpy as jnp
import numpy as np
import pytest

import sagda
from sagda.check import BadValue
from sagda.simulator import checks, simulate
from sagda.simulator.options import RunOptions
from support import uneven_table

FEDERATION = uneven_table([3, 5, 2, 4])
PROBLEM = sagda.AUC.of(FEDERATION)
SEEDS = (0, 3)


def w_norm(problem, z, rows, weight):
    return jnp.sum(z.x.model**2)


def mean_label(problem, z, rows, weight):
    return weight @ rows.label


METRICS = {"w_norm": w_norm, "mean_label": mean_label}


def run(**options):
    defaults = {"rounds": 4, "batch_size": 2, "seeds": SEEDS}
    return sagda.simulate(sagda.sagda_i(), PROBLEM, FEDERATION, **defaults | options)


@pytest.mark.parametrize("function", [sagda.simulate, sagda.sweep])
def test_the_signature_shows_every_option_once(function):
    parameters = inspect.signature(function).parameters
    assert list(parameters)[3:] == [field.name for field in fields(RunOptions)]
    for name in parameters:
        assert inspect.getdoc(function).count(f"\n    {name}: ") == 1


def test_simulate_and_sweep_check_once(monkeypatch):
    calls = []
    count = lambda *arguments: calls.append(arguments) or checks.check_run(*arguments)
    monkeypatch.setattr(simulate, "check_run", count)
    monkeypatch.setattr("sagda.simulator.sweep.check_run", count)
    run(rounds=1)
    assert len(calls) == 1
    sagda.sweep([sagda.fsgda()], PROBLEM, FEDERATION, rounds=1, batch_size=2)
    assert len(calls) == 2


def test_custom_metrics_are_columns_of_the_history():
    out = run(metrics=METRICS)
    w = np.asarray(out.z.x.model)
    np.testing.assert_allclose(
        out.history["w_norm"][:, -1], (w**2).sum(axis=-1), rtol=1e-6
    )
    label, owner = FEDERATION.data.label, FEDERATION.owner
    by_client = [label[owner == i].mean() for i in range(4)]
    np.testing.assert_allclose(out.history["mean_label"], np.mean(by_client), rtol=1e-5)
    assert out.history["w_norm"].shape == (2, 5)


def test_names_and_functions_mix():
    out = run(metrics=["drift", w_norm])
    assert {"drift", "w_norm"} <= set(out.history.columns)
    same = run(metrics={"w_norm": w_norm})
    np.testing.assert_array_equal(out.history["w_norm"], same.history["w_norm"])


def test_custom_metrics_change_no_result():
    plain, measured = run(), run(metrics=METRICS)
    for name, column in plain.history.columns.items():
        if name != "seconds":
            np.testing.assert_array_equal(column, measured.history[name])


def test_runs_with_custom_metrics_resume():
    whole, part = run(metrics=METRICS), run(metrics=METRICS, rounds=2)
    for resume in (part, part.arrays()):
        resumed = run(metrics=METRICS, resume=resume)
        np.testing.assert_array_equal(
            resumed.history["w_norm"], whole.history["w_norm"]
        )
    with pytest.raises(BadValue, match="its metrics was"):
        run(metrics={"w_norm": w_norm}, resume=part)
    without = part._replace(setting=None)
    del without.history.columns["mean_label"]
    with pytest.raises(BadValue, match="no column 'mean_label'"):
        run(metrics=METRICS, resume=without)


def test_a_problem_s_own_column_cannot_be_redefined():
    problem, clients = sagda.Quadratic.make(clients=4)
    with pytest.raises(BadValue, match="have a column of this name"):
        sagda.simulate(
            sagda.fsgda(), problem, clients, rounds=1, batch_size=1,
            metrics={"distance_sq": lambda problem, z, rows, weight: 0.0},
        )  # fmt: skip


def test_custom_metrics_of_a_pytorch_model():
    torch = pytest.importorskip("torch")

    def norm(problem, z, rows, weight):
        assert rows.features.shape[0] == len(weight)
        return sum((a**2).sum() for a in z.x.model.values())

    problem = sagda.AUC.of(FEDERATION, model=sagda.Torch(torch.nn.Linear(4, 1)))
    out = sagda.simulate(
        sagda.sagda_i(), problem, FEDERATION, rounds=2, batch_size=2, seeds=SEEDS,
        metrics={"norm": norm}, float64=True,
    )  # fmt: skip
    by_hand = sum((a.reshape(2, -1) ** 2).sum(1) for a in out.z.x.model.values())
    np.testing.assert_allclose(out.history["norm"][:, -1], by_hand)
