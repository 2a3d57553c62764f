"""Metrics against independent computations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

import sagda
from sagda.problems.metrics import auc
from support import run64


@given(
    st.lists(
        st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40
    ).filter(lambda rows: len({label for _, label in rows}) == 2)
)
def test_auc_is_scikit_learns_with_ties(rows):
    score = np.array([s for s, _ in rows], float)
    label = np.array([1 if l else -1 for _, l in rows])
    np.testing.assert_allclose(auc(score, label), roc_auc_score(label, score))


def test_auc_of_one_class_or_broken_scores_is_not_a_number():
    assert np.isnan(auc(np.ones(3), np.ones(3)))
    assert np.isnan(auc(np.array([np.nan, 1.0]), np.array([1, -1])))


@pytest.mark.parametrize("kind", [sagda.AUC, sagda.DRO])
def test_columns_by_hand(kind, uneven):
    """Clients of unequal size: every mean is a mean of client means."""
    problem = kind.of(uneven)
    test = uneven.data._replace(position=None, features=-uneven.data.features)
    out = run64(
        sagda.fsgda(), problem, uneven, rounds=3, test=test, metrics=["potential"]
    )
    at = {name: column[0, -1] for name, column in out.history.columns.items()}
    x, y = (
        (np.asarray(half) for half in (out.z.x, out.z.y))
        if kind is sagda.DRO
        else (
            out.z.x,
            out.z.y,
        )
    )
    a, b = uneven.data.features, uneven.data.label
    if kind is sagda.AUC:
        w, c_1, c_2 = x.model[0], x.c_1[0], x.c_2[0]
        lam, tau, h = y[0], problem.tau, a @ w
        positive = b > 0
        row = np.where(
            positive,
            (1 - tau) * (h - c_1) ** 2 - 2 * (1 + lam) * (1 - tau) * h,
            tau * (h - c_2) ** 2 + 2 * (1 + lam) * tau * h,
        )
        row -= tau * (1 - tau) * lam**2
        score = h
    else:
        score = a @ x[0]
        n = 5
        g = 1e-3 * np.sum(10 * x[0] ** 2 / (1 + 10 * x[0] ** 2))
        V = 0.5 * np.sum((y[0] - 1 / n) ** 2)
        row = y[0][uneven.data.position] * np.log1p(np.exp(-b * score)) - V + g
    losses = [row[uneven.owner == i].mean() for i in range(4)]
    np.testing.assert_allclose(at["f"], np.mean(losses), rtol=1e-10)
    np.testing.assert_allclose(at["worst_client_loss"], np.max(losses), rtol=1e-10)
    np.testing.assert_allclose(at["gap"], at["phi"] - at["f"], rtol=1e-10)
    assert at["gap"] >= 0
    np.testing.assert_allclose(at["potential"], at["phi"] - at["f"] / 10, rtol=1e-10)
    np.testing.assert_allclose(at["auc_train"], roc_auc_score(b, score))
    np.testing.assert_allclose(at["auc_test"], roc_auc_score(b, -score))


def test_drift_is_how_far_clients_moved(quadratic):
    """With one step from the same point: mean_i ||(eta_x g_x, eta_y g_y)||^2."""
    problem, federation = quadratic
    out = run64(
        sagda.fsgda(local_lr=(0.1, 0.2), local_steps=1),
        problem,
        federation,
        rounds=1,
        batch_size=None,
        metrics=["drift"],
        start=sagda.Point(np.ones(3), np.ones(2)),
    )
    per_client = lambda c: c.reshape(6, 4, *c.shape[1:]).mean(1)
    A, B, C, a, b = map(per_client, federation.data)
    g_x = (A @ np.ones(3)) + (B @ np.ones(2)) + a
    g_y = (np.swapaxes(B, 1, 2) @ np.ones(3)) - (C @ np.ones(2)) + b
    moved = 0.01 * (g_x**2).sum(1) + 0.04 * (g_y**2).sum(1)
    assert np.isnan(out.history["drift"][0, 0])
    np.testing.assert_allclose(out.history["drift"][0, 1], moved.mean(), rtol=1e-12)


def test_the_quadratic_reports_its_distance(quadratic):
    problem, federation = quadratic
    out = run64(sagda.fsgda(), problem, federation, rounds=1, start=problem.solution)
    assert out.history["distance_sq"][0, 0] == 0
    assert out.history["grad_phi_sq"][0, 0] < 1e-20
