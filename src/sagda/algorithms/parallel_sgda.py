"""Parallel SGDA: one stochastic gradient descent ascent step per round."""

from typing import Literal

from sagda.algorithms.sagda import Iterate
from sagda.core import Algorithm, Phase, Rates, descend_ascend, loop, zeros_like
from sagda.methods import method


@method
def parallel_sgda(
    *,
    local_lr: Rates = Rates(0.01, 0.01),
    server_lr: Rates = Rates(2.0, 2.0),
    batches_per_round: int = 1,
    rate: Literal["local", "product"] = "local",
) -> Algorithm:
    """Parallel SGDA: the server makes one step per round along the mean gradient.

    1. The server sends z_t. Each client in the cohort S_t replies with the mean of B
       stochastic gradients at z_t.
    2. The server descends on x and ascends on y along the mean of the replies.

    The SAGDA paper has a minus sign in both updates. This is an error, since y must
    ascend.

    Args:
        local_lr: the local step sizes eta_{x,l} and eta_{y,l}.
        server_lr: the step sizes of the server; used only with `rate="product"`.
        batches_per_round: B, the number of batches. With B = K, a round uses as many
            samples as K local steps.
        rate: how the step size is computed. `local` uses the local step sizes, as the
            figures of the paper do. `product` multiplies them by those of the server,
            which makes the method FSGDA with K = 1.

    Examples:
        >>> parallel_sgda(batches_per_round=10).name
        'parallel-sgda'

    Reference: Lin, Jin, Jordan, "On Gradient Descent Ascent for Nonconvex-Concave
    Minimax Problems", ICML 2020, with the gradient averaged over clients.
    """

    def gradient(f, state, memory, turn):
        add = lambda g, xi: g + f.grad(state.z, xi)
        samples = f.draw(turn.key("step"), batches_per_round)
        total = loop(add, zeros_like(state.z), samples)
        return (1 / batches_per_round) * total, memory

    def update(state, g, share, t):
        lr, server = local_lr.at(t), server_lr.at(t)
        if rate == "product":
            lr = Rates(lr.x * server.x, lr.y * server.y)
        return Iterate(descend_ascend(state.z, g, lr))

    return Algorithm(Iterate, (Phase("local", gradient, update),))
