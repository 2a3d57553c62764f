"""Points, rates, phases and the round: the types that every algorithm is made of.

An `Algorithm` is data: a tuple of phases. Each phase has a function for the client and
a function for the server. `run_round` calls these functions in order. It sends no
messages: the simulator, PyTorch runs and federations each pass an `exchange` function
that does. To write an algorithm, read `algorithms/sagda.py` next.
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
Sample = PyTree  # xi in the paper: the rows of one stochastic gradient


def is_torch(tree: PyTree) -> bool:
    """Return whether the arrays of `tree` are PyTorch tensors.

    On tensors an algorithm runs eagerly. On JAX arrays it is traced and compiled.
    """
    return any(hasattr(a, "requires_grad") for a in jax.tree.leaves(tree))


def times(c: Any, a: Any) -> Any:
    """Return c * a. If `a` is a PyTorch tensor, `c` may be a JAX scalar."""
    return (float(c) if is_torch(a) else c) * a


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Point:
    """A pair z = (x, y): an iterate, a gradient or a direction.

    Both halves are pytrees of arrays. Points support `+`, `-` and multiplication by a
    number. The arrays may be JAX, NumPy or PyTorch arrays.
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
    """A pair of step sizes (eta_x, eta_y). Each is a number or a function of the round.

    JAX traces such a function: write `jnp.where(t < 100, 0.1, 0.01)`, not `if`.

    Examples:
        >>> Rates(0.1, lambda t: 0.5 / (t + 1)).at(4)
        Rates(x=0.1, y=0.1)
        >>> Rates(0.1, 0.2) * 2 == 2 * Rates(0.1, 0.2)
        True
    """

    x: Any
    y: Any

    def at(self, t: Any) -> "Rates":
        """Return the two step sizes of round `t` as numbers."""
        value = lambda eta: eta(t) if callable(eta) else eta
        return Rates(value(self.x), value(self.y))

    @overload
    def __mul__(self, other: Point) -> Point: ...
    @overload
    def __mul__(self, other: float | jax.Array) -> "Rates": ...
    def __mul__(self, other: Any) -> Any:
        """Multiply each half of a point by its rate, or both rates by a number."""
        if not isinstance(other, Point):
            return other * self
        scale = lambda eta, tree: jax.tree.map(lambda a: times(eta, a), tree)
        return Point(scale(self.x, other.x), scale(self.y, other.y))

    def __rmul__(self, c: Any) -> "Rates":
        scale = lambda eta: (lambda t: c * eta(t)) if callable(eta) else c * eta
        return Rates(scale(self.x), scale(self.y))


def minus(a: PyTree, b: PyTree) -> Any:
    """Return a - b for two trees of the same structure."""
    return jax.tree.map(lambda p, q: p - q, a, b)


