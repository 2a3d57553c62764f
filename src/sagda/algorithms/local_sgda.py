"""Local SGDA, and Local SGDA+, which takes the gradients in y at an old x."""

from typing import NamedTuple

from sagda.algorithms.sagda import fsgda
from sagda.core import Algorithm, Phase, Point, PyTree, Rates, loop, where
from sagda.methods import method


@method
def local_sgda(
    *,
    local_lr: Rates = Rates(0.01, 0.01),
    local_steps: int = 10,
) -> Algorithm:
    """Local SGDA: K steps of every client, then the mean of their iterates.

    It is FSGDA with server rates 1, as is CD-MA. Its analysis has all clients in every
    round. Cohorts are possible here.

    Args:
        local_lr: the rates eta_x and eta_y.
        local_steps: K.

    Examples:
        >>> local_sgda().build().phases[0].name
        'local'

    Reference: Deng, Mahdavi, "Local Stochastic Gradient Descent Ascent: Convergence
    Analysis and Communication Efficiency", AISTATS 2021.
    """
    return fsgda(local_lr=local_lr, server_lr=1.0, local_steps=local_steps).build()


class Snapshot(NamedTuple):
    """The server's state of Local SGDA+."""

    z: Point  # (x_t, y_t)
    x_old: PyTree  # the x of gradients in y


@method
def local_sgda_plus(
    *,
    local_lr: Rates = Rates(0.01, 0.01),
    local_steps: int = 10,
    snapshot_every: int = 10,
) -> Algorithm:
    """Local SGDA+: ascent on y at a snapshot of x that is at most S rounds old.

    1. The server sends z_t and the snapshot x_old.
    2. Client i in S_t takes K steps: x along grad_x f_i(x, y; xi_k), y along
       grad_y f_i(x_old, y; xi_k), on the same sample.
    3. z_{t+1} is the mean of the iterates that they reach. Every S rounds x_old becomes
       x_{t+1}.

    Every message has the snapshot, and its bytes count. A step takes two gradients.

    Args:
        local_lr: the rates eta_x and eta_y.
        local_steps: K.
        snapshot_every: S, in rounds.

    Examples:
        >>> local_sgda_plus(snapshot_every=5).name
        'local-sgda-plus'

    Reference: as `local_sgda`.
    """

    def init(z):
        return Snapshot(z, z.x)

    def local(f, state, memory, turn):
        lr = local_lr.at(turn.round)

        def step(z, xi):
            at_old = f.grad(Point(state.x_old, z.y), xi)
            return f.step(z, Point(f.grad(z, xi).x, at_old.y), lr)

        z = loop(step, state.z, f.draw(turn.key("step"), local_steps))
        return z - state.z, memory

    def update(state, delta, share, t):
        z = state.z + delta
        now = (t + 1) % snapshot_every == 0
        return Snapshot(z, where(now, z.x, state.x_old))

    return Algorithm(init, (Phase("local", local, update, delta=lambda r: r),))
