"""Filters that leave false answers out of an exchange: norm and multi-krum.

Filters choose among whole answers. An answer that is left out was never accepted, so V
stays the sum of variates that sites really have. A median or a trimmed mean of single
coordinates would put numbers into V that no site has. `server.rounds` applies them.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

FILTERS = ("norm", "multi-krum", "none")
COORDINATES = ("median", "trimmed-mean", "geometric-median")


def arrays(reply: Any) -> list[np.ndarray]:
    """The float arrays of a reply, each as one vector."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(reply)]
    return [a.ravel().astype(float) for a in leaves if a.dtype.kind == "f"]


def evened(replies: Mapping[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    """Each reply as one vector, every array divided by its median norm over all.

    Variates and points differ in scale by learning rates and local steps. Without the
    division the noise of one would hide a lie in the other.
    """
    norms = [[np.linalg.norm(a) for a in vectors] for vectors in replies.values()]
    median = np.median(np.array(norms), axis=0)
    median = np.where(median > 0, median, 1.0)
    return {
        name: np.concatenate([a / m for a, m in zip(vectors, median, strict=True)])
        for name, vectors in replies.items()
    }


def too_long(replies: Mapping[str, np.ndarray], factor: float) -> list[str]:
    """Names of the replies above `factor` times the median norm.

    With an even number the median is the lower of the two in the middle, so that one
    liar of two cannot raise it.
    """
    norms = {name: float(np.linalg.norm(v)) for name, v in replies.items()}
    if len(norms) < 2:
        return []
    median = sorted(norms.values())[(len(norms) - 1) // 2]
    if median == 0.0:
        return []
    # "not <=" also catches a norm that is not a number.
    return sorted(name for name, norm in norms.items() if not norm <= factor * median)


def multi_krum(replies: Mapping[str, np.ndarray], faulty: int) -> list[str]:
    """Names of the `faulty` replies that are farthest from their nearest others.

    The score of a reply is the sum of squared distances to its n - faulty - 2 nearest.

    It needs n >= 2 faulty + 3. See Blanchard et al. (2017), arXiv:1703.02757.
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
    """The number of answers that a filter needs."""
    return 2 * faulty + 3 if filter == "multi-krum" else 1


def left_out(
    filter: str, faulty: int, factor: float, replies: Mapping[str, Any]
) -> dict[str, str]:
    """The reason by name for every answer that the filter leaves out."""
    if filter == "none":
        return {}
    vectors = {name: arrays(reply) for name, reply in replies.items()}
    whole = {name: np.concatenate(parts) for name, parts in vectors.items()}
    text = "the reply of {} is more than {:g} times as long as the median."
    reasons = {name: text.format(name, factor) for name in too_long(whole, factor)}
    if filter == "multi-krum":
        rest = {name: v for name, v in vectors.items() if name not in reasons}
        # Every reply that is too long is one of the `faulty` ones.
        more = max(0, faulty - len(reasons))
        if more and len(rest) > more + 2:
            text = "the reply of {} is one of the {} farthest from the others."
            names = multi_krum(evened(rest), more)
            reasons |= {name: text.format(name, more) for name in names}
    return reasons
