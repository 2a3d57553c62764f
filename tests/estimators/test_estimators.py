"""Estimators in scikit-learn's manner: contract, clients, sharing of programs."""

import pickle
import warnings

import numpy as np
import pandas
import polars
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils import estimator_checks

import sagda
from sagda.data.recipe import FeatureMoments, Scaling
from sagda.estimators import FederatedAUCClassifier, FederatedDROClassifier
from sagda.estimators.clients import bucket
from sagda.scoring.calibration import calibrated

BOTH = [FederatedAUCClassifier, FederatedDROClassifier]
# Its data come from other array libraries, and SciPy must be told so before it starts.
SKIPPED = {"check_array_api_input": "SCIPY_ARRAY_API is not set"}


def rows(seed=0, count=120, features=4):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, features)) * [1.0, 10.0, 0.1, 1.0][:features]
    y = X[:, 0] + 0.05 * X[:, 1] + 0.2 * rng.normal(size=count) > 0.8
    return X, np.where(y, "ill", "well")


def small(cls=FederatedAUCClassifier, **options):
    given = {"rounds": 20, "rates": 0.05, "local_steps": 3, "random_state": 0}
    return cls(**given | options)


@pytest.mark.slow
@pytest.mark.parametrize("cls", BOTH)
def test_scikit_learn_takes_it_for_an_estimator(cls):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = estimator_checks.check_estimator(cls(), on_fail=None, on_skip=None)
    assert len(found) > 50
    for result in found:
        if result["status"] == "skipped":
            reason = SKIPPED.get(result["check_name"], "no reason known")
            assert reason in str(result["exception"]), result["check_name"]
        else:
            assert result["status"] == "passed", result


@pytest.mark.parametrize(
    "check",
    [
        "check_classifiers_train",
        "check_dict_unchanged",
        "check_estimators_nan_inf",
        "check_estimators_pickle",
        "check_methods_subset_invariance",
        "check_n_features_in_after_fitting",
    ],
)
def test_its_most_telling_checks(check):
    own = FederatedAUCClassifier(rounds=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        getattr(estimator_checks, check)(type(own).__name__, own)


def test_clients_of_one_class_are_the_normal_case():
    X, y = rows()
    model = small().fit(X, y, client=np.where(y == "ill", 1, 0))
    assert model.clients_.tolist() == [0, 1]
    assert model.score(X, y) == roc_auc_score(y == "well", model.decision_function(X))
    assert model.score(X, y) > 0.95
    assert list(model.classes_) == ["ill", "well"]


def test_a_client_column_of_a_frame():
    X, y = rows()
    names = ["a", "b", "c", "d"]
    site = np.resize(["north", "south", "east"], len(y))
    plain = small().fit(pandas.DataFrame(X, columns=names), y, client=site)
    frame = pandas.DataFrame(X, columns=names).assign(site=site)
    for held in (frame, polars.DataFrame(frame.to_dict("list"))):
        model = small().fit(held, y, client="site")
        assert model.clients_.tolist() == ["east", "north", "south"]
        np.testing.assert_array_equal(model.coef_, plain.coef_)
        assert list(model.feature_names_in_) == names
        # The column may be there when it predicts, or not.
        np.testing.assert_array_equal(model.predict(held), plain.predict(frame[names]))


def test_sparse_rows_give_what_dense_ones_give():
    X, y = rows()
    X[np.abs(X) < 0.5] = 0
    dense, thin = (small().fit(held, y) for held in (X, sparse.csr_matrix(X)))
    np.testing.assert_allclose(dense.coef_, thin.coef_, rtol=1e-12)
    given = thin.decision_function(sparse.csr_matrix(X))
    np.testing.assert_allclose(given, dense.decision_function(X), rtol=1e-9)


def test_it_works_in_a_pipeline_and_a_grid_search_with_clients():
    X, y = rows()
    site = np.arange(len(y)) % 4
    pipe = make_pipeline(PolynomialFeatures(2), small(rounds=10))
    name = "federatedaucclassifier"
    grid = {f"{name}__rates": [1e-6, 0.03]}
    search = GridSearchCV(pipe, grid, cv=3).fit(X, y, **{f"{name}__client": site})
    assert search.best_params_ == {f"{name}__rates": 0.03}
    best = search.best_estimator_[-1]
    assert best.clients_.tolist() == [0, 1, 2, 3]


def test_fits_of_similar_sizes_share_compiled_programs(caplog):
    import jax

    X, y = rows(count=128)
    site = np.arange(128) % 4
    small().fit(X[:120], y[:120], client=site[:120])
    with jax.log_compiles(), caplog.at_level("WARNING"):
        small(rates=0.01).fit(X[:113], y[:113], client=site[:113])
    made = [r.message for r in caplog.records if "Compiling" in r.message]
    assert not [text for text in made if "advance" in text or "evaluate" in text], made


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [2, None])
def test_padding_changes_nothing_but_shapes(batch_size):
    rng = np.random.default_rng(0)
    table = sagda.Table(rng.normal(size=(10, 3)), np.resize([1.0, -1.0, -1.0], 10))
    plain = sagda.Federation.of(table, np.arange(10), np.array([2, 5, 3]))
    wide = plain.padded(16, 8)
    assert wide.widest == 8
    assert wide.weight.sum() == pytest.approx(1)
    assert len(wide.owner) == len(wide.weight) == len(wide.data.label) == 16
    runs = [
        sagda.simulate(
            sagda.algorithm("sagda-i", local_lr=0.05), sagda.AUC.of(held), held,
            rounds=3, batch_size=batch_size, float64=True, metrics=["variate_lag"],
        )
        for held in (plain, wide)
    ]  # fmt: skip
    for name, column in runs[0].history.columns.items():
        if name != "seconds":
            found = runs[1].history[name]
            np.testing.assert_allclose(found, column, rtol=1e-9, atol=1e-12)


