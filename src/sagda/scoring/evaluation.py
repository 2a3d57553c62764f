"""Evaluate a trained model on labelled rows: AUC, AUC by client, and calibration.

The functions take scores and labels as arrays. `scorer.py` computes the scores. The
report of an evaluation is in `sagda.report`. Evaluation during training is in
`sagda.simulator`.
"""

from typing import Any, NamedTuple

import numpy as np

from sagda.check import BadValue
from sagda.keys import generator
from sagda.problems.metrics import auc, auc_of_counts

DRAWS = 1000  # resamples of the bootstrap
BINS = 10  # bins of the calibration curve
POINTS = 300  # points of a curve in the report, at most


class Interval(NamedTuple):
    """A value and the ends of its 95 % confidence interval."""

    value: float
    low: float
    high: float


class ClientScore(NamedTuple):
    """One client: its number of rows, and its AUC if it has rows of both classes."""

    name: str
    rows: int
    positives: int
    auc: float | None


class Evaluation(NamedTuple):
    """The evaluation of one model on one set of rows."""

    rows: int
    positives: int
    auc: Interval  # of all rows together, with its bootstrap interval
    clients: list[ClientScore]
    brier: float
    calibration_error: float
    bins: list[tuple[float, float, int]]  # mean probability, share of positives, rows
    roc: list[tuple[float, float]]  # false and true positive rates
    pr: list[tuple[float, float]]  # recall and precision

    @property
    def worst(self) -> ClientScore | None:
        """The client with the lowest AUC; None if no client has an AUC."""
        with_both = [client for client in self.clients if client.auc is not None]
        return min(with_both, key=lambda c: c.auc or 0.0) if with_both else None

    def as_json(self) -> dict[str, Any]:
        """Return the evaluation as a dict for JSON, with the client of lowest AUC."""
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
    """Evaluate scores and probabilities against labels.

    The AUC is computed on all rows together. It is not a mean over clients.

    Args:
        scores: [rows].
        probability: [rows], of the positive class.
        label: [rows], above zero for positive rows.
        client: [rows], the client of each row; None if clients are not known.
        seed: seed of the bootstrap.
    """
    from sklearn.metrics import precision_recall_curve, roc_curve

    positive = label > 0
    if not 0 < positive.sum() < len(positive):
        raise BadValue(
            "the rows to evaluate must have both classes, got "
            f"{int(positive.sum())} positive rows of {len(positive)}; add rows of the "
            "other class."
        )
    false, true, _ = roc_curve(positive, scores)
    precision, recall, _ = precision_recall_curve(positive, scores)
    bins = reliability(probability, positive)
    error = sum(rows * abs(mean - share) for mean, share, rows in bins)
    return Evaluation(
        rows=len(positive),
        positives=int(positive.sum()),
        auc=bootstrap(scores, label, seed),
        clients=by_client(scores, label, client),
        brier=float(((probability - positive) ** 2).mean()),
        calibration_error=error / len(positive),
        bins=bins,
        roc=thinned(false, true),
        pr=thinned(recall, precision),
    )


def bootstrap(scores: np.ndarray, label: np.ndarray, seed: int) -> Interval:
    """Return the AUC and its 95 % bootstrap interval.

    The bootstrap draws rows with replacement.
    """
    rng = generator(seed, "bootstrap")
    # Sort the scores once. A draw only changes the number of times each row counts.
    values, rank = np.unique(scores, return_inverse=True)
    positive, rows = label > 0, len(label)
    draws = []
    for _ in range(DRAWS):
        times = np.bincount(rng.integers(rows, size=rows), minlength=rows)
        up = np.bincount(rank, weights=times * positive, minlength=len(values))
        down = np.bincount(rank, weights=times * ~positive, minlength=len(values))
        draws.append(auc_of_counts(up, down))
    # The AUC of a draw is NaN if the draw has rows of one class only.
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return Interval(auc(scores, label), float(low), float(high))


def by_client(
    scores: np.ndarray, label: np.ndarray, client: np.ndarray | None
) -> list[ClientScore]:
    """Return the number of rows and the AUC of each client; [] if `client` is None."""
    if client is None:
        return []
    clients = []
    for name in np.unique(client):
        mine = client == name
        rows, positives = int(mine.sum()), int((label[mine] > 0).sum())
        value = auc(scores[mine], label[mine]) if 0 < positives < rows else None
        clients.append(ClientScore(str(name), rows, positives, value))
    return clients


def reliability(
    probability: np.ndarray, positive: np.ndarray
) -> list[tuple[float, float, int]]:
    """Sort the rows by probability and split them into ten equal bins.

    Returns for each bin the mean probability, the share of positives and the number of
    rows.
    """
    order = np.argsort(probability, kind="stable")
    return [
        (float(probability[part].mean()), float(positive[part].mean()), len(part))
        for part in np.array_split(order, BINS)
        if len(part)
    ]


def thinned(x: np.ndarray, y: np.ndarray) -> list[tuple[float, float]]:
    """Return at most `POINTS` points of the curve (x, y), at equal index distances."""
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), POINTS)).astype(int))
    return [(float(x[i]), float(y[i])) for i in chosen]
