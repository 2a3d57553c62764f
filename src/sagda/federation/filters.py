"""Which answers of an exchange are believed.

Filters choose among whole answers. Whoever is left out counts as not accepted, so that
V stays the sum of variates that sites really hold. A median taken coordinate by
coordinate, or a trimmed mean, would put numbers into V that are no site's.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

FILTERS = ("norm", "multi-krum", "none")
COORDINATES = ("median", "trimmed-mean", "geometric-median")


def arrays(reply: Any) -> list[np.ndarray]:
    """The floats of a reply, array by array."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(reply)]
    return [a.ravel().astype(float) for a in leaves if a.dtype.kind == "f"]


def evened(replies: Mapping[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    """As one vector each, every array divided by its middle length over all.

    Variates and points differ in scale by rates and steps: unscaled, the noise of one
    would hide a lie in the other.
    """
    lengths = [[np.linalg.norm(a) for a in own] for own in replies.values()]
    middle = np.median(np.array(lengths), axis=0)
    middle = np.where(middle > 0, middle, 1.0)
    return {
        name: np.concatenate([a / m for a, m in zip(own, middle, strict=True)])
        for name, own in replies.items()
    }


def too_long(replies: Mapping[str, np.ndarray], factor: float) -> list[str]:
    """Those more than `factor` times as long as the middle one (the lower of two)."""
    lengths = {name: float(np.linalg.norm(v)) for name, v in replies.items()}
    if len(lengths) < 2:
        return []
    middle = sorted(lengths.values())[(len(lengths) - 1) // 2]
    if middle == 0.0:
        return []
    return sorted(name for name, own in lengths.items() if not own <= factor * middle)


def multi_krum(replies: Mapping[str, np.ndarray], faulty: int) -> list[str]:
    """The `faulty` ones that lie farthest from their n - faulty - 2 nearest others.

    Blanchard et al. (2017), arXiv:1703.02757; for n >= 2 faulty + 3.
    """
    names = sorted(replies)
    vectors = np.stack([replies[name] for name in names])
    products = vectors @ vectors.T
    squares = np.diag(products)
    distances = squares[:, None] + squares[None, :] - 2 * products
    np.fill_diagonal(distances, np.inf)
    nearest = np.sort(distances, axis=1)[:, : len(names) - faulty - 2]
    order = np.argsort(nearest.sum(axis=1), kind="stable")
    return sorted(names[i] for i in order[len(names) - faulty :])


def least(filter: str, faulty: int) -> int:
    """Answers that a filter needs."""
    return 2 * faulty + 3 if filter == "multi-krum" else 1


def left_out(
    filter: str, faulty: int, factor: float, replies: Mapping[str, Any]
) -> dict[str, str]:
    """By name, why an answer is not believed."""
    if filter == "none":
        return {}
    held = {name: arrays(reply) for name, reply in replies.items()}
    whole = {name: np.concatenate(own) for name, own in held.items()}
    long = too_long(whole, factor)
    out = {name: f"{name} sent more than {factor:g} times the usual." for name in long}
    if filter == "multi-krum":
        near = {name: own for name, own in held.items() if name not in out}
        more = max(0, faulty - len(out))  # who is far too long is one of them
        if more and len(near) > more + 2:
            text = "{} is one of the {} farthest from the others."
            out |= {n: text.format(n, more) for n in multi_krum(evened(near), more)}
    return out
