"""Problems: gradients, closed-form maxima, Phi, and the quadratic's dials."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import sagda
from sagda import Point
from sagda.keys import root_key
from sagda.problems.metrics import mean_loss, outer
from sagda.simulator.setup import Setup, View
from support import flat, uneven_table


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def an_mlp(key):
    """A model with more than one parameter array."""
    import equinox as eqx

    return eqx.nn.MLP(4, "scalar", width_size=3, depth=1, key=key)


CASES = {
    "auc": lambda: (sagda.AUC.of(uneven_table([3, 5, 2, 4])), [3, 5, 2, 4]),
    "auc, network": lambda: (
        sagda.AUC.of(uneven_table([3, 5, 2, 4]), sagda.Equinox(an_mlp)),
        [3, 5, 2, 4],
    ),
    "dro": lambda: (sagda.DRO.of(uneven_table([3, 5, 2, 4])), [3, 5, 2, 4]),
    "dro, other constants": lambda: (
        sagda.DRO.of(uneven_table([4, 4]), lambda_1=0.3, lambda_2=0.1, alpha=2.0),
        [4, 4],
    ),
    "agnostic": lambda: (sagda.Agnostic.of(uneven_table([3, 5, 2, 4])), [3, 5, 2, 4]),
    "adversarial": lambda: (
        sagda.Adversarial.of(uneven_table([3, 5, 2, 4])),
        [3, 5, 2, 4],
    ),
    "fair": lambda: (
        sagda.Fair.of(uneven_table([3, 5, 2, 4]), group=1, penalty=0.5),
        [3, 5, 2, 4],
    ),
    "quadratic": lambda: sagda.Quadratic.make(clients=5, x_dim=4, y_dim=3, noise=1.0),
    "quadratic, PL": lambda: sagda.Quadratic.make(
        clients=5, x_dim=4, y_dim=3, strongly_concave=False, nonconvex_clients=True
    ),
}


class Case:
    """A problem with all rows, their weights, and a point."""

    def __init__(self, name):
        problem, data = CASES[name]()
        federation = uneven_table(data) if isinstance(data, list) else data
        shape = {"cohort": 1, "batch_size": None}
        self.setup = Setup.of(problem, federation, jnp.float64, **shape)
        self.view = View.of(self.setup, federation, jnp.float64)
        self.given, self.problem = problem, self.setup.clients.problem
        self.federation = federation
        start = problem.init(root_key(1))
        rng = np.random.default_rng(2)
        bump = lambda a: jnp.asarray(a + rng.normal(size=a.shape))
        self.z = jax.tree.map(bump, start)

    def f(self, z):
        return mean_loss(self.problem, z, self.view.clients.table, self.view.weight)

    def outer(self, z):
        return outer(self.problem, z, self.view.clients.table, self.view.weight)


@pytest.fixture(params=sorted(CASES), scope="module")
def case(request):
    with jax.enable_x64(True):
        return Case(request.param)


def difference_quotient(function, at, step=1e-6):
    """The gradient of `function` at a flat vector."""
    out = np.zeros_like(at)
    for j in range(len(at)):
        bump = np.zeros_like(at)
        bump[j] = step
        out[j] = (function(at + bump) - function(at - bump)) / (2 * step)
    return out


def unraveler(tree):
    from jax.flatten_util import ravel_pytree

    vector, back = ravel_pytree(tree)
    return np.asarray(vector), back


def test_gradients_are_difference_quotients(case):
    """Every client's own objective, on all its rows and on a batch with repetition."""
    from sagda.simulator.objective import Xi

    vector, back = unraveler(case.z)
    seed = jnp.zeros(2, jnp.uint32)
    for i in range(case.federation.clients):
        f = case.setup.objective(i)
        for xi in (Xi(None, seed), Xi(jnp.array([0, 1, 1]), seed)):
            value = jax.jit(lambda v, f=f, xi=xi: f.value(back(v), xi))
            expected = difference_quotient(value, vector)
            found = flat(f.grad(case.z, xi))
            np.testing.assert_allclose(found, expected, atol=2e-8, rtol=1e-7)


def test_f_is_the_mean_of_the_clients(case):
    xi = case.setup.objective(0).whole(root_key(0))
    values = [
        case.setup.objective(i).value(case.z, xi)
        for i in range(case.federation.clients)
    ]
    np.testing.assert_allclose(case.f(case.z), np.mean(values), rtol=1e-12)