def test_seeds_decide_and_warm_starts_go_on():
    X, y = rows()
    again = [small(random_state=3).fit(X, y).coef_ for _ in range(2)]
    np.testing.assert_array_equal(*again)
    assert (small(random_state=4).fit(X, y).coef_ != again[0]).any()
    model = small(warm_start=True).fit(X, y)
    end, begin = model.history_["phi"][-1], model.history_["phi"][0]
    model.fit(X, y)
    assert model.history_["phi"][0] == pytest.approx(end, rel=1e-5)
    assert end < begin
    with pytest.raises(ValueError, match="clone the estimator"):
        model.fit(X[:, :2], y)


def test_a_pickled_estimator_holds_plain_arrays():
    X, y = rows()
    model = small().fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    plain = (str, int, float, bool, type(None), dict, tuple, np.ndarray, np.generic)
    for name, value in vars(model).items():
        assert isinstance(value, (*plain, sagda.Point)), name
    assert {"round", "grad_phi_sq", "bytes_up"} <= set(model.history_)


@pytest.mark.parametrize(
    "cls", [BOTH[0], pytest.param(BOTH[1], marks=pytest.mark.slow)]
)
def test_rates_are_found_and_lowered_where_they_do_not_last(cls, monkeypatch):
    X, y = rows()
    site = np.arange(len(y)) % 3
    model = cls(rounds=60, random_state=0).fit(X, y, client=site)
    assert model.score(X, y) > 0.95
    assert model.rates_["server_lr"] == 1.0
    monkeypatch.setattr("sagda.estimators.base.local_rate", lambda *_, **__: 30.0)
    tamed = cls(rounds=60, random_state=0).fit(X, y, client=site)
    assert 0 < tamed.rates_["local_lr"] < 30.0


@pytest.mark.slow
@pytest.mark.parametrize("cls", BOTH)
def test_rates_by_the_advice_of_theory(cls):
    X, y = rows()
    site = np.arange(len(y)) % 5
    model = small(cls, rates="advice", rounds=60).fit(X, y, client=site)
    x, y_rate = model.rates_["local_lr"]
    assert x > 0
    assert y_rate > 0
    assert model.score(X, y) > 0.9
    first, last = model.history_["grad_phi_sq"][[0, -1]]
    assert last < first / 10


def test_probabilities_are_calibrated_from_sums_over_clients():
    rng = np.random.default_rng(0)
    score = rng.normal(size=4000)
    label = rng.random(4000) < 1 / (1 + np.exp(-(2 * score - 1)))
    cut = np.arange(4000) % 7
    found = calibrated([(score[cut == i], label[cut == i]) for i in range(7)])
    together = calibrated([(score, label)])
    np.testing.assert_allclose(found, together, rtol=1e-8)
    # Platt's targets shrink a little; otherwise it is logistic regression.
    plain = LogisticRegression(C=np.inf).fit(score[:, None], label)
    np.testing.assert_allclose(
        found, [plain.coef_[0, 0], plain.intercept_[0]], rtol=0.01
    )
    # One class above the other: still finite. Backwards: the order is kept.
    split = calibrated([(np.array([1.0, 2.0, 3.0]), np.array([False, True, True]))])
    assert np.isfinite(split).all()
    back = calibrated([(np.array([3.0, 2.0, 1.0]), np.array([False, True, True]))])
    assert back.slope > 0
    far = np.linspace(90, 110, 100), np.arange(100) < 9
    backwards = calibrated([far])
    assert backwards.slope > 0
    chance = 1 / (1 + np.exp(-backwards(far[0])))
    np.testing.assert_allclose(chance, 0.1, atol=0.01)
    flat = calibrated([(np.zeros(4), np.array([False, True, True, True]))])
    share = (3 * 0.8 + 1 / 3) / 4
    assert flat(np.zeros(1))[0] == pytest.approx(np.log(share / (1 - share)))


