"""SAGDA, Algorithm 1 of Yang et al. (2022), and FSGDA, which has no control variates.

A number in a comment is a line of Algorithm 1. Three of its lines are not in this
module. The simulator or the federation samples the cohort S_t (line 4), and sends and
receives the messages (lines 7 and 9). The theorems are in `sagda.theory`.
"""

from typing import Literal, NamedTuple

from sagda.core import Algorithm, Objective, Phase, Point, Rates, Turn, loop, zeros_like
from sagda.methods import method

Rows = Literal["batch", "all"]  # the rows of a gradient at z_t


class State(NamedTuple):
    """The server's state of SAGDA."""

    z: Point  # (x_t, y_t)
    v: Point  # vbar, the mean of the control variates, for x and y


def local_updates(f: Objective, z, v_i, v, lr: Rates, steps: int, turn: Turn):
    """Take K steps: descend on x, ascend on y along grad f_i - v_i + v (line 10)."""

    def step(z, xi):
        return f.step(z, f.grad(z, xi) - v_i + v, lr)

    return loop(step, z, f.draw(turn.key("step"), steps))


def variate(f: Objective, z, rows: Rows, turn: Turn):
    """Return the gradient of f_i at z_t, on a new batch or on all local rows."""
    key = turn.key("variate")
    return f.grad(z, f.whole(key) if rows == "all" else f.draw(key))


@method
def sagda_i(
    *,
    local_lr: Rates = Rates(0.01, 0.01),
    server_lr: Rates = Rates(2.0, 2.0),
    local_steps: int = 10,
    start: Literal["zeros", "warm"] = "zeros",
    variate_batch: Rows = "batch",
) -> Algorithm:
    """SAGDA, Option I: local steps corrected by stored gradients, one exchange a round.

    Each client i stores a control variate v_i, a gradient at an earlier iterate. It
    corrects the local steps, so that clients with different data do not drift apart.

    1. The server sends z_t and vbar, the mean of v_i over all M clients.
    2. Each client in the cohort S_t takes K steps along grad f_i(z; xi_k) - v_i + vbar.
    3. It then sets v_i to a new stochastic gradient at z_t. It sends its displacement
       and the change of v_i.
    4. The server moves z by the mean displacement times the server step sizes. It adds
       the sum of the changes, divided by M, to vbar.

    Args:
        local_lr: the local step sizes eta_{x,l} and eta_{y,l}.
        server_lr: the step sizes of the server, eta_{x,g} and eta_{y,g}.
        local_steps: K, the number of local steps.
        start: the control variates before the first round. `zeros` sets v_i = 0. With
            `warm`, each of the M clients computes a stochastic gradient at z_0, in one
            additional exchange. Theorem 1 covers this case.
        variate_batch: the rows of v_i: a random `batch`, or `all` local rows.

    Examples:
        >>> sagda_i(local_lr=(0.01, 0.05), local_steps=5)  # doctest: +ELLIPSIS
        sagda_i(local_lr=Rates(x=0.01, y=0.05), server_lr=Rates(x=2.0, y=2.0), ...)

    Reference: Yang, Liu, Zhang, Liu, "SAGDA: Achieving O(eps^-2) Communication
    Complexity in Federated Min-Max Learning", NeurIPS 2022, Algorithm 1.
    """

    def init(z):
        return State(z, v=zeros_like(z))

    def local(f, state, v_i, turn):
        lr = local_lr.at(turn.round)
        z = local_updates(f, state.z, v_i, state.v, lr, local_steps, turn)  # 10
        renewed = variate(f, state.z, variate_batch, turn)  # 11
        return (z - state.z, renewed - v_i), v_i

    def update(state, mean, share, t):
        delta, renewal = mean
        z = state.z + server_lr.at(t) * delta  # 3
        v = state.v + share * renewal  # 5: share * mean = (1/M) sum over S_t
        return State(z, v)

    def renew(v_i, reply):
        _, renewal = reply
        return v_i + renewal  # 11

    def first(f, z, v_i, turn):
        return variate(f, z, variate_batch, turn), v_i

    def gather(state, v, share, t):
        return state._replace(v=v)

    warm = Phase("warm", first, gather, lambda state: state.z, renew=lambda _, v_i: v_i)
    return Algorithm(
        init,
        phases=(Phase("local", local, update, renew=renew, delta=lambda r: r[0]),),
        memory=zeros_like,
        opening=(warm,) if start == "warm" else (),
        mean="v",
    )


