"""Compare the estimators with FedAvg and pooled logistic regression on a9a.

    python scripts/compare_estimators.py

a9a is split by label over 100 clients. The output is the table of docs/estimators.md.
"""

import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import sagda
from sagda.data.recipe import Scaling, scaled
from sagda.estimators.tuning import local_rate


@dataclass(frozen=True)
class LinearCrossEntropy(sagda.Problem):
    """Logistic regression. This problem has no y, so FSGDA on it is FedAvg."""

    features: int

    def init(self, key: Any) -> sagda.Point:
        return sagda.Point(jnp.zeros(self.features), jnp.zeros(()))

    def loss(self, z: sagda.Point, batch: Any, key: Any) -> jax.Array:
        margin = sagda.softplus(-batch.label * (batch.features @ z.x))
        return margin - z.y**2 / 2


def main() -> None:
    data = sagda.load("a9a")
    train, test = data.train, data.test
    assert test is not None
    order = np.argsort(train.label, kind="stable")
    site = np.empty(len(order), int)
    site[order] = np.arange(len(order)) * 100 // len(order)
    rows: list[tuple[str, list[float], float]] = []

    begun = time.perf_counter()
    pooled = LogisticRegression(max_iter=1000).fit(train.features, train.label)
    area = roc_auc_score(test.label, pooled.decision_function(test.features))
    taken = time.perf_counter() - begun
    rows.append(("logistic regression on pooled rows", [float(area)], taken))

    for name, make in {
        "`FederatedAUCClassifier()`": sagda.FederatedAUCClassifier,
        'the same with `algorithm="fsgda"`': lambda random_state: (
            sagda.FederatedAUCClassifier(algorithm="fsgda", random_state=random_state)
        ),
        "`FederatedDROClassifier()`": sagda.FederatedDROClassifier,
    }.items():
        areas, begun = [], time.perf_counter()
        for seed in range(3):
            model = make(random_state=seed)
            model.fit(train.features, train.label, client=site)
            areas.append(model.score(test.features, test.label))
        rows.append((name, areas, (time.perf_counter() - begun) / 3))

    federation = sagda.Federation.of(train, order, np.bincount(site))
    scaling = Scaling.of(federation)
    federation = federation._replace(data=scaled(federation.data, scaling))
    problem = LinearCrossEntropy(train.features.shape[1])
    method = lambda rate: sagda.fsgda(local_lr=rate, server_lr=1.0, local_steps=10)
    areas, begun = [], time.perf_counter()
    for seed in range(3):
        options: dict[str, Any] = {"rounds": 200, "batch_size": 32, "seeds": seed}
        rate = local_rate(method, problem, federation, **options)
        run = sagda.simulate(
            method(rate), problem, federation, eval_every=50, **options
        )
        scores = scaled(test, scaling).features @ np.asarray(run.z.x[0])
        areas.append(float(roc_auc_score(test.label, scores)))
    taken = (time.perf_counter() - begun) / 3
    rows.append(("FedAvg on cross-entropy", areas, taken))

    print("| | test AUC, seeds 0, 1, 2 | seconds a fit |\n|---|---|---|")
    for name, areas, seconds in rows:
        shown = ", ".join(f"{area:.4f}" for area in areas)
        print(f"| {name} | {shown} | {seconds:.1f} |")


if __name__ == "__main__":
    main()
