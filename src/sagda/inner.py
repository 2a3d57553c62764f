"""The inner maximum where no closed form is known: solved, with its residual."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sagda.core import PyTree


class Ascent(NamedTuple):
    y: Any  # the iterate
    w: Any  # the point extrapolated from the last two iterates
    momentum: jax.Array
    rate: jax.Array
    step: jax.Array
    moved: jax.Array  # length of the last gradient mapping


def dot(a: PyTree, b: PyTree) -> jax.Array:
    products = jax.tree.map(lambda p, q: jnp.sum(p * q), a, b)
    return sum(jax.tree.leaves(products), start=jnp.zeros(()))


def norm_sq(a: PyTree) -> jax.Array:
    return dot(a, a)


def maximise(
    value: Callable[[Any], jax.Array],
    project: Callable[[Any], Any],
    y: PyTree,
    *,
    max_steps: int = 1000,
) -> tuple[Any, jax.Array]:
    """argmax of a concave function over a convex set, and ||P(y + grad) - y|| there.

    Accelerated projected gradient ascent with backtracking, restarted when momentum
    points downhill; it stops where rounding does.
    """
    slope = jax.value_and_grad(value)
    tree = jax.tree.map
    eps = jnp.finfo(jnp.result_type(*jax.tree.leaves(y))).eps
    target = 10 * eps * (1 + jnp.sqrt(norm_sq(slope(y)[1])))

    def ascend(s: Ascent) -> Ascent:
        at, g = slope(s.w)
        reach = lambda rate: project(tree(lambda w, d: w + rate * d, s.w, g))

        def too_far(rate: jax.Array) -> jax.Array:
            to = reach(rate)
            gap = tree(lambda a, b: a - b, to, s.w)
            promised = at + dot(g, gap) - norm_sq(gap) / (2 * rate)
            return value(to) < promised - 10 * eps * jnp.abs(at)

        rate = jax.lax.while_loop(
            lambda r: too_far(r) & (r > 1e-12), lambda r: r / 2, 1.5 * s.rate
        )
        y = reach(rate)
        step = tree(lambda a, b: a - b, y, s.y)
        grown = (1 + jnp.sqrt(1 + 4 * s.momentum**2)) / 2
        uphill = dot(g, step) >= 0
        push = jnp.where(uphill, (s.momentum - 1) / grown, 0)
        w = tree(lambda a, d: a + push * d, y, step)
        moved = jnp.sqrt(norm_sq(tree(lambda a, b: a - b, y, s.w))) / rate
        momentum = jnp.where(uphill, grown, 1.0)
        return Ascent(y, w, momentum, rate, s.step + 1, moved)

    one = jnp.ones((), target.dtype)
    start = Ascent(y, y, one, one, jnp.zeros((), jnp.int32), jnp.inf * one)
    going = lambda s: (s.moved > target) & (s.step < max_steps)
    y = jax.lax.while_loop(going, ascend, start).y
    ahead = project(tree(lambda a, d: a + d, y, slope(y)[1]))
    return y, jnp.sqrt(norm_sq(tree(lambda a, b: a - b, ahead, y)))
