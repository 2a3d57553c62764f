"""CD-MAGE and CD-MAGE+: local steps corrected by an estimate of the global gradient.

Both need two exchanges per round. The first one gives e_t, an estimate of grad f(z_t).
In the second one, clients make local steps along e_t plus a correction. The correction
is the difference of two gradients on the sample of the step. For control variates, see
`sagda.py`.
"""

from typing import NamedTuple

import jax.numpy as jnp

from sagda.algorithms.sagda import Rows, variate
from sagda.core import Algorithm, Objective, Phase, Point, Rates, Turn, loop, zeros_like
from sagda.methods import method


class Anchor(NamedTuple):
    """The server's state of CD-MAGE."""

    z: Point  # (x_t, y_t)
    e: Point  # e_t, the estimate of grad f(z_t)


def anchored(f: Objective, z_t, e, lr: Rates, steps: int, turn: Turn):
    """Take steps from z_t along grad f_i(z; xi_k) - grad f_i(z_t; xi_k) + e_t."""

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
    """CD-MAGE: local steps along the cohort's mean gradient, corrected at each step.

    The last version of its paper calls it CDMA-ONE.

    1. The server sends z_t. Each client in the cohort S_t replies with its gradient at
       z_t. The server computes e_t, the mean of these gradients.
    2. The server sends e_t to the same clients. Client i takes K steps along
       grad f_i(z; xi_k) - grad f_i(z_t; xi_k) + e_t.
    3. The server sets z_{t+1} to the mean of the clients' last iterates.

    Each local step needs two gradients.

    Args:
        local_lr: the step sizes eta_x and eta_y.
        local_steps: K, the number of local steps.
        anchor_batch: the rows of the gradient at z_t: `all` local rows, as in the
            program of the authors, or a random `batch`.

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
    z_old: Point  # z_{t-1}
    e: Point  # e_t, the estimate of grad f(z_t)


@method
def cd_mage_plus(
    *,
    local_lr: Rates = Rates(0.01, 0.01),
    local_steps: int = 10,
    weight: Rates = Rates(5.0, 5.0),
    decay: float = 0.2,
    anchor_batch: Rows = "all",
) -> Algorithm:
    """CD-MAGE+: CD-MAGE whose gradient estimate also uses the earlier rounds.

    The last version of its paper calls it CDMA-ADA.

    1. The server sends z_t and z_{t-1}. Each client in the cohort S_t replies with
       grad f_i(z_t; B_i) - (1 - alpha_t) grad f_i(z_{t-1}; B_i). The server sets e_t to
       the mean of the replies plus (1 - alpha_t) e_{t-1}.
    2. The server sends e_t to the same clients. Client i takes K steps along
       grad f_i(z; xi_k) - grad f_i(z_t; xi_k) + e_t, with step sizes eta / (t+1)^a.
    3. The server sets z_{t+1} to the mean of the clients' last iterates.

    alpha_0 = 1, and alpha_t = min(c / (t+1)^(2a), 1) in later rounds. With c = 1 and
    a = 0, the method is CD-MAGE.

    Args:
        local_lr: the step sizes eta_x and eta_y of the first round.
        local_steps: K, the number of local steps.
        weight: c, for x and for y.
        decay: a, the exponent by which step sizes and alpha_t decrease.
        anchor_batch: the rows B_i: `all` local rows, or a random `batch`.

    Examples:
        >>> cd_mage_plus(decay=0.0, weight=0.1).arguments["weight"]
        Rates(x=0.1, y=0.1)

    Reference: as `cd_ma`. The defaults of a and c are those that the authors use for
    AUC on MNIST.
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
