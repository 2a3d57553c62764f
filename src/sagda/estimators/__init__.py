"""Estimators in scikit-learn's manner, trained over clients."""

from sagda.estimators.classifiers import (
    FederatedAUCClassifier,
    FederatedDROClassifier,
)

__all__ = ["FederatedAUCClassifier", "FederatedDROClassifier"]
