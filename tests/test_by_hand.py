"""One round of each method, with given samples and partial participation, in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sagda
from conftest import run64
from sagda.core import Phase, Turn
from sagda.engines.cohort import cohort_of
from sagda.engines.setup import Setup
from sagda.keys import key_of, root_key

SEED, COHORT, K, BATCH = 7, 3, 3, 2
ETA_X, ETA_Y, GAMMA_X, GAMMA_Y = 0.1, 0.2, 1.5, 0.5
X_0, Y_0 = np.array([1.0, -2.0, 0.5]), np.array([0.3, -0.7])


class Hand:
    """The problem's rows and the samples that the keys draw, as plain arrays."""

    def __init__(self, problem, federation, t):
        self.federation, self.t, self.key = federation, t, root_key(SEED)
        shape = {"cohort": COHORT, "batch_size": BATCH}
        self.setup = Setup.of(problem, federation, jnp.float32, **shape)
        local = Phase("local", client=None, server=None)
        ids = cohort_of(self.key, t, local, federation.clients, COHORT)
        self.cohort = np.asarray(ids).tolist()

    def rows(self, i, phase, purpose, count):
        """[count, BATCH] row numbers in the table."""
        turn = Turn(self.t, key_of(self.key, self.t, phase, i))
        f = self.setup.objective(i)
        xi = f.draw(turn.key(purpose), count)
        return np.asarray(self.federation.start[i] + xi.position)

    def gradient(self, x, y, rows):
        A, B, C, a, b = (column[rows] for column in self.federation.data)
        g_x = np.mean([A[j] @ x + B[j] @ y + a[j] for j in range(len(rows))], axis=0)
        g_y = np.mean([B[j].T @ x - C[j] @ y + b[j] for j in range(len(rows))], axis=0)
        return g_x, g_y

    def local(self, i, x, y, v_i, v):
        for rows in self.rows(i, "local", "step", K):
            g_x, g_y = self.gradient(x, y, rows)
            x, y = (
                x - ETA_X * (g_x - v_i[0] + v[0]),
                y + ETA_Y * (g_y - v_i[1] + v[1]),
            )
        return x, y

    def aggregate(self, x, y, ends):
        x_mean = np.mean([end[0] for end in ends], axis=0)
        y_mean = np.mean([end[1] for end in ends], axis=0)
        return x + GAMMA_X * (x_mean - x), y + GAMMA_Y * (y_mean - y)


ZERO = (np.zeros(3), np.zeros(2))


def by_hand(name, problem, federation, rounds):
    x, y = X_0, Y_0
    v, v_of = ZERO, dict.fromkeys(range(federation.clients), ZERO)
    for t in range(rounds):
        hand = Hand(problem, federation, t)
        if name == "fsgda":
            ends = [hand.local(i, x, y, ZERO, ZERO) for i in hand.cohort]
            x, y = hand.aggregate(x, y, ends)
        elif name == "parallel-sgda":
            g = [
                hand.gradient(x, y, rows)
                for i in hand.cohort
                for rows in hand.rows(i, "local", "step", 2)
            ]
            x, y = (
                x - ETA_X * np.mean([g_x for g_x, _ in g], axis=0),
                y + ETA_Y * np.mean([g_y for _, g_y in g], axis=0),
            )
        elif name == "sagda-ii":
            fresh = {
                i: hand.gradient(x, y, hand.rows(i, "collect", "variate", None))
                for i in hand.cohort
            }
            v = tuple(np.mean([fresh[i][h] for i in hand.cohort], 0) for h in (0, 1))
            ends = [hand.local(i, x, y, fresh[i], v) for i in hand.cohort]
            x, y = hand.aggregate(x, y, ends)
        else:
            ends = [hand.local(i, x, y, v_of[i], v) for i in hand.cohort]
            change = [np.zeros(3), np.zeros(2)]
            for i in hand.cohort:
                new = hand.gradient(x, y, hand.rows(i, "local", "variate", None))
                change = [
                    c + n - o for c, n, o in zip(change, new, v_of[i], strict=True)
                ]
                v_of[i] = new
            v = tuple(
                u + c / federation.clients for u, c in zip(v, change, strict=True)
            )
            x, y = hand.aggregate(x, y, ends)
    return x, y


@pytest.mark.parametrize("name", sorted(sagda.ALGORITHMS))
def test_rounds_by_hand(name, quadratic):
    """Two rounds, so that Option I meets variates of its own making."""
    if name not in ("sagda-i", "sagda-ii", "fsgda", "parallel-sgda"):
        pytest.fail(f"write {name}'s round down here")
    own = {"batches_per_round": 2} if name == "parallel-sgda" else {"local_steps": K}
    method = sagda.algorithm(
        name, local_lr=(ETA_X, ETA_Y), server_lr=(GAMMA_X, GAMMA_Y), **own
    )
    run = run64(
        method,
        *quadratic,
        rounds=3,
        cohort=COHORT,
        batch_size=BATCH,
        seeds=SEED,
        start=sagda.Point(X_0, Y_0),
    )
    x, y = by_hand(name, *quadratic, rounds=3)
    np.testing.assert_allclose(run.z.x[0], x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(run.z.y[0], y, rtol=1e-12, atol=1e-12)


def test_cohorts_differ_between_rounds(quadratic):
    cohorts = {tuple(Hand(*quadratic, t).cohort) for t in range(10)}
    assert len(cohorts) > 3


def test_double_precision_draws_the_same_rows(quadratic):
    single = Hand(*quadratic, 0).rows(2, "local", "step", K)
    with jax.enable_x64(True):
        double = Hand(*quadratic, 0).rows(2, "local", "step", K)
    np.testing.assert_array_equal(single, double)
