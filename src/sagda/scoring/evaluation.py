"""How good a model is on rows of one's own: AUC, by client, and calibration."""

from typing import Any, NamedTuple

import numpy as np

from sagda.check import BadValue
from sagda.keys import generator
from sagda.problems.metrics import auc

DRAWS = 1000
BINS = 10
POINTS = 300  # of a curve that is drawn


class Interval(NamedTuple):
    value: float
    low: float
    high: float


class ClientScore(NamedTuple):
    """One client's rows; its AUC where both classes are there."""

    name: str
    rows: int
    positives: int
    auc: float | None


class Evaluation(NamedTuple):
    """Of scores and probabilities against labels."""

    rows: int
    positives: int
    auc: Interval  # of all rows together, with a bootstrap interval
    clients: list[ClientScore]
    brier: float
    calibration_error: float
    bins: list[tuple[float, float, int]]  # mean probability, share of positives, rows
    roc: list[tuple[float, float]]  # false and true positive rates
    pr: list[tuple[float, float]]  # recall and precision

    @property
    def worst(self) -> ClientScore | None:
        """The client with the least AUC, of those that have one."""
        with_both = [client for client in self.clients if client.auc is not None]
        return min(with_both, key=lambda own: own.auc or 0.0) if with_both else None

    def as_json(self) -> dict[str, Any]:
        return self._asdict() | {
            "auc": self.auc._asdict(),
            "clients": [client._asdict() for client in self.clients],
            "worst_client": self.worst and self.worst._asdict(),
        }


def evaluate(
    scores: np.ndarray,
    probability: np.ndarray,
    label: np.ndarray,
    client: np.ndarray | None = None,
    *,
    seed: int = 0,
) -> Evaluation:
    """Judge scores; the AUC is that of all rows, never a mean of clients' AUCs."""
    from sklearn.metrics import precision_recall_curve, roc_curve

    positive = label > 0
    if not 0 < positive.sum() < len(positive):
        raise BadValue(
            "rows to evaluate on must be of both classes, found "
            f"{int(positive.sum())} positives of {len(positive)}."
        )
    false, true, _ = roc_curve(positive, scores)
    precision, recall, _ = precision_recall_curve(positive, scores)
    bins = reliability(probability, positive)
    away = sum(rows * abs(mean - share) for mean, share, rows in bins)
    return Evaluation(
        len(positive),
        int(positive.sum()),
        bootstrap(scores, label, seed),
        by_client(scores, label, client),
        float(((probability - positive) ** 2).mean()),
        away / len(positive),
        bins,
        thinned(false, true),
        thinned(recall, precision),
    )


def bootstrap(scores: np.ndarray, label: np.ndarray, seed: int) -> Interval:
    """The AUC, and the middle 95 % of it over rows drawn anew with repetition."""
    rng = generator(seed, "bootstrap")
    values, place = np.unique(scores, return_inverse=True)
    positive, rows = label > 0, len(label)
    found = []
    for _ in range(DRAWS):
        times = np.bincount(rng.integers(rows, size=rows), minlength=rows)
        up = np.bincount(place, weights=times * positive, minlength=len(values))
        down = np.bincount(place, weights=times * ~positive, minlength=len(values))
        pairs = up.sum() * down.sum()
        if pairs:
            below = np.cumsum(down) - down
            found.append(float(up @ (below + down / 2) / pairs))
    low, high = np.quantile(found, [0.025, 0.975])
    return Interval(auc(scores, label), float(low), float(high))


def by_client(
    scores: np.ndarray, label: np.ndarray, client: np.ndarray | None
) -> list[ClientScore]:
    if client is None:
        return []
    out = []
    for name in np.unique(client):
        own = client == name
        positives = int((label[own] > 0).sum())
        both = 0 < positives < own.sum()
        value = auc(scores[own], label[own]) if both else None
        out.append(ClientScore(str(name), int(own.sum()), positives, value))
    return out


def reliability(
    probability: np.ndarray, positive: np.ndarray
) -> list[tuple[float, float, int]]:
    """Rows in ten parts of one size, by their probability."""
    order = np.argsort(probability, kind="stable")
    return [
        (float(probability[own].mean()), float(positive[own].mean()), len(own))
        for own in np.array_split(order, BINS)
        if len(own)
    ]


def thinned(x: np.ndarray, y: np.ndarray) -> list[tuple[float, float]]:
    keep = np.unique(np.linspace(0, len(x) - 1, min(len(x), POINTS)).astype(int))
    return [(float(x[i]), float(y[i])) for i in keep]
