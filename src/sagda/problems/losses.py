"""Building blocks of losses, written so that XLA compiles their gradients well.

Use `softplus`, `sigmoid`, `summed` and `entries` in the loss of your own problem. They
also accept PyTorch tensors. Complete losses are in the modules of the problems.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from sagda.core import is_torch


def softplus(m: jax.Array) -> jax.Array:
    """Return log(1 + exp(m)), computed without overflow.

    Examples:
        >>> [round(float(softplus(jnp.float32(m))), 6) for m in (-50, 0, 100)]
        [0.0, 0.693147, 100.0]
    """
    if is_torch(m):
        import torch

        return torch.nn.functional.softplus(m)  # type: ignore[return-value]
    return softplus_of(m)


def sigmoid(m: jax.Array) -> jax.Array:
    """Return 1 / (1 + exp(-m)), computed without overflow.

    Examples:
        >>> [round(float(sigmoid(jnp.float32(m))), 6) for m in (-200, 0, 2)]
        [0.0, 0.5, 0.880797]
    """
    if is_torch(m):
        return m.sigmoid()  # type: ignore[attr-defined]
    return jax.nn.sigmoid(m)


def summed(values: jax.Array, index: Any, count: int) -> jax.Array:
    """Return `count` sums: entry k is the sum of the values whose index is k.

    Examples:
        >>> summed(jnp.array([1.0, 2.0, 4.0]), jnp.array([0, 2, 0]), 3).tolist()
        [5.0, 0.0, 2.0]
    """
    if is_torch(values):
        return values.new_zeros(count).index_add(0, index, values)  # type: ignore[attr-defined]
    return jnp.zeros(count, values.dtype).at[index].add(values)


@jax.custom_jvp
def softplus_of(m: jax.Array) -> jax.Array:
    e = jnp.exp(-jnp.abs(m))
    # Kahan's formula for log1p(e) needs one logarithm and one division. The log1p of
    # XLA computes two branches, which takes as long as the rest of a small gradient.
    u = 1 + e
    log1p = jnp.where(u == 1, e, jnp.log(u) * (e / (u - 1)))
    return jnp.maximum(m, 0) + log1p


@softplus_of.defjvp
def slope(primals: Any, tangents: Any) -> Any:
    (m,), (dm,) = primals, tangents
    e = jnp.exp(-jnp.abs(m))
    return softplus_of(m), dm * jnp.where(m > 0, 1, e) / (1 + e)


def entries(y: jax.Array, index: Any) -> jax.Array:
    """Return `y[index]`, for a loss in which each row uses one entry of the vector y.

    `index` is an array of integers, or a slice if the batch holds all rows of a client.
    The gradient avoids a scatter while clients run one after another, because XLA
    cannot compile a loop with a scatter into one kernel.

    Examples:
        >>> import numpy as np
        >>> total = lambda y: entries(y, np.array([0, 2, 2])).sum()
        >>> jax.grad(total)(jnp.zeros(4)).tolist()
        [1.0, 0.0, 2.0, 0.0]
    """
    if isinstance(index, slice) or is_torch(y):
        return y[index]
    return taken(y, jnp.asarray(index))


@jax.custom_vjp
def taken(y: jax.Array, index: jax.Array) -> jax.Array:
    return y[index]


def taken_fwd(y: jax.Array, index: jax.Array) -> tuple[jax.Array, Any]:
    return y[index], (jnp.zeros_like(y), index)


def taken_bwd(saved: Any, change: jax.Array) -> tuple[jax.Array, None]:
    zeros, index = saved
    return add_at(zeros, index, change), None


taken.defvjp(taken_fwd, taken_bwd)


@jax.custom_jvp
def add_at(total: jax.Array, index: jax.Array, change: jax.Array) -> jax.Array:
    """Return `total` with `change[k]` added at `index[k]`. Linear in both arrays."""
    return added(total, index, change)


@add_at.defjvp
def add_at_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    # The derivative that JAX derives for a `custom_vmap` has wrong shapes if only the
    # tangents are batched, as in a Hessian.
    (_, index, _), (total, _, change) = primals, tangents
    return add_at(*primals), add_at(total, index, change)


@custom_vmap
def added(total: jax.Array, index: jax.Array, change: jax.Array) -> jax.Array:
    """Return the result of `add_at`, computed in a loop over the entries of `change`.

    `added_batched` replaces the loop by a scatter when calls are batched.
    """

    def add(k: Any, total: jax.Array) -> jax.Array:
        at = (jax.lax.dynamic_index_in_dim(index, k, keepdims=False),)
        here = jax.lax.dynamic_slice(total, at, (1,))
        more = jax.lax.dynamic_slice(change, (k,), (1,))
        return jax.lax.dynamic_update_slice(total, here + more, at)

    return jax.lax.fori_loop(0, len(index), add, total)


@added.def_vmap
def added_batched(
    size: int, batched: Any, total: Any, index: Any, change: Any
) -> tuple[Any, bool]:
    spread = lambda a, is_batched: (
        a if is_batched else jnp.broadcast_to(a, (size, *a.shape))
    )
    total, index, change = map(spread, (total, index, change), batched)
    return jax.vmap(lambda t, i, c: t.at[i].add(c))(total, index, change), True