def test_moments_of_clients_add_up():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3)) * [1, 1e3, 1e-3] + [1e6, 0, 5]
    X[:, 2] = 7.0
    parts = [FeatureMoments.of(X[a:b]) for a, b in ((0, 1), (1, 20), (20, 50))]
    found = Scaling.from_clients(parts)
    np.testing.assert_allclose(found.mean, X.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.scale, [*X[:, :2].std(0), 1.0], rtol=1e-9)
    assert found(X)[:, 2] == pytest.approx(np.zeros(50))


def test_buckets_hold_their_sizes_and_are_few():
    sizes = range(1, 3000)
    assert all(size <= bucket(size) <= max(8, 1.125 * size + 1) for size in sizes)
    assert len({bucket(size) for size in sizes}) < 70


BAD = {
    "a feature that is missing": (
        lambda X, y: small().fit(np.where(X[3, 1] == X, np.nan, X), y),
        "contains NaN",
    ),
    "one class": (
        lambda X, y: small().fit(X, np.zeros(len(X))),
        "got one class only",
    ),
    "three classes": (
        lambda X, y: small().fit(X, np.arange(len(X)) % 3),
        "Only binary classification is supported",
    ),
    "clients that are missing": (
        lambda X, y: small().fit(X, y, client=[None, *["a"] * (len(X) - 1)]),
        "every row, got 1 missing labels, the first in row 0",
    ),
    "clients that are not a number": (
        lambda X, y: small().fit(X, y, client=["a", np.nan, *["a"] * (len(X) - 2)]),
        "every row, got 1 missing labels, the first in row 1",
    ),
    "too few clients' labels": (
        lambda X, y: small().fit(X, y, client=[1, 2]),
        "`client` must have shape (120,), one label per row, got (2,)",
    ),
    "a column of an array": (
        lambda X, y: small().fit(X, y, client="site"),
        "`client` must be an array with the client of each row, or the name of a",
    ),
    "a column that is not there": (
        lambda X, y: small().fit(pandas.DataFrame(X), y, client="site"),
        "must name one of the columns 0, 1, 2, 3 of X, got 'site'",
    ),
    "other columns": (
        lambda X, y: small().fit(X, y).predict(X[:, :2]),
        "X has 2 features, but FederatedAUCClassifier is expecting 4 features",
    ),
    "an unknown algorithm": (
        lambda X, y: small(algorithm="sgd").fit(X, y),
        "`algorithm` must be one of",
    ),
    "rates that diverge": (
        lambda X, y: small(rates=1e6).fit(X, y),
        "training diverged (NaN or infinity) at round 3; lower `rates`",
    ),
    "rates of three": (
        lambda X, y: small(rates=(1, 2, 3)).fit(X, y),
        "`rates` must be 'auto', 'advice', a local rate, or a pair (local, server)",
    ),
    "advice on what the theorems leave out": (
        lambda X, y: small(rates="advice", algorithm="cd-ma").fit(X, y),
        "`rates` may be 'advice' only for sagda-i, sagda-ii, fsgda",
    ),
    "a cohort too large": (
        lambda X, y: small(cohort=2).fit(X, y),
        "`cohort` must be between 1 and 1",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_sentence(case):
    attempt, said = BAD[case]
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is compared
        attempt(*rows())
    assert said in str(error.value)


@pytest.mark.slow
def test_a9a_by_label_is_within_five_thousandths_of_pooled_regression():
    data = sagda.load("a9a")
    train, test = data.train, data.test
    site = np.empty(len(train.label), int)
    site[np.argsort(train.label, kind="stable")] = (
        np.arange(len(site)) * 100 // len(site)
    )
    central = LogisticRegression(max_iter=1000).fit(train.features, train.label)
    pooled = roc_auc_score(test.label, central.decision_function(test.features))
    model = FederatedAUCClassifier(random_state=0)
    model.fit(train.features, train.label, client=site)
    assert pooled == pytest.approx(0.902, abs=0.001)
    assert model.score(test.features, test.label) > pooled - 0.005
