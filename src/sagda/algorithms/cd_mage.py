"""CD-MAGE and CD-MAGE+: steps corrected by the cohort's gradient at the round's start.

Both have two exchanges per round. The first gives e_t, an estimate of grad f(z_t). In
the second, clients step along e_t, corrected on the sample of each step.
"""

from typing import NamedTuple

import jax.numpy as jnp

from sagda.algorithms.sagda import Rows, variate
from sagda.core import Algorithm, Objective, Phase, Point, Rates, Turn, loop, zeros_like
from sagda.methods import method


class Anchor(NamedTuple):
    """The server's state of CD-MAGE."""

    z: Point  # (x_t, y_t)
    e: Point  # e_t


def anchored(f: Objective, z_t, e, lr: Rates, steps: int, turn: Turn):
    """K steps along grad f_i(z; xi_k) - grad f_i(z_t; xi_k) + e_t."""

    def step(z, xi):
        return f.step(z, f.grad(z, xi) - f.grad(z_t, xi) + e, lr)

    return loop(step, z_t, f.draw(turn.key("step"), steps))


@method
def cd_mage(
    *,
    local_lr: Rates = Rates(0.01, 0.01),
    local_steps: int = 10,
    anchor_batch: Rows = "all",
) -> Algorithm:
    """CD-MAGE (later CDMA-ONE): each step is corrected on its own sample.

    1. The server sends z_t; client i in S_t replies with its gradient at z_t. Their
       mean is e_t.
    2. The server sends e_t to the same S_t; client i takes K steps along
       grad f_i(z; xi_k) - grad f_i(z_t; xi_k) + e_t.
    3. z_{t+1} is the mean of the iterates that they reach.

    A step takes two gradients.

    Args:
        local_lr: the rates eta_x and eta_y.
        local_steps: K.
        anchor_batch: the rows of the gradient in 1: `all` local ones as in the
            authors' program, or a `batch`.

    Examples:
        >>> [phase.name for phase in cd_mage().build().phases]
        ['collect', 'local']

    Reference: as `cd_ma`.
    """

    def init(z):
        return Anchor(z, zeros_like(z))

    def collect(f, z, memory, turn):
        return variate(f, z, anchor_batch, turn), z

    def average(state, e, share, t):
        return state._replace(e=e)

    def local(f, e, z_t, turn):
        lr = local_lr.at(turn.round)
        return anchored(f, z_t, e, lr, local_steps, turn) - z_t, z_t

    def update(state, delta, share, t):
        return state._replace(z=state.z + delta)

    return Algorithm(
        init,
        phases=(
            Phase("collect", collect, average, lambda state: state.z),
            Phase("local", local, update, lambda state: state.e, delta=lambda r: r),
        ),
    )


class Recursive(NamedTuple):
    """The server's state of CD-MAGE+."""

    z: Point  # (x_t, y_t)
    z_old: Point  # the iterate one round before
    e: Point  # e_t


@method
def cd_mage_plus(
    *,
    local_lr: Rates = Rates(0.01, 0.01),
    local_steps: int = 10,
    weight: Rates = Rates(5.0, 5.0),
    decay: float = 0.2,
    anchor_batch: Rows = "all",
) -> Algorithm:
    """CD-MAGE+ (later CDMA-ADA): CD-MAGE with an estimate carried over rounds.

    1. The server sends z_t and z_{t-1}; client i in S_t replies with
       grad f_i(z_t; B_i) - (1 - alpha_t) grad f_i(z_{t-1}; B_i); the server adds
       (1 - alpha_t) e_{t-1} to their mean, which is e_t.
    2. and 3. as `cd_mage`, with rates eta / (t+1)^a.

    alpha_t = min(c / (t+1)^(2a), 1), and alpha_0 = 1; with c = 1 and a = 0 this is
    CD-MAGE.

    Args:
        local_lr: the rates eta_x and eta_y of the first round.
        local_steps: K.
        weight: c, for x and for y.
        decay: a.
        anchor_batch: the rows B_i: `all` local ones, or a `batch`.

    Examples:
        >>> cd_mage_plus(decay=0.0, weight=0.1).arguments["weight"]
        Rates(x=0.1, y=0.1)

    Reference: as `cd_ma`; the defaults of a and c are the authors' for AUC on MNIST.
    """

    def rates(t):
        eta, fall = local_lr.at(t), (t + 1.0) ** -decay
        return Rates(eta.x * fall, eta.y * fall)

    def alphas(t):
        c, fall = weight.at(t), (t + 1.0) ** (-2 * decay)
        first = t == 0
        at = lambda c: jnp.where(first, 1.0, jnp.minimum(c * fall, 1.0))
        return Rates(at(c.x), at(c.y))

    def rest(alpha):
        return Rates(1 - alpha.x, 1 - alpha.y)

    def init(z):
        return Recursive(z, z, zeros_like(z))

    def collect(f, message, memory, turn):
        z, z_old = message
        old = variate(f, z_old, anchor_batch, turn)
        new = variate(f, z, anchor_batch, turn)
        return new - rest(alphas(turn.round)) * old, z

    def average(state, u, share, t):
        return state._replace(e=u + rest(alphas(t)) * state.e)

    def local(f, e, z_t, turn):
        lr = rates(turn.round)
        return anchored(f, z_t, e, lr, local_steps, turn) - z_t, z_t

    def update(state, delta, share, t):
        return state._replace(z=state.z + delta, z_old=state.z)

    def points(state):
        return state.z, state.z_old

    return Algorithm(
        init,
        phases=(
            Phase("collect", collect, average, points),
            Phase("local", local, update, lambda state: state.e, delta=lambda r: r),
        ),
    )