class Zero:
    """A zero with the shape of a PyTorch tensor. Adding it to a tensor costs nothing.

    Algorithms subtract and add control variates in every local step. In FSGDA all
    control variates are zero. This class then saves two passes over the model per step.
    """

    requires_grad = False  # `is_torch` recognises tensors by this attribute

    def __init__(self, like: Any):
        self.like = like

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Handle operations between a tensor and a zero, such as `tensor + zero`."""
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
        """An ordinary tensor of zeros with the same shape."""
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
    """Return a tree of zeros with the shapes of `z`."""
    return jax.tree.map(Zero if is_torch(z) else jnp.zeros_like, z)


def where(condition: Any, a: PyTree, b: PyTree) -> Any:
    """Return `a` if the condition holds, else `b`. Both have the same shapes."""
    if is_torch(a):
        return a if condition else b
    return jax.tree.map(lambda p, q: jnp.where(condition, p, q), a, b)


def descend_ascend(z: Point, d: Point, lr: Rates) -> Point:
    """Return (x - eta_x d_x, y + eta_y d_y), where `lr` is (eta_x, eta_y).

    The signs of descent and ascent are in this function only.
    """
    move = lambda c, a, b: jax.tree.map(lambda p, q: moved(p, c, q), a, b)
    return Point(move(-lr.x, z.x, d.x), move(lr.y, z.y, d.y))


def moved(a: Any, c: Any, d: Any) -> Any:
    """Return a + c d, computed by a single operation for PyTorch tensors."""
    return a.add(d, alpha=float(c)) if is_torch(a) else a + c * d


def loop(step: Callable, z: PyTree, samples: Sample) -> Any:
    """Run the K local steps of a client: `z = step(z, xi)` for each sample xi.

    The K samples lie on axis 0 of `samples`. The loop is compiled for JAX arrays and a
    Python loop for tensors. `sagda.cost` can count the gradients in this loop.
    """
    if not is_torch(z):
        return jax.lax.scan(lambda z, xi: (step(z, xi), None), z, samples)[0]
    for k in range(len(jax.tree.leaves(samples)[0])):
        z = step(z, jax.tree.map(lambda a, k=k: a[k], samples))
    return z


class Objective(abc.ABC):
    """The objective f_i of one client, as algorithms use it."""

    @abc.abstractmethod
    def draw(self, key: Key, count: int | None = None) -> Sample:
        """Draw one sample xi, or `count` samples stacked on axis 0.

        Equal keys give equal samples.
        """

    @abc.abstractmethod
    def whole(self, key: Key) -> Sample:
        """Return the sample that consists of all local rows."""

    @abc.abstractmethod
    def grad(self, z: Point, xi: Sample) -> Point:
        """Return (grad_x f_i, grad_y f_i) at `z`, computed on the sample `xi`."""

    @abc.abstractmethod
    def project(self, z: Point) -> Point:
        """Return the feasible point nearest to `z`."""

    def step(self, z: Point, d: Point, lr: Rates) -> Point:
        """Descend on x and ascend on y along `d`, then project onto the sets."""
        return self.project(descend_ascend(z, d, lr))


class Turn(NamedTuple):
    """The round and the random key of one client in one phase."""

    round: Any
    root: Key

    def key(self, purpose: str) -> Key:
        """Return the key for a purpose, such as "step".

        All algorithms draw the same samples for the same purpose.
        """
        return key_of(self.root, purpose)


def keep(memory: PyTree, reply: PyTree) -> PyTree:
    """Return `memory` unchanged. This is the default of `Phase.renew`."""
    return memory


class Phase(NamedTuple):
    """One exchange of a round: the server sends a message, and the clients reply.

    The server function receives the mean of the replies. `kept` is what a client passes
    from one phase to the next phase of the same round. In the first phase it equals the
    memory of the client. After the last phase it is dropped. Only `renew` changes the
    memory. It is a function of the memory and the reply, so the client, the server and
    the simulator can all compute the new memory.
    """

    name: str
    client: Callable  # (f, message, kept, turn) -> (reply, kept)
    server: Callable  # (state, mean reply, share of all clients in it, t) -> state
    broadcast: Callable = lambda state: state  # state -> the message to every client
    renew: Callable = keep  # (memory, reply) -> memory
    resample: bool = False  # draw a fresh cohort for this phase
    delta: Callable | None = None  # reply -> z_i^{K+1} - z_t, if the reply contains it


class Algorithm(NamedTuple):
    """A federated algorithm: its phases, server state and client memory."""

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
    """Run one round: all phases in order. Returns the new server state and the carry.

    Args:
        phases: the phases of the round.
        state: the state of the server.
        exchange: `exchange(phase, message, carry)` sends a message to the cohort. It
            returns (mean reply, clients that replied / all clients, new carry).
        carry: data that `exchange` passes from phase to phase.
        project: returns the feasible point nearest to z.
        t: the number of the round.
    """
    for phase in phases:
        mean, share, carry = exchange(phase, phase.broadcast(state), carry)
        state = check_state(phase.name, phase.server(state, mean, share, t))
        state = state._replace(z=project(state.z))
    return state, carry


def check_state(phase: str, state: Any) -> Any:
    """Return `state`, or raise `BadKind` if it is not a valid server state."""
    if not hasattr(state, "_replace") or not isinstance(getattr(state, "z", 0), Point):
        raise BadKind(
            f"the server function of phase {phase!r} must return the server's state, a "
            "NamedTuple with a field `z` that is a Point, got "
            f"{type(state).__name__}; return `state._replace(z=...)`."
        )
    return state
