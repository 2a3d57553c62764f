"""Compare the measured costs of methods with the costs that the papers state."""

import numpy as np
import pytest

import sagda
from sagda import Point, cost
from sagda.simulator.history import History

Z = Point({"w": np.zeros((3, 2), np.float32)}, np.zeros(4, np.float32))
U = 4 * 10  # bytes of one point


@pytest.mark.parametrize(
    ("name", "options", "phases"),
    [  # down and up in points, gradients, rows with batches of 7, passes
        ("fsgda", {"local_steps": 5}, [(1, 1, 5, 35, 0)]),
        ("sagda-i", {"local_steps": 5}, [(2, 2, 6, 42, 0)]),
        ("sagda-ii", {"local_steps": 5}, [(1, 1, 1, 7, 0), (1, 1, 5, 35, 0)]),
        ("parallel-sgda", {}, [(1, 1, 1, 7, 0)]),
        ("parallel-sgda", {"batches_per_round": 5}, [(1, 1, 5, 35, 0)]),
        (
            "sagda-i",
            {"local_steps": 5, "variate_batch": "all"},
            [(2, 2, 6, 35, 1)],
        ),
        ("cd-ma", {"local_steps": 5}, [(1, 1, 5, 35, 0)]),
        ("local-sgda", {"local_steps": 5}, [(1, 1, 5, 35, 0)]),
        ("local-sgda-plus", {"local_steps": 5}, [(1.6, 1, 10, 70, 0)]),
        ("momentum-local-sgda", {"local_steps": 5}, [(2, 2, 5, 35, 0)]),
        ("cd-mage", {"local_steps": 5}, [(1, 1, 1, 0, 1), (1, 1, 10, 70, 0)]),
        ("cd-mage-plus", {"local_steps": 5}, [(2, 1, 2, 0, 2), (1, 1, 10, 70, 0)]),
    ],
)
def test_costs_of_a_round(name, options, phases):
    algorithm = sagda.algorithm(name, **options).build()
    found = [tuple(p[1:]) for p in cost(algorithm, Z, batch_size=7)]
    assert found == [(d * U, u * U, g, r, p) for d, u, g, r, p in phases]


def test_counting_takes_no_longer_for_more_steps():
    """Gradients are counted in the traced program, which does not run."""
    algorithm = sagda.sagda_ii(local_steps=10**6).build()
    _, local = cost(algorithm, Z, batch_size=7)
    assert local.gradients == 10**6


def test_gradients_in_a_loop_of_unknown_length_are_refused():
    import jax

    @sagda.method
    def endless():
        def local(f, state, memory, turn):
            go = lambda z: f.grad(z, f.draw(turn.key("step")))
            return jax.lax.while_loop(lambda z: z.y[0] > 0, go, state.z), memory

        built = sagda.fsgda().build()
        return built._replace(phases=(built.phases[0]._replace(client=local),))

    with pytest.raises(ValueError, match=r"cannot be counted; use `sagda\.loop`"):
        cost(endless().build(), Z)


def test_costs_of_a_warm_start():
    algorithm = sagda.sagda_i(start="warm").build()
    (warm,) = cost(algorithm, Z, batch_size=7, opening=True)
    assert warm == ("warm", U, U, 1, 7, 0)
    assert cost(sagda.sagda_i().build(), Z, opening=True) == ()


def test_the_ledger_of_a_run(quadratic):
    out = sagda.simulate(
        sagda.sagda_i(local_steps=3, start="warm"),
        *quadratic,
        rounds=4,
        cohort=2,
        batch_size=2,
    )
    point, clients = 4 * 5, 6
    rounds = np.arange(5)
    ledger = {name: out.history[name][0] for name in ("bytes_down", "bytes_up")}
    for column in ledger.values():
        np.testing.assert_array_equal(column, point * (clients + rounds * 2 * 2))
    np.testing.assert_array_equal(out.history["gradients"][0], 1 + 4 * rounds)
    np.testing.assert_array_equal(out.history["samples"][0], 2 * (1 + 4 * rounds))


def test_samples_of_whole_passes_are_the_rows_of_those_who_took_part(uneven):
    """If all clients take part, a pass counts the mean number of their rows."""
    out = sagda.simulate(
        sagda.fsgda(local_steps=2),
        sagda.AUC.of(uneven),
        uneven,
        rounds=3,
        batch_size=None,
    )
    np.testing.assert_allclose(out.history["samples"][0], 2 * 3.5 * np.arange(4))
    np.testing.assert_array_equal(out.history["gradients"][0], 2 * np.arange(4))


def test_rounds_samples_and_bytes_until_epsilon():
    columns = {
        "round": np.array([[0, 1, 2, 3]] * 2),
        "samples": np.array([[0, 10, 20, 30]] * 2),
        "bytes_down": np.array([[0, 1, 2, 3]] * 2),
        "bytes_up": np.array([[0, 5, 6, 7]] * 2),
        "grad_phi_sq": np.array([[4.0, 2.0, 0.5, 1.5], [4.0, 4.0, 4.0, 3.0]]),
    }
    until = History((0, 1), columns).until(1.0)
    np.testing.assert_array_equal(until["rounds"], [2, np.nan])
    np.testing.assert_array_equal(until["samples"], [20, np.nan])
    np.testing.assert_array_equal(until["bytes"], [8, np.nan])
    tail = History((0, 1), columns).tail("grad_phi_sq", 2)
    np.testing.assert_array_equal(tail, [1.0, 3.5])
    rows = list(History((0, 1), columns).rows())
    assert rows[2]["grad_phi_sq"] == 0.5
    assert rows[-1] == {
        "seed": 1,
        "round": 3,
        "samples": 30,
        "bytes_down": 3,
        "bytes_up": 7,
        "grad_phi_sq": 3.0,
    }
    with pytest.raises(ValueError, match="did you mean 'grad_phi_sq'"):
        History((0,), columns)["grad_phi"]
