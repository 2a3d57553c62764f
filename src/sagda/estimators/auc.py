"""`FederatedAUCClassifier`: ranks positives above negatives, over clients."""

from typing import Any

import numpy as np

from sagda.data.federation import Federation
from sagda.estimators.base import FederatedClassifier
from sagda.problems.auc import AUC


class FederatedAUCClassifier(FederatedClassifier):
    """A linear score that maximises the AUC over clients' rows, which stay with them.

    It suits imbalanced classes, and clients that have rows of one class only.

    Args:
        algorithm: what trains, by its name in `sagda list`.
        rates: `auto` chooses the local rate by a short sweep, `advice` those of x and y
            by one around the theorems' scale; or a local rate, or a pair of a local and
            a server rate, each one number or a pair for x and y.
        local_steps: K, the steps of a client between exchanges.
        rounds: T.
        cohort: m, the clients of a round; all of them if None.
        batch_size: rows of a stochastic gradient; all of a client's if None.
        standardise: give every feature mean zero and deviation one, from sums that
            clients add up.
        warm_start: go on from the last fit.
        random_state: of the start and the samples.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(200, 3))
        >>> y = np.where(X[:, 0] + 0.1 * rng.normal(size=200) > 1, "ill", "well")
        >>> site = np.where(y == "ill", "clinic", "practice")
        >>> model = FederatedAUCClassifier(rounds=50, random_state=0)
        >>> model.fit(X, y, client=site).score(X, y) > 0.95
        True
    """

    def _problem(self, federation: Federation) -> AUC:
        return AUC.of(federation)

    def _weights(self, x: Any) -> np.ndarray:
        return x.model
