"""Points, phases and the round: what algorithms share with whatever runs them.

An algorithm is data: phases with functions of a client and of the server. `run_round`
goes through them and leaves the transport to its `exchange` argument. The simulator,
PyTorch runs and federations each supply one. To write an algorithm, read
`algorithms/sagda.py` next.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp

from sagda.check import BadKind
from sagda.keys import Key, key_of
from sagda.pytree import register

PyTree = Any
Sample = PyTree  # the paper's xi: the rows of one stochastic gradient


def is_torch(tree: PyTree) -> bool:
    """Whether its arrays are PyTorch's. Algorithms then run eagerly, not traced."""
    return any(hasattr(a, "requires_grad") for a in jax.tree.leaves(tree))


def times(c: Any, a: Any) -> Any:
    """c * a, where c may be a JAX scalar and a PyTorch tensor."""
    return (float(c) if is_torch(a) else c) * a


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Point:
    """z = (x, y): an iterate, a gradient or a direction.

    Both halves are pytrees of arrays. Only `+`, `-` and `*` are used, so that JAX,
    NumPy and PyTorch arrays all work.
    """

    x: PyTree
    y: PyTree

    def __add__(self, other: "Point") -> "Point":
        return jax.tree.map(lambda a, b: a + b, self, other)

    def __sub__(self, other: "Point") -> "Point":
        return jax.tree.map(lambda a, b: a - b, self, other)

    def __rmul__(self, c: Any) -> "Point":
        return jax.tree.map(lambda a: times(c, a), self)


@register
@dataclass(frozen=True)
class Rates:
    """A pair of step sizes (eta_x, eta_y), each a number or a function of the round.

    A function is traced by JAX: write `jnp.where(t < 100, 0.1, 0.01)`, not `if`.

    Examples:
        >>> Rates(0.1, lambda t: 0.5 / (t + 1)).at(4)
        Rates(x=0.1, y=0.1)
        >>> Rates(0.1, 0.2) * 2 == 2 * Rates(0.1, 0.2)
        True
    """

    x: Any
    y: Any

    def at(self, t: Any) -> "Rates":
        """The two numbers of round `t`."""
        value = lambda eta: eta(t) if callable(eta) else eta
        return Rates(value(self.x), value(self.y))

    @overload
    def __mul__(self, other: Point) -> Point: ...
    @overload
    def __mul__(self, other: float | jax.Array) -> "Rates": ...
    def __mul__(self, other: Any) -> Any:
        """Each half of a point times its rate, or both rates times a number."""
        if not isinstance(other, Point):
            return other * self
        scale = lambda eta, tree: jax.tree.map(lambda a: times(eta, a), tree)
        return Point(scale(self.x, other.x), scale(self.y, other.y))

    def __rmul__(self, c: Any) -> "Rates":
        scale = lambda eta: (lambda t: c * eta(t)) if callable(eta) else c * eta
        return Rates(scale(self.x), scale(self.y))


def minus(a: PyTree, b: PyTree) -> Any:
    """a - b for trees of one structure."""
    return jax.tree.map(lambda p, q: p - q, a, b)


