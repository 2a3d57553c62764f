"""Compare the rounds of each method with rounds computed by hand in NumPy.

The samples are given, and only some of the clients take part.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sagda
from sagda.core import Phase, Turn
from sagda.keys import key_of, root_key
from sagda.simulator.cohort import cohort_of
from sagda.simulator.setup import Setup
from support import run64

SEED, COHORT, K, BATCH = 7, 3, 3, 2
ETA_X, ETA_Y, GAMMA_X, GAMMA_Y = 0.1, 0.2, 1.5, 0.5
X_0, Y_0 = np.array([1.0, -2.0, 0.5]), np.array([0.3, -0.7])


class Hand:
    """The rows of the problem and the samples of the clients, as NumPy arrays."""

    def __init__(self, problem, federation, t):
        self.federation, self.t, self.key = federation, t, root_key(SEED)
        shape = {"cohort": COHORT, "batch_size": BATCH}
        self.setup = Setup.of(problem, federation, jnp.float32, **shape)
        local = Phase("local", client=None, server=None)
        ids = cohort_of(self.key, t, local, federation.clients, COHORT)
        self.cohort = np.asarray(ids).tolist()

    def rows(self, i, phase, purpose, count):
        """Return row numbers in the table, as an array [count, BATCH]."""
        turn = Turn(self.t, key_of(self.key, self.t, phase, i))
        f = self.setup.objective(i)
        xi = f.draw(turn.key(purpose), count)
        return np.asarray(self.federation.start[i] + xi.position)

    def gradient(self, x, y, rows):
        A, B, C, a, b = (column[rows] for column in self.federation.data)
        g_x = np.mean([A[j] @ x + B[j] @ y + a[j] for j in range(len(rows))], axis=0)
        g_y = np.mean([B[j].T @ x - C[j] @ y + b[j] for j in range(len(rows))], axis=0)
        return g_x, g_y

    def all_rows(self, i):
        first = self.federation.start[i]
        return np.arange(first, first + self.federation.size[i])

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


def mean_of(pairs):
    pairs = list(pairs)
    return tuple(np.mean([pair[h] for pair in pairs], axis=0) for h in (0, 1))


def fsgda(hand, x, y, memory):
    ends = [hand.local(i, x, y, ZERO, ZERO) for i in hand.cohort]
    return hand.aggregate(x, y, ends)


def local_sgda(hand, x, y, memory):
    return mean_of(hand.local(i, x, y, ZERO, ZERO) for i in hand.cohort)


def parallel_sgda(hand, x, y, memory):
    g_x, g_y = mean_of(
        hand.gradient(x, y, rows)
        for i in hand.cohort
        for rows in hand.rows(i, "local", "step", 2)
    )
    return x - ETA_X * g_x, y + ETA_Y * g_y


def sagda_ii(hand, x, y, memory):
    fresh = {
        i: hand.gradient(x, y, hand.rows(i, "collect", "variate", None))
        for i in hand.cohort
    }
    v = mean_of(fresh.values())
    ends = [hand.local(i, x, y, fresh[i], v) for i in hand.cohort]
    return hand.aggregate(x, y, ends)


def sagda_i(hand, x, y, memory):
    v = memory.setdefault("v", ZERO)
    v_of = memory.setdefault("v_of", dict.fromkeys(range(6), ZERO))
    ends = [hand.local(i, x, y, v_of[i], v) for i in hand.cohort]
    change = [np.zeros(3), np.zeros(2)]
    for i in hand.cohort:
        new = hand.gradient(x, y, hand.rows(i, "local", "variate", None))
        change = [c + n - o for c, n, o in zip(change, new, v_of[i], strict=True)]
        v_of[i] = new
    memory["v"] = tuple(u + c / 6 for u, c in zip(v, change, strict=True))
    return hand.aggregate(x, y, ends)


def anchored(hand, x, y, e, fall):
    """Compute the second exchange of CD-MAGE."""
    ends = []
    for i in hand.cohort:
        x_k, y_k = x, y
        for rows in hand.rows(i, "local", "step", K):
            here, start = hand.gradient(x_k, y_k, rows), hand.gradient(x, y, rows)
            x_k = x_k - ETA_X * fall * (here[0] - start[0] + e[0])
            y_k = y_k + ETA_Y * fall * (here[1] - start[1] + e[1])
        ends.append((x_k, y_k))
    return mean_of(ends)


def cd_mage(hand, x, y, memory):
    e = mean_of(hand.gradient(x, y, hand.all_rows(i)) for i in hand.cohort)
    return anchored(hand, x, y, e, 1.0)


def cd_mage_plus(hand, x, y, memory):
    now = mean_of(hand.gradient(x, y, hand.all_rows(i)) for i in hand.cohort)
    e, fall = now, (hand.t + 1) ** -0.5
    if hand.t > 0:
        before = mean_of(
            hand.gradient(*memory["z"], hand.all_rows(i)) for i in hand.cohort
        )
        alphas = [min(c / (hand.t + 1) ** 1.0, 1) for c in (0.4, 0.7)]
        e = tuple(
            now[h] - (1 - a) * before[h] + (1 - a) * memory["e"][h]
            for h, a in enumerate(alphas)
        )
    memory |= {"z": (x, y), "e": e}
    return anchored(hand, x, y, e, fall)


def local_sgda_plus(hand, x, y, memory):
    x_old = memory.setdefault("x", x)
    ends = []
    for i in hand.cohort:
        x_k, y_k = x, y
        for rows in hand.rows(i, "local", "step", K):
            g_x, _ = hand.gradient(x_k, y_k, rows)
            _, g_y = hand.gradient(x_old, y_k, rows)
            x_k, y_k = x_k - ETA_X * g_x, y_k + ETA_Y * g_y
        ends.append((x_k, y_k))
    x, y = mean_of(ends)
    if (hand.t + 1) % 2 == 0:
        memory["x"] = x
    return x, y


def momentum_local_sgda(hand, x, y, memory):
    if hand.t == 0:
        memory["d"] = mean_of(
            hand.gradient(x, y, hand.rows(i, "direction", "direction", None))
            for i in range(6)
        )
    ends, directions = [], []
    for i in hand.cohort:
        x_k, y_k, (d_x, d_y) = x, y, memory["d"]
        for rows in hand.rows(i, "local", "step", K):
            x_k, y_k = x_k - ETA_X * d_x, y_k + ETA_Y * d_y
            g_x, g_y = hand.gradient(x_k, y_k, rows)
            d_x, d_y = 0.6 * d_x + 0.4 * g_x, 0.6 * d_y + 0.4 * g_y
        ends.append((x_k, y_k))
        directions.append((d_x, d_y))
    memory["d"] = mean_of(directions)
    return mean_of(ends)


# By method: a round in NumPy, and the parameters other than the local rates.
SERVER = {"server_lr": (GAMMA_X, GAMMA_Y)}
BY_HAND = {
    "sagda-i": (sagda_i, {"local_steps": K} | SERVER),
    "sagda-ii": (sagda_ii, {"local_steps": K} | SERVER),
    "fsgda": (fsgda, {"local_steps": K} | SERVER),
    "parallel-sgda": (parallel_sgda, {"batches_per_round": 2} | SERVER),
    "cd-ma": (local_sgda, {"local_steps": K}),
    "cd-mage": (cd_mage, {"local_steps": K}),
    "cd-mage-plus": (
        cd_mage_plus,
        {"local_steps": K, "weight": (0.4, 0.7), "decay": 0.5},
    ),
    "local-sgda": (local_sgda, {"local_steps": K}),
    "local-sgda-plus": (local_sgda_plus, {"local_steps": K, "snapshot_every": 2}),
    "momentum-local-sgda": (momentum_local_sgda, {"local_steps": K, "momentum": 0.4}),
}


# A new method is not in this list, so it runs in the default suite at first.
SLOW = (
    "cd-ma", "cd-mage", "cd-mage-plus", "local-sgda", "local-sgda-plus",
    "momentum-local-sgda",
)  # fmt: skip
NAMES = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
    for name in sorted(sagda.ALGORITHMS)
]


@pytest.mark.parametrize("name", NAMES)
def test_rounds_by_hand(name, quadratic):
    """Compare four rounds, so that later rounds start from changed memories."""
    if name not in BY_HAND:
        pytest.fail(f"write {name}'s round down here")
    round, own = BY_HAND[name]
    run = run64(
        sagda.algorithm(name, local_lr=(ETA_X, ETA_Y), **own),
        *quadratic,
        rounds=4,
        cohort=COHORT,
        batch_size=BATCH,
        seeds=SEED,
        start=sagda.Point(X_0, Y_0),
    )
    x, y, memory = X_0, Y_0, {}
    for t in range(4):
        x, y = round(Hand(*quadratic, t), x, y, memory)
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
