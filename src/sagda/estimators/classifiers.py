"""The two classifiers: by AUC for imbalanced classes, and by robust logistic loss.

Each says which problem it solves and which of x's entries score a row. All the rest,
from input checks to calibration, is in `base.py`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sagda.data.federation import Federation
from sagda.estimators.base import FederatedClassifier
from sagda.problems.auc import AUC
from sagda.problems.dro import DRO


class FederatedAUCClassifier(FederatedClassifier):
    """A linear classifier that maximises the AUC over clients, which keep their rows.

    It suits imbalanced classes, and clients that have rows of one class only.

    Args:
        algorithm: the training method, by its name in `sagda list`.
        rates: `"auto"` chooses the local rate by a short sweep. `"advice"` chooses the
            local rates of x and y by a sweep around the scale that the theorems
            suggest. Or give a local rate, or a pair of a local and a server rate. Each
            rate is a number, or a pair for x and y.
        local_steps: K, the steps of a client between exchanges.
        rounds: T, the communication rounds.
        cohort: m, the clients of a round; all of them if None.
        batch_size: rows of a stochastic gradient; all rows of a client if None.
        standardise: give every feature mean zero and deviation one, from sums that
            clients add up.
        warm_start: start from the end of the last fit.
        random_state: decides the start and the samples.

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


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedDROClassifier(FederatedClassifier):
    """Distributionally robust logistic regression over clients.

    y weighs the rows: rows with a large loss count more, within the limits of `pull`.

    Args:
        pull: how strongly the weights are pulled to 1/n, the modulus in y. Small values
            put more weight on the hardest rows.
        algorithm, rates, local_steps, rounds, cohort, batch_size, standardise,
            warm_start, random_state: as for `FederatedAUCClassifier`.
    """

    pull: float = 1.0

    def _problem(self, federation: Federation) -> DRO:
        n = federation.widest
        return DRO(federation.width, n, lambda_1=self.pull / n**2)

    def _weights(self, x: Any) -> np.ndarray:
        return x
