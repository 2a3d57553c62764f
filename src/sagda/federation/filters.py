"""Filters that leave false answers out of an exchange: norm and multi-krum.

A filter uses a whole answer or none of it. Then V, the sum of all control variates v_i,
contains only variates that sites really have. A median or a trimmed mean of single
coordinates would put numbers into V that no site has. `server.rounds` applies filters.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

FILTERS = ("norm", "multi-krum", "none")
# Known filters that would make V wrong. They are listed for the error message.
COORDINATES = ("median", "trimmed-mean", "geometric-median")


def arrays(reply: Any) -> list[np.ndarray]:
    """Return the float arrays of a reply, each flattened to a vector."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(reply)]
    return [a.ravel().astype(float) for a in leaves if a.dtype.kind == "f"]


def evened(replies: Mapping[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    """Return each reply as one vector, after scaling its arrays.

    Each array is divided by the median norm that this array has over all replies.
    Variates and points differ in scale by learning rates and local steps. Without the
    division, the noise of the larger arrays would hide a false value in the smaller.
    """
    norms = [[np.linalg.norm(a) for a in vectors] for vectors in replies.values()]
    median = np.median(np.array(norms), axis=0)
    median = np.where(median > 0, median, 1.0)
    return {
        name: np.concatenate([a / m for a, m in zip(vectors, median, strict=True)])
        for name, vectors in replies.items()
    }


def too_long(replies: Mapping[str, np.ndarray], factor: float) -> list[str]:
    """Return the names of the replies with a norm above `factor` times the median norm.

    For an even number of replies, the median is the lower one of the two middle norms.
    Then one false reply of two cannot raise the median.
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
    """Return the names of the `faulty` replies with the largest Multi-Krum scores.

    The score of a reply is the sum of its squared distances to the n - faulty - 2
    replies nearest to it, where n is the number of replies. Multi-Krum needs
    n >= 2 faulty + 3. See Blanchard et al. (2017), arXiv:1703.02757.
    """
    names = sorted(replies)
    vectors = np.stack([replies[name] for name in names])
    products = vectors @ vectors.T
    squares = np.diag(products)
    # Squared distances [n, n], from |a - b|^2 = |a|^2 + |b|^2 - 2 a.b.
    distances = squares[:, None] + squares[None, :] - 2 * products
    np.fill_diagonal(distances, np.inf)
    nearest = np.sort(distances, axis=1)[:, : len(names) - faulty - 2]
    order = np.argsort(nearest.sum(axis=1), kind="stable")
    return sorted(names[i] for i in order[len(names) - faulty :])


def least(filter: str, faulty: int) -> int:
    """Return the least number of answers that a filter needs."""
    return 2 * faulty + 3 if filter == "multi-krum" else 1


def left_out(
    filter: str, faulty: int, factor: float, replies: Mapping[str, Any]
) -> dict[str, str]:
    """Return the names of the replies that the filter leaves out, with the reasons.

    Args:
        filter: one of `FILTERS`.
        faulty: the number of sites that may send false replies, for multi-krum.
        factor: the largest allowed ratio of the norm of a reply to the median norm.
        replies: the accepted replies by name.
    """
    if filter == "none":
        return {}
    vectors = {name: arrays(reply) for name, reply in replies.items()}
    whole = {name: np.concatenate(parts) for name, parts in vectors.items()}
    text = "the norm of the reply of {} is more than {:g} times the median norm."
    reasons = {name: text.format(name, factor) for name in too_long(whole, factor)}
    if filter == "multi-krum":
        rest = {name: v for name, v in vectors.items() if name not in reasons}
        # A reply above the norm limit counts as one of the `faulty` replies.
        more = max(0, faulty - len(reasons))
        if more and len(rest) > more + 2:
            text = "the reply of {} is one of the {} farthest from all other replies."
            names = multi_krum(evened(rest), more)
            reasons |= {name: text.format(name, more) for name in names}
    return reasons
