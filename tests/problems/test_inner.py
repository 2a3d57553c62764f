"""The solver for inner maxima, with and without constraints."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from sagda.problems.inner import maximise

RNG = np.random.default_rng(0)
ROOT = RNG.normal(size=(6, 6))
H = ROOT @ ROOT.T + 0.05 * np.eye(6)
B = RNG.normal(size=6)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def simplex(y):
    """The nearest point of the simplex, by sorting."""
    u = jnp.sort(y)[::-1]
    excess = (jnp.cumsum(u) - 1) / jnp.arange(1, 7)
    shift = excess[jnp.sum(u > excess) - 1]
    return jnp.maximum(y - shift, 0)


SETS = {
    "everything": (lambda y: y, {}),
    "a box": (lambda y: jnp.clip(y, -0.1, 0.2), {"bounds": [(-0.1, 0.2)] * 6}),
    "the simplex": (
        simplex,
        {
            "bounds": [(0, None)] * 6,
            "constraints": {"type": "eq", "fun": lambda y: y.sum() - 1},
        },
    ),
}


@pytest.mark.parametrize("name", SETS)
def test_maxima_of_a_concave_quadratic(name):
    project, scipy_options = SETS[name]
    value = lambda y: B @ y - y @ H @ y / 2
    y, residual = jax.jit(lambda y: maximise(value, project, y))(project(jnp.ones(6)))
    assert residual < 1e-8
    options = {"ftol": 1e-15, "maxiter": 1000}
    expected = minimize(
        lambda y: -(B @ y - y @ H @ y / 2),
        np.asarray(project(jnp.ones(6))),
        jac=lambda y: H @ y - B,
        method="SLSQP",
        options=options,
        **scipy_options,
    )
    np.testing.assert_allclose(value(y), -expected.fun, rtol=1e-8)
    np.testing.assert_allclose(y, expected.x, atol=1e-5)


def test_an_unfinished_solution_says_so():
    value = lambda y: B @ y - y @ H @ y / 2
    _, residual = maximise(value, lambda y: y, jnp.ones(6), max_steps=2)
    assert residual > 1e-3
