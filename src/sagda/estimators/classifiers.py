"""The two classifiers: one maximises the AUC, one minimises a robust logistic loss.

Each class defines the problem that it solves and the entries of x that score a row.
Everything else, from input checks to calibration, is in `base.py`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sagda.data.federation import Federation
from sagda.estimators.base import FederatedClassifier
from sagda.problems.auc import AUC
from sagda.problems.dro import DRO


class FederatedAUCClassifier(FederatedClassifier):
    """A linear classifier that maximises the AUC over clients.

    It is suited to imbalanced classes, and to clients with rows of one class only.
    Training simulates the clients on this machine.

    Args:
        algorithm: name of the training method; `sagda list` shows all.
        rates: `"auto"` chooses the local rate by a short sweep. `"advice"` chooses the
            local rates of x and y by a sweep around the scale that the theorems
            suggest. Or give a local rate, or a pair of a local and a server rate. Each
            rate is a number, or a pair for x and y.
        local_steps: number of steps of a client between two exchanges (K).
        rounds: number of communication rounds (T).
        cohort: number of clients per round (m). None means all clients.
        batch_size: rows per stochastic gradient. None means all rows of a client.
        standardise: scale each feature to mean 0 and standard deviation 1, using only
            sums from each client.
        warm_start: start at the end of the last fit.
        random_state: the seed of the starting point and of the samples.

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

    The variable y has n entries, where n is the number of rows of the largest client.
    Entry j is the weight of row j at every client. Rows with a large loss get more
    weight. A penalty pulls all weights to 1/n.

    Args:
        pull: strength of the penalty, which is the modulus of strong concavity in y.
            Smaller values put more weight on the hardest rows.
        algorithm, rates, local_steps, rounds, cohort, batch_size, standardise,
            warm_start, random_state: as for `FederatedAUCClassifier`.
    """

    pull: float = 1.0

    def _problem(self, federation: Federation) -> DRO:
        n = federation.widest
        return DRO(federation.width, n, lambda_1=self.pull / n**2)

    def _weights(self, x: Any) -> np.ndarray:
        return x
