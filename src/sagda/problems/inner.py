"""The best y by a solver, for problems without a closed form; norms of trees.

`metrics.outer` uses it to measure Phi. Training never does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sagda.core import PyTree, minus


class Ascent(NamedTuple):
    """The state of the solver."""

    y: Any  # the iterate
    w: Any  # the point extrapolated from the last two iterates
    momentum: jax.Array
    rate: jax.Array
    step: jax.Array
    length: jax.Array  # of the last gradient mapping


def dot(a: PyTree, b: PyTree) -> Any:
    """<a, b>, also of trees of tensors."""
    products = jax.tree.map(lambda p, q: (p * q).sum(), a, b)
    return sum(jax.tree.leaves(products), start=0.0)


def norm_sq(a: PyTree) -> Any:
    """||a||^2."""
    return dot(a, a)


def norm(a: PyTree) -> jax.Array:
    """||a||."""
    return jnp.sqrt(norm_sq(a))


def maximise(
    value: Callable[[Any], jax.Array],
    project: Callable[[Any], Any],
    y: PyTree,
    *,
    max_steps: int = 2000,
) -> tuple[Any, jax.Array]:
    """argmax of a concave function over a convex set, and ||P(y + grad) - y|| there.

    Accelerated projected gradient ascent, restarted when momentum points downhill. The
    rate follows the curvature, estimated from gradients: values stop differing, by
    rounding, long before the maximum is reached.
    """
    tree = jax.tree.map
    ahead = lambda a, c, d: tree(lambda p, q: p + c * q, a, d)
    slope = jax.grad(value)
    eps = jnp.finfo(jnp.result_type(*jax.tree.leaves(y))).eps
    target = 10 * eps * (1 + norm(slope(y)))

    def ascend(s: Ascent) -> Ascent:
        g = slope(s.w)
        reach = lambda rate: project(ahead(s.w, rate, g))
        least = 100 * eps * (1 + norm(s.w))  # shorter steps show no curvature

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
    # Far from zero, a small step is lost by rounding and would count as none.
    return y, jnp.maximum(residual, eps * norm(y))
