"""CD-MA: clients make local steps, and the server averages the results."""

from sagda.algorithms.sagda import fsgda
from sagda.core import Algorithm, Rates
from sagda.methods import method


@method
def cd_ma(
    *,
    local_lr: Rates = Rates(0.01, 0.01),
    local_steps: int = 10,
) -> Algorithm:
    """CD-MA: clients make local steps, and the server takes the mean of their results.

    It is FSGDA with server rates 1. The last version of its paper calls it CDMA-NC.

    1. The server sends z_t to the clients of the cohort S_t.
    2. Client i takes K local steps along grad f_i(z; xi_k), and sends its last iterate.
    3. The server sets z_{t+1} to the mean of these iterates.

    The SAGDA paper adds that mean to z_t. The program of its authors replaces z_t by
    the mean, as is done here.

    Args:
        local_lr: the step sizes eta_x and eta_y.
        local_steps: K, the number of local steps.

    Examples:
        >>> cd_ma(local_steps=5).name
        'cd-ma'

    Reference: Xie, Zhang, Zhang, Shen, Qian, "Cross-Device Federated Minimax
    Optimization", arXiv 2105.14216; CDMA-NC in its last version.
    """
    return fsgda(local_lr=local_lr, server_lr=1.0, local_steps=local_steps).build()
