"""Local SGDA, and Local SGDA+, which computes the gradients in y at an older x."""

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
    """Local SGDA: clients make local steps, and the server averages their iterates.

    It is FSGDA with server rates 1, and the same method as CD-MA. In its analysis all
    clients take part in every round. Here the cohort may be smaller.

    Args:
        local_lr: the step sizes eta_x and eta_y.
        local_steps: K, the number of local steps.

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
    x_old: PyTree  # the snapshot of x, where clients compute the gradients in y


@method
def local_sgda_plus(
    *,
    local_lr: Rates = Rates(0.01, 0.01),
    local_steps: int = 10,
    snapshot_every: int = 10,
) -> Algorithm:
    """Local SGDA+: Local SGDA whose gradients in y are computed at an older x.

    1. The server sends z_t and x_old, a snapshot of x.
    2. Each client in the cohort S_t takes K steps: x along grad_x f_i(x, y; xi_k), and
       y along grad_y f_i(x_old, y; xi_k), on the same sample.
    3. The server sets z_{t+1} to the mean of the clients' last iterates. Every S rounds
       it sets x_old to x_{t+1}.

    The snapshot is sent in every round, and its bytes are counted. Each local step
    needs two gradients.

    Args:
        local_lr: the step sizes eta_x and eta_y.
        local_steps: K, the number of local steps.
        snapshot_every: S, the number of rounds between two snapshots.

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