def test_the_inner_maximum_is_the_one_of_scipy(case):
    """Also for clients of unequal size; from the point itself.

    Where y is held in a set, `tests/problems/test_minmax.py` has SciPy's solution.
    """
    best = case.outer(case.z)
    if best.residual is not None:
        assert float(best.residual) < 1e-6  # no closed form: the solver must succeed
        return
    if case.problem.sets()[1] is not None:
        slope = jax.grad(lambda y: case.f(Point(case.z.x, y)))(best.y)
        ahead = case.problem.project(Point(case.z.x, best.y + slope)).y
        np.testing.assert_allclose(ahead, best.y, atol=1e-9)
        return
    vector, back = unraveler(case.z.y)
    negative = jax.jit(lambda v: -case.f(Point(case.z.x, back(v))))
    slope = jax.jit(jax.grad(lambda v: -case.f(Point(case.z.x, back(v)))))
    solved = minimize(
        lambda v: float(negative(v)),
        vector,
        jac=lambda v: np.asarray(slope(v)),
        method="BFGS",
        options={"gtol": 1e-12},
    )
    np.testing.assert_allclose(best.phi, -solved.fun, atol=1e-9, rtol=1e-9)
    gradient = jax.grad(lambda y: case.f(Point(case.z.x, y)))(best.y)
    np.testing.assert_allclose(flat(gradient), 0, atol=1e-9)
    at = back(jnp.asarray(solved.x))
    through_solver = jax.grad(lambda x: case.f(Point(x, at)))(case.z.x)
    np.testing.assert_allclose(flat(best.grad), flat(through_solver), atol=1e-6)


def test_the_gradient_of_phi_is_its_difference_quotient(case):
    vector, back = unraveler(case.z.x)
    phi = jax.jit(lambda v: case.outer(Point(back(v), case.z.y)).phi)
    expected = difference_quotient(lambda v: float(phi(v)), vector)
    found = flat(case.outer(case.z).grad)
    np.testing.assert_allclose(found, expected, atol=5e-8, rtol=1e-6)


def test_without_a_closed_form_the_maximum_is_solved(case):
    class Unaided(type(case.problem)):
        def best_y(self, x, rows, weight):
            return None

    names = [field.name for field in dataclasses.fields(case.problem)]
    unaided = Unaided(**{name: getattr(case.given, name) for name in names})
    solved = outer(unaided, case.z, case.view.clients.table, case.view.weight)
    exact = case.outer(case.z)
    assert solved.residual < 1e-9
    np.testing.assert_allclose(flat(solved.grad), flat(exact.grad), atol=1e-6)
    np.testing.assert_allclose(solved.phi, exact.phi, rtol=1e-9, atol=1e-12)


def test_auc_is_the_pairwise_square_loss():
    """At the best c_1, c_2: Phi = tau (1 - tau) (E (1 - h_+ + h_-)^2 - 1)."""
    federation = uneven_table([6, 6])
    problem = sagda.AUC.of(federation)
    rng = np.random.default_rng(0)
    w = rng.normal(size=4)
    h = federation.data.features @ w
    positive = federation.data.label > 0
    pairs = 1 - h[positive][:, None] + h[~positive][None, :]
    x = sagda.problems.auc.AUCPoint(w, h[positive].mean(), h[~positive].mean())
    weight = jnp.asarray(federation.weight)
    best = outer(problem, Point(x, jnp.zeros(())), federation.data, weight)
    tau = problem.tau
    expected = tau * (1 - tau) * ((pairs**2).mean() - 1)
    np.testing.assert_allclose(best.phi, expected, rtol=1e-12)
    # and c_1, c_2 are stationary there
    np.testing.assert_allclose(flat(best.grad[1:]), 0, atol=1e-12)


