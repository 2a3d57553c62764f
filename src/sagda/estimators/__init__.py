"""Estimators in scikit-learn's manner, trained over clients."""

from sagda.estimators.auc import FederatedAUCClassifier
from sagda.estimators.dro import FederatedDROClassifier

__all__ = ["FederatedAUCClassifier", "FederatedDROClassifier"]
