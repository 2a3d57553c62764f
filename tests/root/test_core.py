"""Check arithmetic with points and rates, and the loop over phases of a round."""

import numpy as np
import pytest

import sagda
from sagda.core import Algorithm, Phase, Point, Rates
from sagda.methods import method

RATES = Rates(0.1, lambda t: 0.5 / (t + 1))


@pytest.mark.parametrize("two", [2, 2.0, np.float64(2), np.float32(2)])
def test_rates_times_a_number_from_both_sides(two):
    for scaled in (RATES * two, two * RATES):
        assert isinstance(scaled, Rates)
        assert (scaled.at(4).x, scaled.at(4).y) == pytest.approx((0.2, 0.2))


def test_rates_times_a_point_scale_its_halves():
    d = Rates(2.0, 3.0) * Point(np.ones(2), np.ones(1))
    assert (d.x.tolist(), d.y.tolist()) == ([2.0, 2.0], [3.0])


@pytest.mark.parametrize("wrong", [None, 3.0, (1, 2), Rates(1, 1)])
def test_a_server_function_that_returns_no_state_is_named(quadratic, wrong):
    @method
    def broken() -> Algorithm:
        client = lambda f, state, kept, turn: (state.z, kept)
        update = lambda state, mean, share, t: wrong
        return sagda.fsgda().build()._replace(phases=(Phase("local", client, update),))

    message = r"phase 'local' must return the server's state, a NamedTuple with a field"
    with pytest.raises(TypeError, match=message):
        sagda.simulate(broken(), *quadratic, rounds=1, batch_size=1)


@pytest.mark.parametrize("wrong", [None, 3.0, (1, 2, 3)])
def test_a_client_function_that_returns_no_pair_is_named(quadratic, wrong):
    @method
    def broken() -> Algorithm:
        client = lambda f, state, kept, turn: wrong
        update = lambda state, mean, share, t: state
        return sagda.fsgda().build()._replace(phases=(Phase("local", client, update),))

    with pytest.raises(TypeError, match=r"phase 'local' must return a pair \(reply, k"):
        sagda.simulate(broken(), *quadratic, rounds=1, batch_size=1)
