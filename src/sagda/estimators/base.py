"""`FederatedClassifier`: the code that both classifiers share, from fit to prediction.

It follows the scikit-learn estimator API. `clients.py` turns rows into a federation,
`tuning.py` chooses rates, and `sagda.simulate` trains.
"""

import abc
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import jax
import numpy as np
from scipy import sparse
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import roc_auc_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from sagda import check
from sagda.algorithms import ALGORITHMS
from sagda.check import BadValue
from sagda.core import Point
from sagda.data.federation import Federation
from sagda.data.recipe import FeatureMoments, Scaling
from sagda.estimators.clients import (
    check_size,
    client_labels,
    federation_of,
    take_column,
    without_column,
)
from sagda.estimators.tuning import advised, local_rate, lowered
from sagda.methods import Method
from sagda.problems.base import Problem
from sagda.scoring.calibration import calibrated
from sagda.simulator.run import Run
from sagda.simulator.simulate import DivergenceWarning, simulate

TRIES = 5  # trainings at most; after each that diverges, the rates are lowered


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedClassifier(ClassifierMixin, BaseEstimator):
    """A linear classifier for two classes, trained over clients by a min-max method.

    After `fit`, its attributes are plain arrays and numbers: `coef_`, `intercept_`,
    `classes_`, `clients_`, `history_`, `rates_` and `n_iter_`.
    """

    # scikit-learn reads the parameters from the signature of `__init__`.
    algorithm: str = "sagda-i"
    rates: Any = "auto"
    local_steps: int = 10
    rounds: int = 200
    cohort: int | None = None
    batch_size: int | None = 32
    standardise: bool = True
    warm_start: bool = False
    random_state: Any = None

    @abc.abstractmethod
    def _problem(self, federation: Federation) -> Problem:
        """Return the problem to solve on `federation`."""

    @abc.abstractmethod
    def _weights(self, x: Any) -> np.ndarray:
        """Return the weights of the features, which are part of x or all of it."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, client: Any = None) -> "FederatedClassifier":
        """Train over clients and return this classifier.

        Args:
            X: features, [rows, features]: an array, a CSR matrix, or a frame.
            y: labels of two classes. The last one in sorting order is the positive.
            client: the client of each row: an array of labels, or the name of a column
                of the frame `X`. If None, all rows belong to one client.
        """
        self._client_column = client if isinstance(client, str) else None
        X, client = take_column(X, client)
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) > 2:
            raise ValueError(
                "Only binary classification is supported. The type of the target is "
                f"{type_of_target(y)}."
            )
        if len(classes) < 2:
            raise ValueError(
                f"`y` must hold two classes, got one class only: {classes[0]!r}."
            )
        check_size(X.shape)
        who = client_labels(client, len(y))
        dense = X.toarray() if sparse.issparse(X) else X
        names, owner = np.unique(who, return_inverse=True)
        order, size = np.argsort(owner, kind="stable"), np.bincount(owner)
        parts = np.split(order, np.cumsum(size)[:-1])
        scaling = Scaling.none(X.shape[1])
        if self.standardise:
            scaling = Scaling.from_clients(
                FeatureMoments.of(dense[rows]) for rows in parts
            )
        dense = scaling(dense)
        federation = federation_of(dense, 2.0 * codes - 1, order, size)
        problem = self._problem(federation)
        seed = int(check_random_state(self.random_state).randint(2**31))
        cohort = self.cohort
        if cohort is not None:
            check.integer("cohort", cohort, low=1, high=federation.clients)
        batch_size = self._batch(federation)
        options = {"cohort": cohort, "batch_size": batch_size, "seeds": seed}
        run = self._run(problem, federation, options)
        self._solution = jax.tree.map(lambda a: np.asarray(a[0]), run.z)
        weights = np.asarray(self._weights(self._solution.x), np.float64)
        scores = dense @ weights
        fitted = calibrated([(scores[rows], codes[rows] == 1) for rows in parts])
        # Scaling, scoring and calibration are affine maps. Store their composition, so
        # that predictions need only `coef_` and `intercept_`.
        coef = fitted.slope * weights / scaling.scale
        self.coef_ = coef[None]
        self.intercept_ = np.array([fitted.offset - coef @ scaling.mean])
        self.classes_, self.clients_ = classes, names
        self.history_ = {k: v[0] for k, v in run.history.columns.items()}
        self.n_iter_ = self.rounds
        return self

    def _run(
        self, problem: Problem, federation: Federation, options: dict[str, Any]
    ) -> Run:
        """Train and return the run.

        If the run diverges with rates that a sweep chose, lower them and train again.
        """
        make, rate = self._method(problem, federation, options)
        start = self._start(problem, federation.data.features.shape[1])
        tries = TRIES if isinstance(self.rates, str) else 1
        while True:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DivergenceWarning)
                run = simulate(
                    make(rate), problem, federation, rounds=self.rounds, start=start,
                    eval_every=max(1, self.rounds // 50), **options,
                )  # fmt: skip
            if not run.diverged:
                break
            tries -= 1
            if not tries:
                broken = ", ".join(map(str, run.diverged.values()))
                raise BadValue(
                    f"training diverged (NaN or infinity) at round {broken}; lower "
                    "`rates`, or set `standardise=True` if columns are large."
                )
            rate = lowered(rate)
        self.rates_ = {"local_lr": rate, "server_lr": self._rates()[1]}
        return run

    def _batch(self, federation: Federation) -> int | None:
        """Return the batch size, or None for all rows of a client.

        If the batch size exceeds the rows of the largest client, return the largest
        power of two up to these rows. Then fits of similar data have the same shapes
        and share compiled programs.
        """
        if self.batch_size is None:
            return None
        size = check.integer("batch_size", self.batch_size, low=1)
        largest = int(federation.size.max())
        return size if size <= largest else 2 ** (largest.bit_length() - 1)

    def _method(
        self, problem: Problem, federation: Federation, options: dict[str, Any]
    ) -> tuple[Callable[[Any], Method], Any]:
        """Return a function that builds the algorithm for a local rate, and this rate.

        The rate comes from `rates`, or from a sweep.
        """
        check.choice("algorithm", self.algorithm, ALGORITHMS)
        check.integer("local_steps", self.local_steps, low=1)
        check.integer("rounds", self.rounds, low=1)
        local, server = self._rates()
        make = lambda rate: built(self.algorithm, rate, server, self.local_steps)
        if local is None:
            options = options | {"rounds": self.rounds}
            if self.rates == "advice":
                steps = self.local_steps
                local = advised(
                    self.algorithm, make, problem, federation, local_steps=steps,
                    **options,
                )  # fmt: skip
            else:
                local = local_rate(make, problem, federation, **options)
        return make, local

    def _rates(self) -> tuple[Any, Any]:
        """Return the local and the server rate that `rates` sets.

        The local rate is None if a sweep must choose it.
        """
        if isinstance(self.rates, str):
            check.choice("rates", self.rates, ("auto", "advice"))
            return None, 1.0
        if isinstance(self.rates, Real):
            return check.positive("rates", float(self.rates)), 1.0
        if isinstance(self.rates, tuple | list) and len(self.rates) == 2:
            return self.rates[0], self.rates[1]
        raise BadValue(
            "`rates` must be 'auto', 'advice', a local rate, or a pair (local, "
            f"server), got {self.rates!r}."
        )

    def _start(self, problem: Problem, features: int) -> Point | None:
        """Return the end of the last fit if `warm_start` is set, otherwise None."""
        if not (self.warm_start and hasattr(self, "_solution")):
            return None
        last = self._solution
        shapes = lambda tree: [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
        fresh = jax.eval_shape(problem.init, jax.random.key(0))
        if shapes(last) != [leaf.shape for leaf in jax.tree.leaves(fresh)]:
            raise BadValue(
                "`warm_start` must have data of the same shape as in the last fit, got "
                f"{features} features and other sizes; clone the estimator."
            )
        return last

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the calibrated log odds of the positive class, one per row.

        A row with a higher score of the model has higher log odds.
        """
        check_is_fitted(self)
        if self._client_column is not None:
            X = without_column(X, self._client_column)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return np.asarray(X @ self.coef_[0]).ravel() + self.intercept_[0]

    def predict(self, X: Any) -> np.ndarray:
        """Return the more probable class of each row."""
        odds = self.decision_function(X)  # raises unless fitted
        return self.classes_[(odds > 0).astype(int)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of both classes, [rows, 2].

        They come from Platt's calibration, which `fit` computes from sums over clients
        on the training rows. With few training rows, expect the probabilities to be too
        close to 0 and 1.
        """
        positive = expit(self.decision_function(X))
        return np.stack([1 - positive, positive], axis=1)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the AUC of the rows `X` with labels `y`, not the accuracy."""
        return float(
            roc_auc_score(y, self.decision_function(X), sample_weight=sample_weight)
        )


def built(name: str, local: Any, server: Any, local_steps: int) -> Method:
    """Return the algorithm `name` with those of the three parameters that it has."""
    known = inspect.signature(ALGORITHMS[name]).parameters
    given = {"local_lr": local, "server_lr": server, "local_steps": local_steps}
    return ALGORITHMS[name](**{k: v for k, v in given.items() if k in known})