def test_dro_as_printed():
    """The objective of one client, term by term, with the paper's constants."""
    federation = uneven_table([5])
    problem = sagda.DRO.of(federation)
    rng = np.random.default_rng(0)
    x, y, n = rng.normal(size=4), rng.normal(size=5), 5
    a, b = federation.data.features, federation.data.label
    l = np.log(1 + np.exp(-b * (a @ x)))
    V = 0.5 * (1 / n**2) * np.sum((n * y - 1) ** 2)
    g = 1e-3 * np.sum(10 * x**2 / (1 + 10 * x**2))
    expected = np.mean(y * l - V + g)
    found = mean_loss(
        problem, Point(x, y), federation.data, jnp.asarray(federation.weight)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("strongly_concave", [True, False])
@pytest.mark.parametrize("nonconvex_clients", [True, False])
@pytest.mark.parametrize(("smoothness", "mu"), [(2.0, 0.5), (30.0, 0.1), (1.1, 1.0)])
def test_the_quadratic_keeps_its_dials(
    smoothness, mu, nonconvex_clients, strongly_concave
):
    problem, federation = sagda.Quadratic.make(
        clients=7,
        samples=6,
        smoothness=smoothness,
        mu=mu,
        heterogeneity=3.0,
        noise=0.7,
        nonconvex_clients=nonconvex_clients,
        strongly_concave=strongly_concave,
    )
    rows = federation.data
    per_client = lambda column: column.reshape(7, 6, *column.shape[1:])
    A, B, C, a, b = (per_client(column).mean(1) for column in rows)
    hessians = np.block([[A, B], [np.swapaxes(B, 1, 2), -C]])
    curvature = np.abs(np.linalg.eigvalsh(hessians)).max()
    np.testing.assert_allclose(curvature, smoothness, rtol=1e-9)

    concavity = np.linalg.eigvalsh(C.mean(0))
    assert (concavity[0] > 1e-9) == strongly_concave
    np.testing.assert_allclose(concavity[concavity > 1e-9][0], mu, rtol=1e-9)

    lowest = np.linalg.eigvalsh(A)[:, 0]
    assert np.linalg.eigvalsh(A.mean(0))[0] > 0
    assert (lowest[:6] < 0).all() == nonconvex_clients

    x, y = problem.solution.x, problem.solution.y
    g_x = A @ x + B @ y + a
    g_y = np.einsum("ijk,j->ik", B, x) - C @ y + b
    for g in (g_x, g_y):
        np.testing.assert_allclose(g.mean(0), 0, atol=1e-9)
        spread = np.sqrt((g**2).sum(1).mean())
        np.testing.assert_allclose(spread, 3.0, rtol=1e-9)
    for column, mean in ((rows.a, a), (rows.b, b)):
        noise = per_client(column) - mean[:, None]
        np.testing.assert_allclose(np.sqrt((noise**2).sum(2).mean()), 0.7, rtol=1e-9)


def test_where_f_is_flat_in_y_any_maximiser_is_a_solution():
    problem, federation = sagda.Quadratic.make(
        clients=4, x_dim=3, y_dim=3, strongly_concave=False
    )
    C = federation.data.C[0]
    values, axes = np.linalg.eigh(C)
    assert abs(values[0]) < 1e-12
    elsewhere = Point(problem.solution.x, problem.solution.y + 5 * axes[:, 0])
    run = sagda.simulate(
        sagda.fsgda(),
        problem,
        federation,
        rounds=1,
        batch_size=None,
        float64=True,
        start=elsewhere,
    )
    assert run.history["distance_sq"][0, 0] < 1e-18
    assert run.history["grad_phi_sq"][0, 0] < 1e-18


def test_heterogeneous_nonconvex_clients_are_solved_exactly():
    """Where FSGDA drifts or diverges, SAGDA reaches the known solution."""
    problem, federation = sagda.Quadratic.make(clients=6, nonconvex_clients=True)
    for name in ("sagda-i", "sagda-ii"):
        run = sagda.simulate(
            sagda.algorithm(name, local_lr=0.05),
            problem,
            federation,
            rounds=400,
            batch_size=None,
            eval_every=400,
            float64=True,
        )
        assert run.history["distance_sq"][0, -1] < 1e-18


def test_entries_have_the_derivatives_of_plain_indexing():
    index = np.array([[0, 2, 2], [1, 3, 1]])
    own = lambda y, i: (sagda.entries(y, i) ** 3).sum()
    plain = lambda y, i: (y[i] ** 3).sum()
    y = jnp.arange(1.0, 5.0)
    for derivative in (jax.grad, lambda f: jax.jacfwd(jax.grad(f)), jax.hessian):
        for i in index:
            np.testing.assert_allclose(derivative(own)(y, i), derivative(plain)(y, i))
        many = jax.vmap(derivative(own), (None, 0))(y, index)
        np.testing.assert_allclose(
            many, jax.vmap(derivative(plain), (None, 0))(y, index)
        )
