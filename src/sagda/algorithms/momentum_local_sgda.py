"""Momentum Local SGDA: local steps along a running mean of gradients."""

from typing import NamedTuple

from sagda.core import Algorithm, Phase, Point, Rates, loop, zeros_like
from sagda.methods import method


class Moving(NamedTuple):
    """The server's state of Momentum Local SGDA."""

    z: Point  # (x_t, y_t)
    d: Point  # d_t, the mean of the clients' directions


@method
def momentum_local_sgda(
    *,
    local_lr: Rates = Rates(0.01, 0.01),
    local_steps: int = 10,
    momentum: float = 0.3,
) -> Algorithm:
    """Momentum Local SGDA: Local SGDA with steps along a running mean of gradients.

    0. Before the first round, every client sends a gradient at z_0. The server computes
       d_0, the mean of these gradients.
    1. The server sends z_t and d_t. Each client in the cohort S_t repeats K times: take
       a step along d, then set d = (1 - b) d + b grad f_i(z; xi_k) at the new z.
    2. The server sets z_{t+1} and d_{t+1} to the means of the clients' last z and d.

    Args:
        local_lr: the step sizes eta_x and eta_y, which include the factor alpha of the
            paper.
        local_steps: K, the number of local steps.
        momentum: b, the weight of the newest gradient. In the paper it is beta alpha,
            with beta about 3. If b = 1, d is the newest gradient.

    Examples:
        >>> momentum_local_sgda(momentum=0.5).arguments["momentum"]
        0.5

    Reference: Sharma, Panda, Joshi, Varshney, "Federated Minimax Optimization:
    Improved Convergence Analyses and Algorithms", ICML 2022.
    """

    def init(z):
        return Moving(z, zeros_like(z))

    def first(f, z, memory, turn):
        return f.grad(z, f.draw(turn.key("direction"))), memory

    def gather(state, d, share, t):
        return state._replace(d=d)

    def local(f, state, memory, turn):
        lr = local_lr.at(turn.round)

        def step(now, xi):
            z = f.step(now.z, now.d, lr)
            return Moving(z, (1 - momentum) * now.d + momentum * f.grad(z, xi))

        end = loop(step, state, f.draw(turn.key("step"), local_steps))
        return (end.z - state.z, end.d), memory

    def update(state, mean, share, t):
        delta, d = mean
        return Moving(state.z + delta, d)

    return Algorithm(
        init,
        phases=(Phase("local", local, update, delta=lambda r: r[0]),),
        opening=(Phase("direction", first, gather, lambda state: state.z),),
    )
