"""Which columns of a history reports show."""

import jax.numpy as jnp

import sagda
from sagda.problems.metrics import metric_of
from sagda.report.charts import curve_rows
from sagda.runs.results import Results


def test_reports_show_custom_metrics_by_their_names(quadratic):
    run = sagda.simulate(
        sagda.fsgda(), *quadratic, rounds=3, batch_size=1, seeds=(0, 1),
        metrics={"x_norm": lambda problem, z, rows, weight: jnp.sum(z.x**2)},
    )  # fmt: skip
    results = Results({"rounds": 3}, {"fsgda": run.history.columns})
    assert results.metrics[-1] == "x_norm"
    assert metric_of("x_norm").label == "x_norm"
    assert len(curve_rows(results, "x_norm")) == 4
    assert results.main == "grad_phi_sq"


def test_reports_hide_what_only_checks_a_run():
    assert not metric_of("inner_residual").shown
    assert not metric_of("share_3").shown