class Zero:
    """A zero with the shape of a PyTorch tensor; adding it to a tensor costs nothing.

    Algorithms subtract and add control variates in every local step. Where these are
    zero, as in FSGDA, this class saves two passes over the model per step.
    """

    requires_grad = False  # `is_torch` recognises tensors by this attribute

    def __init__(self, like: Any):
        self.like = like

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Called by PyTorch for `tensor + zero`, `tensor - zero` and the like."""
        sums = "sub", "add"
        if (
            function.__name__ in sums
            and len(args) == 2
            and not isinstance(args[0], cls)
        ):
            return args[0]
        args = [a.tensor if isinstance(a, Zero) else a for a in args]
        return function(*args, **(kwargs or {}))

    @property
    def tensor(self) -> Any:
        """The zeros as a real tensor."""
        return self.like.new_zeros(self.like.shape)

    def add(self, other: Any, alpha: float = 1.0) -> Any:
        return alpha * other

    def __add__(self, other: Any) -> Any:
        return other

    def __sub__(self, other: Any) -> Any:
        return -other

    def __rmul__(self, c: Any) -> "Zero":
        return self


def zeros_like(z: PyTree) -> Any:
    """A tree of zeros, shaped as `z`."""
    return jax.tree.map(Zero if is_torch(z) else jnp.zeros_like, z)


def where(condition: Any, a: PyTree, b: PyTree) -> Any:
    """`a` if the condition holds, else `b`, which has the same shapes."""
    if is_torch(a):
        return a if condition else b
    return jax.tree.map(lambda p, q: jnp.where(condition, p, q), a, b)


def descend_ascend(z: Point, d: Point, lr: Rates) -> Point:
    """x - eta_x d_x and y + eta_y d_y. No other code knows the signs."""
    move = lambda c, a, b: jax.tree.map(lambda p, q: moved(p, c, q), a, b)
    return Point(move(-lr.x, z.x, d.x), move(lr.y, z.y, d.y))


def moved(a: Any, c: Any, d: Any) -> Any:
    """a + c d, in one operation for PyTorch tensors."""
    return a.add(d, alpha=float(c)) if is_torch(a) else a + c * d


def loop(step: Callable, z: PyTree, samples: Sample) -> Any:
    """A client's K local steps: `z = step(z, xi)` for each xi, K on axis 0.

    A compiled loop for JAX, a Python loop for PyTorch. Gradients are counted in it.
    """
    if not is_torch(z):
        return jax.lax.scan(lambda z, xi: (step(z, xi), None), z, samples)[0]
    for k in range(len(jax.tree.leaves(samples)[0])):
        z = step(z, jax.tree.map(lambda a, k=k: a[k], samples))
    return z


class Objective(abc.ABC):
    """f_i, one client's objective, as an algorithm uses it."""

    @abc.abstractmethod
    def draw(self, key: Key, count: int | None = None) -> Sample:
        """One xi, or xi_1, ..., xi_count on axis 0. Equal keys give equal draws."""

    @abc.abstractmethod
    def whole(self, key: Key) -> Sample:
        """The sample of all local rows."""

    @abc.abstractmethod
    def grad(self, z: Point, xi: Sample) -> Point:
        """(grad_x f_i, grad_y f_i) at `z`, on the sample `xi`."""

    @abc.abstractmethod
    def project(self, z: Point) -> Point:
        """The feasible point nearest to `z`."""

    def step(self, z: Point, d: Point, lr: Rates) -> Point:
        """Descent on x and ascent on y along `d`, projected."""
        return self.project(descend_ascend(z, d, lr))


class Turn(NamedTuple):
    """What a client receives in a phase: the round, and its root key."""

    round: Any
    root: Key

    def key(self, purpose: str) -> Key:
        """The key of a purpose. Equal purposes give equal samples in all algorithms."""
        return key_of(self.root, purpose)


def keep(memory: PyTree, reply: PyTree) -> PyTree:
    """The memory unchanged: the default of `Phase.renew`."""
    return memory


class Phase(NamedTuple):
    """One exchange: the server broadcasts, a cohort works, its mean reply returns.

    `kept` is the client's memory at the start of a round, passes from phase to phase
    and is dropped at its end. The memory itself changes only by `renew`, a function of
    the reply, so that client, server and simulator can all compute it.
    """

    name: str
    client: Callable  # (f, message, kept, turn) -> (reply, kept)
    server: Callable  # (state, mean reply, share of all clients in it, t) -> state
    broadcast: Callable = lambda state: state  # state -> the message to every client
    renew: Callable = keep  # (memory, reply) -> memory
    resample: bool = False  # draw a fresh cohort for this phase
    delta: Callable | None = None  # reply -> z_i^{K+1} - z_t, if it contains that


class Algorithm(NamedTuple):
    """A federated algorithm: its phases, and the state and memory between them."""

    init: Callable  # z -> the server's state, a NamedTuple with a field `z`
    phases: tuple[Phase, ...]
    memory: Callable = lambda z: ()  # z -> a client's memory before round 0
    opening: tuple[Phase, ...] = ()  # run once, with every client, before round 0
    mean: str | None = None  # the field of the state that is the mean of all memories


def run_round(
    phases: tuple[Phase, ...],
    state: Any,
    exchange: Callable,
    carry: Any,
    project: Callable[[Point], Point],
    t: Any,
) -> tuple[Any, Any]:
    """One round of an algorithm.

    Args:
        phases: the phases, in order.
        state: the server's state.
        exchange: `exchange(phase, message, carry)` sends a message to the cohort and
            returns (the mean reply, the cohort's share of all clients, carry).
        carry: whatever `exchange` hands on from phase to phase.
        project: the feasible point nearest to z.
        t: the number of the round.

    Returns the server's state and the carry after the last phase.
    """
    for phase in phases:
        mean, share, carry = exchange(phase, phase.broadcast(state), carry)
        state = check_state(phase.name, phase.server(state, mean, share, t))
        state = state._replace(z=project(state.z))
    return state, carry


def check_state(phase: str, state: Any) -> Any:
    """`state`, or a `BadKind` if a phase's server function returned something else."""
    if not hasattr(state, "_replace") or not isinstance(getattr(state, "z", 0), Point):
        raise BadKind(
            f"the server function of phase {phase!r} must return the server's state, a "
            "NamedTuple with a field `z` that is a Point, got "
            f"{type(state).__name__}; `state._replace(z=...)` makes one."
        )
    return state