@method
def sagda_ii(
    *,
    local_lr: Rates = Rates(0.01, 0.01),
    server_lr: Rates = Rates(2.0, 2.0),
    local_steps: int = 10,
    variate_batch: Rows = "batch",
) -> Algorithm:
    """SAGDA, Option II: local steps corrected by new gradients, two exchanges a round.

    1. The server sends z_t. Each client in the cohort S_t replies with v_i, a
       stochastic gradient at z_t.
    2. The server sends vbar, the mean of these v_i, to the same clients.
    3. Client i takes K steps along grad f_i(z; xi_k) - v_i + vbar, and sends its
       displacement.
    4. The server moves z by the mean displacement times the server step sizes.

    Clients store nothing between rounds: the control variates v_i are new in every
    round. If all clients take part (m = M), both options
    remove the client drift. If m < M, vbar varies with the random cohort. Option I does
    not have this noise.

    Args:
        local_lr: the local step sizes eta_{x,l} and eta_{y,l}.
        server_lr: the step sizes of the server, eta_{x,g} and eta_{y,g}.
        local_steps: K, the number of local steps.
        variate_batch: the rows of v_i: a random `batch`, or `all` local rows.

    Examples:
        >>> sagda_ii().name
        'sagda-ii'

    Reference: as `sagda_i`.
    """

    def init(z):
        return State(z, v=zeros_like(z))

    def collect(f, z, memory, turn):
        v_i = variate(f, z, variate_batch, turn)  # 6
        return v_i, (z, v_i)  # the second exchange needs z_t and v_i

    def average(state, v, share, t):
        return state._replace(v=v)  # 6

    def local(f, v, kept, turn):
        z_t, v_i = kept
        lr = local_lr.at(turn.round)
        z = local_updates(f, z_t, v_i, v, lr, local_steps, turn)  # 10
        return z - z_t, kept  # 12

    def update(state, delta, share, t):
        return state._replace(z=state.z + server_lr.at(t) * delta)  # 3

    return Algorithm(
        init,
        phases=(
            Phase("collect", collect, average, lambda state: state.z),
            Phase("local", local, update, lambda state: state.v, delta=lambda r: r),
        ),
    )


class Iterate(NamedTuple):
    """The server's state of methods that need only z."""

    z: Point  # (x_t, y_t)


@method
def fsgda(
    *,
    local_lr: Rates = Rates(0.01, 0.01),
    server_lr: Rates = Rates(2.0, 2.0),
    local_steps: int = 10,
) -> Algorithm:
    """FSGDA: local steps without correction; the server scales their mean.

    1. The server sends z_t. Each client in the cohort S_t takes K steps along
       grad f_i(z; xi_k), and sends its displacement.
    2. The server moves z by the mean displacement times the server step sizes.

    It is SAGDA with all control variates zero. With server step sizes 1 it is Local
    SGDA.

    Args:
        local_lr: the local step sizes eta_{x,l} and eta_{y,l}.
        server_lr: the step sizes of the server, eta_{x,g} and eta_{y,g}.
        local_steps: K, the number of local steps.

    Examples:
        >>> fsgda(local_lr=0.1).build().phases[0].name
        'local'

    Reference: as `sagda_i`, Algorithm 2.
    """

    def local(f, state, memory, turn):
        v = v_i = zeros_like(state.z)
        lr = local_lr.at(turn.round)
        z = local_updates(f, state.z, v_i, v, lr, local_steps, turn)
        return z - state.z, memory

    def update(state, delta, share, t):
        return Iterate(state.z + server_lr.at(t) * delta)

    return Algorithm(Iterate, (Phase("local", local, update, delta=lambda r: r),))
