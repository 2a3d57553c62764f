"""A solver for the best y of problems without a closed form, and norms of pytrees.

`metrics.outer` uses the solver to measure Phi. Training does not use it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sagda.core import PyTree, minus


class Ascent(NamedTuple):
    """The state of the solver after a step."""

    y: Any  # the iterate
    w: Any  # the point extrapolated from the last two iterates
    momentum: jax.Array  # t_k of Nesterov's method; 1 after a restart
    rate: jax.Array  # the step size
    step: jax.Array  # the number of steps
    length: jax.Array  # the norm of the last step, divided by its rate


def dot(a: PyTree, b: PyTree) -> Any:
    """Return the inner product of two pytrees of arrays or of PyTorch tensors."""
    products = jax.tree.map(lambda p, q: (p * q).sum(), a, b)
    return sum(jax.tree.leaves(products), start=0.0)


def norm_sq(a: PyTree) -> Any:
    """Return the squared Euclidean norm of a pytree."""
    return dot(a, a)


def norm(a: PyTree) -> jax.Array:
    """Return the Euclidean norm of a pytree."""
    return jnp.sqrt(norm_sq(a))


def maximise(
    value: Callable[[Any], jax.Array],
    project: Callable[[Any], Any],
    y: PyTree,
    *,
    max_steps: int = 2000,
) -> tuple[Any, jax.Array]:
    """Return the maximiser of a concave function over a convex set, and its residual.

    The residual is ||P(y + grad) - y||, where P is the projection. It is zero at the
    maximum. The method is accelerated projected gradient ascent. It restarts when the
    momentum points downhill. The step size follows the curvature, estimated from
    gradients. Values are no help near the maximum: they differ by rounding only.

    Args:
        value: the function.
        project: the projection onto the set.
        y: the starting point.
        max_steps: the largest number of steps.
    """
    tree = jax.tree.map
    ahead = lambda a, c, d: tree(lambda p, q: p + c * q, a, d)
    slope = jax.grad(value)
    eps = jnp.finfo(jnp.result_type(*jax.tree.leaves(y))).eps
    target = 10 * eps * (1 + norm(slope(y)))

    def ascend(s: Ascent) -> Ascent:
        g = slope(s.w)
        reach = lambda rate: project(ahead(s.w, rate, g))
        # In a shorter step, the change of the gradient is mostly rounding error.
        least = 100 * eps * (1 + norm(s.w))

        def too_far(rate: jax.Array) -> jax.Array:
            to = reach(rate)
            length = norm(minus(to, s.w))
            return (rate * norm(minus(slope(to), g)) > length) & (length > least)

        rate = jax.lax.while_loop(too_far, lambda r: r / 2, 1.2 * s.rate)
        y = reach(rate)
        gap, step = minus(y, s.w), minus(y, s.y)
        uphill = dot(g, step) >= 0
        grown = (1 + jnp.sqrt(1 + 4 * s.momentum**2)) / 2
        push = jnp.where(uphill, (s.momentum - 1) / grown, 0)
        return Ascent(
            y=y,
            w=ahead(y, push, step),
            momentum=jnp.where(uphill, grown, 1.0),
            rate=jnp.where(norm(gap) > least, rate, s.rate),
            step=s.step + 1,
            length=norm(gap) / rate,
        )

    one = jnp.ones((), target.dtype)
    start = Ascent(
        y=y,
        w=y,
        momentum=one,
        rate=one,
        step=jnp.zeros((), jnp.int32),
        length=jnp.inf * one,
    )
    going = lambda s: (s.length > target) & (s.step < max_steps)
    y = jax.lax.while_loop(going, ascend, start).y
    residual = norm(minus(project(ahead(y, 1, slope(y))), y))
    # For a y far from zero, rounding hides a small step. The residual would be 0.
    return y, jnp.maximum(residual, eps * norm(y))
