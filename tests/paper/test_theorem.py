"""The theorems against runs on quadratics with exact constants."""

import numpy as np
import pytest

from sagda.paper.theorem import distant_case, run_trial, sampling_case
from sagda.theory import (
    Setting,
    Steps,
)

LATER = pytest.mark.slow


@pytest.mark.parametrize(
    ("method", "K", "T"),
    [
        ("sagda-ii", 5, 10**4),
        pytest.param("fsgda", 1, 10**4, marks=LATER),
        pytest.param("fsgda", 5, 10**5, marks=LATER),
        pytest.param("sagda-ii", 1, 10**5, marks=LATER),
        pytest.param("sagda-i", 1, 10**5, marks=LATER),
        pytest.param("sagda-i", 5, 10**5, marks=LATER),
    ],
)
def test_with_everyone_the_mean_gradient_stays_below_the_bound(method, K, T):
    trial = run_trial(method, distant_case(), Setting(5, 5, K, T), seeds=10)
    for total in (trial.printed, trial.proof):
        assert max(trial.measured) < total < trial.begin  # else it would say nothing
        assert np.mean(trial.measured) > total / 10


@pytest.mark.parametrize("T", [10**4, pytest.param(10**5, marks=LATER)])
def test_with_sampled_clients_option_ii_exceeds_its_printed_bound(T):
    """K = 1, one client of 20, no noise: conditions met, bound broken."""
    case, setting = sampling_case(), Setting(20, 1, 1, T)
    trial = run_trial(
        "sagda-ii", case, setting, Steps(2.2e-6, 1.2e-4, 1e3, 1e3), seeds=10
    )
    assert trial.printed == pytest.approx(2 * 0.5625 / (0.0022 * T))
    assert min(trial.measured) > 2 * trial.printed
    assert max(trial.measured) < trial.proof  # the term that is missing at least


def test_rates_that_fail_a_condition_are_not_run():
    with pytest.raises(AssertionError, match="local rates"):
        run_trial(
            "fsgda", distant_case(), Setting(5, 5, 5, 10), Steps(1.0, 1.0), seeds=1
        )


def test_the_constants_of_a_case_are_exact():
    case = distant_case()
    c = case.constants
    assert (c.smoothness, c.mu) == (1.05, 1.0)
    assert (c.spread_x, c.spread_y) == pytest.approx((1.0, 1.0))
    # The noisiest client's, where the root mean square over all is one.
    assert 1.0 <= c.sigma_x < 1.5
    x, y = (np.asarray(v) for v in (case.start.x, case.start.y))
    A, B, C, a, b = (np.asarray(v).mean(0) for v in case.federation.data)
    f = lambda x, y: x @ A @ x / 2 + x @ B @ y - y @ C @ y / 2 + a @ x + b @ y
    assert y == pytest.approx(np.linalg.solve(C, B.T @ x + b))
    solution = case.problem.solution
    assert c.gap == pytest.approx(0.9 * (f(x, y) - f(solution.x, solution.y)))
