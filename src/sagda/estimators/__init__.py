"""scikit-learn classifiers that train over clients.

For other problems, models or measures, use `sagda.simulate`.
"""

from sagda.estimators.classifiers import (
    FederatedAUCClassifier,
    FederatedDROClassifier,
)

__all__ = ["FederatedAUCClassifier", "FederatedDROClassifier"]
