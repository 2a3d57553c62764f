"""Estimates of the theorems' constants on problems whose constants are known."""

import jax.numpy as jnp
import numpy as np
import pytest

import sagda
from sagda.check import BadValue
from sagda.problems.quadratic import Quadratic
from sagda.theory import (
    estimate,
)
from sagda.theory.constants import not_covered


def made(seed, **options):
    options = {"clients": 6, "samples": 8, "x_dim": 4, "y_dim": 3} | options
    return Quadratic.make(seed=seed, **options)


def inside(estimate, true):
    return estimate.low <= true <= estimate.high


LATER = pytest.mark.slow


@pytest.mark.parametrize("curved", [True, pytest.param(False, marks=LATER)])
@pytest.mark.parametrize("nonconvex", [True, pytest.param(False, marks=LATER)])
def test_curvatures_of_quadratics_are_the_true_ones(nonconvex, curved):
    for seed in range(3):
        problem, federation = made(
            seed, nonconvex_clients=nonconvex, strongly_concave=curved
        )
        found = estimate(problem, federation, points=1, draws=2)
        assert found.smoothness.value == pytest.approx(problem.smoothness, rel=0.01)
        assert found.mu.value == pytest.approx(problem.mu, rel=0.01)


@pytest.mark.slow
def test_noise_lies_in_its_interval_and_spread_is_exact():
    """At least 90 of 100 problems, for a 95 % interval."""
    hits = {"x": 0, "y": 0}
    rng = np.random.default_rng(0)
    for seed in range(100):
        noise, spread = rng.uniform(0.1, 3.0, 2)
        problem, federation = made(seed, noise=noise, heterogeneity=spread)
        found = estimate(problem, federation, points=0, batch_size=1)
        hits["x"] += inside(found.sigma_x, noise)
        hits["y"] += inside(found.sigma_y, noise)
        assert found.spread_x.value == pytest.approx(spread, rel=1e-9)
        assert found.spread_y.value == pytest.approx(spread, rel=1e-9)
    assert min(hits.values()) >= 90, hits


@pytest.mark.slow
def test_noise_falls_with_the_batch():
    problem, federation = made(0, noise=1.0)
    one, four = (
        estimate(problem, federation, points=0, batch_size=b, draws=500).sigma_x.value
        for b in (1, 4)
    )
    assert four == pytest.approx(one / 2, rel=0.05)
    assert estimate(problem, federation, points=0, batch_size=None).sigma_x.value < 1e-9


def test_the_gap_of_a_quadratic_is_the_true_one():
    problem, federation = made(1)
    found = estimate(problem, federation, points=0, draws=2).gap.value
    run = sagda.simulate(
        sagda.algorithm("fsgda", local_lr=0.1), problem, federation, rounds=1,
        float64=True, seeds=0, batch_size=1,
    )  # fmt: skip
    phi, f = run.history["phi"][0, 0], run.history["f"][0, 0]
    x, y = problem.solution.x, problem.solution.y
    mean = lambda column: np.asarray(column).mean(0)
    A, B, C, a, b = (mean(column) for column in federation.data)
    least = x @ A @ x / 2 + x @ B @ y - y @ C @ y / 2 + a @ x + b @ y
    assert found == pytest.approx(phi - f / 10 - 0.9 * least, rel=1e-6)


def test_auc_and_dro_know_their_mu():
    rows = sagda.load("a9a").train
    clients = sagda.partition(rows, "iid", clients=3, samples=40, seed=0)
    auc, dro = sagda.AUC.of(clients), sagda.DRO.of(clients)
    assert auc.concavity() == pytest.approx(2 * auc.tau * (1 - auc.tau))
    assert dro.concavity() == 1.0
    found = estimate(auc, clients, points=0, draws=4, batch_size=5)
    assert found.mu == (auc.concavity(), "closed form", "everywhere", None, None)
    assert found.smoothness.value > found.mu.value
    assert found.constants.mu == found.mu.value


def test_large_models_are_measured_by_power_iteration(monkeypatch):
    problem, federation = made(0)
    monkeypatch.setattr("sagda.theory.constants.DENSE", 1)
    found = estimate(problem, federation, points=1, draws=3)  # other shapes of draws
    assert "power" in found.smoothness.how
    assert found.smoothness.value == pytest.approx(problem.smoothness, rel=0.01)
    assert found.smoothness.value <= problem.smoothness * (1 + 1e-9)
    assert "PL" in found.mu.how
    assert found.mu.value >= problem.mu * (1 - 1e-6)


def test_mu_without_concavity_is_by_the_inequality():
    """y^2 + 3 sin^2 y is bent both ways, and has a PL constant of 1/32."""
    rows = np.linspace(-1, 1, 12)
    clients = sagda.Federation.of(
        {"a": rows}, order=np.arange(12), size=np.array([4, 4, 4])
    )
    bent = lambda x, y, batch: (x - batch["a"]) ** 2 - y**2 - 3 * jnp.sin(y) ** 2
    problem = sagda.MinMax(bent, x=0.5, y=1.0)
    found = estimate(problem, clients, points=3, radius=2.0, draws=2)
    assert "PL" in found.mu.how
    assert 1 / 32 <= found.mu.value < 8


def test_problems_with_constraints_are_not_covered():
    rows = sagda.load("a9a").train
    clients = sagda.partition(rows, "iid", clients=3, samples=40, seed=0)
    with pytest.raises(BadValue, match="Agnostic constrains y to a simplex"):
        estimate(sagda.Agnostic.of(clients), clients)
    assert not_covered(sagda.AUC.of(clients)) is None
