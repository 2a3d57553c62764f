"""CD-MA: local steps and a plain average, for cohorts of any size."""

from sagda.algorithms.sagda import fsgda
from sagda.core import Algorithm, Rates
from sagda.methods import method


@method
def cd_ma(
    *,
    local_lr: Rates = Rates(0.01, 0.01),
    local_steps: int = 10,
) -> Algorithm:
    """CD-MA (later CDMA-NC): FSGDA whose server takes the clients' mean iterate.

    1. The server sends z_t; client i in S_t takes K steps along grad f_i(z; xi_k).
    2. z_{t+1} is the mean of the iterates that they reach.

    (The SAGDA paper prints that mean added to z_t; the authors' program replaces z_t.)

    Args:
        local_lr: the rates eta_x and eta_y.
        local_steps: K.

    Examples:
        >>> cd_ma(local_steps=5).name
        'cd-ma'

    Reference: Xie, Zhang, Zhang, Shen, Qian, "Cross-Device Federated Minimax
    Optimization", arXiv 2105.14216; CDMA-NC in its last version.
    """
    return fsgda(local_lr=local_lr, server_lr=1.0, local_steps=local_steps).build()
