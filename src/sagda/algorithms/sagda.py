"""SAGDA, Algorithm 1 of Yang et al. (2022), and FSGDA, its case without variates.

The numbers in comments are the lines of Algorithm 1. Whoever runs the algorithm samples
S_t (line 4). Sending and receiving (lines 7 and 9) are a phase's `broadcast` and reply.
"""

from typing import Literal, NamedTuple

from sagda.core import Algorithm, Objective, Phase, Point, Rates, Turn, loop, zeros_like
from sagda.methods import method

Rows = Literal["batch", "all"]  # the rows of a gradient at z_t


class State(NamedTuple):
    """The server's state."""

    z: Point  # (x_t, y_t)
    v: Point  # the mean control variate, (vbar_x, vbar_y)


def local_updates(f: Objective, z, v_i, v, lr: Rates, steps: int, turn: Turn):
    """10: K steps of descent on x and ascent on y along grad f_i - v_i + v."""

    def step(z, xi):
        return f.step(z, f.grad(z, xi) - v_i + v, lr)

    return loop(step, z, f.draw(turn.key("step"), steps))


def variate(f: Objective, z, rows: Rows, turn: Turn):
    """A stochastic gradient at z_t, on a fresh batch or on all local rows."""
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
    """SAGDA, Option I: each client keeps its variate v_i; one exchange a round.

    1. The server sends z_t and vbar = (1/M) sum over all clients of v_i.
    2. Client i in S_t takes K steps along grad f_i(z; xi_k) - v_i + vbar,
    3. then renews v_i by a fresh stochastic gradient at z_t, and sends how far it
       moved and how much v_i changed.
    4. The server moves by the mean displacement times the server rates, and adds
       (1/M) times the sum of the changes to vbar.

    Args:
        local_lr: the local rates eta_{x,l} and eta_{y,l}.
        server_lr: the server's rates eta_{x,g} and eta_{y,g}.
        local_steps: K.
        start: v_i before a client's first round: `zeros`, or `warm`, a stochastic
            gradient at z_0 from each of the M clients in one opening exchange (the case
            that Theorem 1 covers).
        variate_batch: the rows of v_i: a `batch`, or `all` local ones.

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
    """SAGDA, Option II: fresh variates every round, gathered by a second exchange.

    1. The server sends z_t; client i in S_t answers with v_i, a stochastic gradient.
    2. The server sends vbar, the mean of those v_i, to the same S_t.
    3. Client i takes K steps along grad f_i(z; xi_k) - v_i + vbar and sends how far it
       moved; the server moves by the mean times the server rates.

    Clients keep nothing between rounds. With m = M both options remove the client
    drift. With m < M, vbar has the noise of drawing S_t, which Option I removes.

    Args:
        local_lr: the local rates eta_{x,l} and eta_{y,l}.
        server_lr: the server's rates eta_{x,g} and eta_{y,g}.
        local_steps: K.
        variate_batch: the rows of v_i: a `batch`, or `all` local ones.

    Examples:
        >>> sagda_ii().name
        'sagda-ii'

    Reference: as `sagda_i`.
    """

    def init(z):
        return State(z, v=zeros_like(z))

    def collect(f, z, memory, turn):
        v_i = variate(f, z, variate_batch, turn)  # 6
        return v_i, (z, v_i)  # kept for the second exchange

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
    """The server's state of methods that keep nothing but z."""

    z: Point  # (x_t, y_t)


@method
def fsgda(
    *,
    local_lr: Rates = Rates(0.01, 0.01),
    server_lr: Rates = Rates(2.0, 2.0),
    local_steps: int = 10,
) -> Algorithm:
    """FSGDA: SAGDA with all control variates at zero, which are neither sent nor kept.

    1. The server sends z_t; client i in S_t takes K steps along grad f_i(z; xi_k) and
       sends how far it moved.
    2. The server moves by the mean displacement times the server rates.

    With server rates 1 it is Local SGDA.

    Args:
        local_lr: the local rates eta_{x,l} and eta_{y,l}.
        server_lr: the server's rates eta_{x,g} and eta_{y,g}.
        local_steps: K.

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
