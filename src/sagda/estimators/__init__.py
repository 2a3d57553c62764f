"""Two scikit-learn classifiers that train over clients.

Read `classifiers.py` first, then `base.py`. For other problems, models or metrics, use
`sagda.simulate`.
"""

from sagda.estimators.classifiers import (
    FederatedAUCClassifier,
    FederatedDROClassifier,
)

__all__ = ["FederatedAUCClassifier", "FederatedDROClassifier"]
