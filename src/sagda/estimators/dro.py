"""`FederatedDROClassifier`: logistic regression that minds the hardest rows."""

from typing import Any

import numpy as np

from sagda.data.federation import Federation
from sagda.estimators.base import FederatedClassifier
from sagda.problems.dro import DRO


class FederatedDROClassifier(FederatedClassifier):
    """Distributionally robust logistic regression over clients.

    y weighs the rows: those with a large loss count more, as far as `pull` lets them.

    Args:
        pull: how strongly the weights are held at 1/n: the modulus in y; small values
            mind the hardest rows more.
        algorithm, rates, local_steps, rounds, cohort, batch_size, standardise,
            warm_start, random_state: as for `FederatedAUCClassifier`.
    """

    def __init__(
        self,
        *,
        pull: float = 1.0,
        algorithm: str = "sagda-i",
        rates: Any = "auto",
        local_steps: int = 10,
        rounds: int = 200,
        cohort: int | None = None,
        batch_size: int | None = 32,
        standardise: bool = True,
        warm_start: bool = False,
        random_state: Any = None,
    ):
        super().__init__(
            algorithm=algorithm,
            rates=rates,
            local_steps=local_steps,
            rounds=rounds,
            cohort=cohort,
            batch_size=batch_size,
            standardise=standardise,
            warm_start=warm_start,
            random_state=random_state,
        )
        self.pull = pull

    def _problem(self, federation: Federation) -> DRO:
        n = federation.widest
        features = federation.data.features.shape[1]
        return DRO(features, n, lambda_1=self.pull / n**2)

    def _weights(self, x: Any) -> np.ndarray:
        return x
