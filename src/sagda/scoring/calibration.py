"""Platt's calibration: fit a map from scores to probabilities, using sums over clients.

The map has two parameters, a slope and an offset. scikit-learn fits it on the rows of
all clients together. Here each client contributes only sums, so its rows can stay with
it. The quality of the probabilities is measured in `evaluation.py`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import expit

STEPS = 100  # steps of Newton's method, at most
ENOUGH = 1e-10  # stop when a step decreases the loss per row by less than this
LEAST = 1e-12  # the smallest slope; above zero, so that the order of scores stays


class Calibration(NamedTuple):
    """A map from scores to log odds: slope * score + offset."""

    slope: float
    offset: float

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        return self.slope * scores + self.offset


def calibrated(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> Calibration:
    """Fit a calibration by Newton's method on the logistic loss.

    The fit uses only counts, and sums over rows of scores, gradients and Hessians.

    Args:
        parts: for each client a pair of arrays, [rows] each: the scores, and True for
            positive rows.
    """
    positives = sum(int(label.sum()) for _, label in parts)
    rows = sum(len(label) for _, label in parts)
    mean = sum(scores.sum() for scores, _ in parts) / rows
    spread = sum(((scores - mean) ** 2).sum() for scores, _ in parts) / rows
    unit = float(np.sqrt(spread)) or 1.0
    # Platt's targets lie strictly between 0 and 1. So there is a finite solution even
    # if the scores separate the classes.
    high = (positives + 1) / (positives + 2)
    low = 1 / (rows - positives + 2)

    def sums(a: float, b: float) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the loss at slope a and offset b, its gradient and its Hessian."""
        value, slope, curve = 0.0, np.zeros(2), np.zeros((2, 2))
        for scores, label in parts:
            s = (scores - mean) / unit
            odds, target = a * s + b, np.where(label, high, low)
            p = expit(odds)
            value += float((np.logaddexp(0, odds) - target * odds).sum())
            both = np.stack([s, np.ones_like(s)])
            slope += both @ (p - target)
            curve += (both * (p * (1 - p))) @ both.T
        return value, slope, curve

    at = np.array([0.0, np.log((positives + 1) / (rows - positives + 1))])
    value, slope, curve = sums(*at)
    for _ in range(STEPS):
        step = np.linalg.solve(curve + 1e-9 * rows * np.eye(2), slope)
        size = 1.0
        while (now := sums(*(at - size * step)))[0] > value and size > 1e-6:
            size /= 2
        done = value - now[0] <= ENOUGH * rows
        at, (value, slope, curve) = at - size * step, now
        if done:
            break
    a, b = float(at[0]) / unit, float(at[1])
    if a < LEAST:  # the scores carry no information, so all rows get the base rate
        share = (positives * high + (rows - positives) * low) / rows
        a, b = LEAST, float(np.log(share / (1 - share)))
    return Calibration(a, b - a * mean)
