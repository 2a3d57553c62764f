"""Sets, problems from one function, and three problems, against SciPy in NumPy."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import sagda
from sagda import Ball, Box, MinMax, Point, Simplex
from sagda.check import BadKind, BadValue
from sagda.keys import key_of, root_key
from sagda.problems.inner import maximise, norm
from sagda.problems.metrics import outer, stationarity
from sagda.simulator.checks import columns_of
from sagda.simulator.setup import Setup, View
from support import run64, uneven_table

FEDERATION = uneven_table([6, 9, 5], features=3)
A, B = FEDERATION.data.features, FEDERATION.data.label
WEIGHT, OWNER = FEDERATION.weight, FEDERATION.owner
RNG = np.random.default_rng(1)
TIGHT = {"ftol": 1e-15, "maxiter": 1000}


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


# ---- sets ----------------------------------------------------------------------------

SETS = {
    "simplex": (Simplex(2.0), lambda y: [y.min(), -abs(y.sum() - 2)]),
    "box": (Box(-0.5, [0.1, 0.2, 3.0, 0.4]), lambda y: [y.min() + 0.5, 0.1 - y[0]]),
    "ball 1": (Ball(0.8, 1), lambda y: [0.8 - abs(y).sum()]),
    "ball 2": (Ball(0.8), lambda y: [0.8 - np.sqrt((y**2).sum())]),
    "ball inf": (Ball(0.8, np.inf), lambda y: [0.8 - abs(y).max()]),
}


def nearest(name, y):
    """By SLSQP; the ball of norm 1 in two halves, since its norm has kinks."""
    n = len(y)
    if name == "ball 1":
        halves = lambda w: w[:n] - w[n:]
        found = minimize(
            lambda w: ((halves(w) - y) ** 2).sum(),
            np.full(2 * n, 0.01),
            method="SLSQP",
            bounds=[(0, None)] * (2 * n),
            constraints={"type": "ineq", "fun": lambda w: 0.8 - w.sum()},
            options=TIGHT,
        )
        return halves(found.x)
    options = {
        "simplex": {
            "bounds": [(0, None)] * n,
            "constraints": {"type": "eq", "fun": lambda p: p.sum() - 2},
        },
        "box": {"bounds": [(-0.5, b) for b in (0.1, 0.2, 3.0, 0.4)]},
        "ball 2": {"constraints": {"type": "ineq", "fun": lambda p: 0.64 - p @ p}},
        "ball inf": {"bounds": [(-0.8, 0.8)] * n},
    }[name]
    found = minimize(
        lambda p: ((p - y) ** 2).sum(),
        np.full(n, 0.05),
        jac=lambda p: 2 * (p - y),
        method="SLSQP",
        options=TIGHT,
        **options,
    )
    return found.x


@pytest.mark.parametrize("name", SETS)
def test_projections_are_the_nearest_points(name):
    own, slack = SETS[name]
    for y in RNG.normal(size=(4, 4)):
        found = np.asarray(own.project(y))
        np.testing.assert_allclose(found, nearest(name, y), atol=1e-6)
        assert min(slack(found)) > -1e-12
        assert own.holds(found)
        assert not own.holds(found + 1.5)


def test_a_ball_for_every_row_and_one_for_all_arrays():
    own = Ball(1.0, rows=True)
    y = RNG.normal(size=(2, 3))
    each = [np.asarray(Ball(1.0).project(row)) for row in y]
    np.testing.assert_allclose(own.project(y), each, rtol=1e-12)
    tree = {"a": np.full(3, 2.0), "b": np.full((2, 2), -1.0)}
    found = Ball(1.0).project(tree)
    np.testing.assert_allclose(norm(found), 1, rtol=1e-12)
    np.testing.assert_allclose(found["a"][0], 2 / 4, rtol=1e-12)
    assert np.all(Box(-1, 1).project(tree)["a"] == 1)


@pytest.mark.parametrize("kind", [1, 2, "inf"])
def test_a_ball_without_radius_is_the_origin(kind):
    assert np.all(Ball(0.0, kind).project(np.array([0.0, 3.0])) == 0)
    assert np.all(Ball(0.0, kind).project(np.zeros(2)) == 0)


# ---- three problems ------------------------------------------------------------------


def l_of(x):
    return np.logaddexp(0, -B * (A @ x))


def slopes(x, per_row):
    """Weighted sum of the rows' gradients of l, each times `per_row`."""
    return A.T @ (per_row * -B / (1 + np.exp(B * (A @ x))))


def losses(x):
    """l_i of every client."""
    return np.array([l_of(x)[i == OWNER].mean() for i in range(3)])


class Agnostic:
    penalty = 0.3

    def problem(self):
        return sagda.Agnostic.of(FEDERATION, penalty=self.penalty)

    def f(self, x, y):
        return y @ losses(x) - self.penalty / 2 * ((y - 1 / 3) ** 2).sum()

    solver = {  # noqa: RUF012
        "x0": np.full(3, 1 / 3),
        "bounds": [(0, None)] * 3,
        "constraints": {"type": "eq", "fun": lambda y: y.sum() - 1},
    }

    def y(self, x):
        """The multiplier of sum y = 1 by bisection."""
        at = 1 / 3 + losses(x) / self.penalty
        low, high = at.min() - 1, at.max()
        for _ in range(200):
            middle = (low + high) / 2
            over = np.maximum(at - middle, 0).sum() > 1
            low, high = (middle, high) if over else (low, middle)
        return np.maximum(at - low, 0)

    def phi(self, x):
        y = self.y(x)
        return self.f(x, y), slopes(x, y[OWNER] * 3 * WEIGHT)

    lr = (0.5, 0.5)


class Adversarial:
    norm: object = 2
    radius = 0.15

    def problem(self):
        return sagda.Adversarial.of(FEDERATION, radius=self.radius, norm=self.norm)

    def f(self, x, y):
        y = y.reshape(2, 3)
        moved = A + np.where(B[:, None] > 0, y[0], y[1])
        return WEIGHT @ np.logaddexp(0, -B * (moved @ x))

    solver = {  # noqa: RUF012
        "x0": np.full(6, 0.01),
        "constraints": {
            "type": "ineq",
            "fun": lambda y: 0.15**2 - (y.reshape(2, 3) ** 2).sum(1),
        },
    }

    def phi(self, x):
        """One perturbation for every row: r ||x||_2."""
        length = np.sqrt(x @ x)
        m = -B * (A @ x) + self.radius * length
        share = WEIGHT / (1 + np.exp(-m))
        slope = A.T @ (-B * share) + share.sum() * self.radius * x / length
        return WEIGHT @ np.logaddexp(0, m), slope

    lr = (0.5, 200.0)


class AdversarialSigns(Adversarial):
    norm = "inf"
    radius = 0.05
    solver = {"x0": np.full(6, 0.01), "bounds": [(-0.05, 0.05)] * 6}  # noqa: RUF012

    def phi(self, x):
        """r ||x||_1."""
        m = -B * (A @ x) + self.radius * abs(x).sum()
        share = WEIGHT / (1 + np.exp(-m))
        slope = A.T @ (-B * share) + share.sum() * self.radius * np.sign(x)
        return WEIGHT @ np.logaddexp(0, m), slope


class Fair:
    criterion = "parity"
    counted = np.ones(len(B))
    penalty, slack = 0.2, 0.01

    def problem(self):
        return sagda.Fair.of(
            FEDERATION,
            group=0,
            criterion=self.criterion,
            slack=self.slack,
            penalty=self.penalty,
            bound=0.4,
        )

    def c(self, x):
        one = A[:, 0] > 0.5
        p = 1 / (1 + np.exp(-(A @ x)))
        mean = lambda own: WEIGHT[own] @ p[own] / WEIGHT[own].sum()
        use = self.counted > 0
        difference = mean(one & use) - mean(~one & use)
        per_row = np.zeros(len(B))
        for own, sign in ((one & use, 1), (~one & use, -1)):
            per_row[own] = sign * WEIGHT[own] / WEIGHT[own].sum()
        return difference, A.T @ (per_row * p * (1 - p))

    def f(self, x, y):
        c, _ = self.c(x)
        price = y[0] * (c - self.slack) + y[1] * (-c - self.slack)
        return WEIGHT @ l_of(x) + price - self.penalty / 2 * (y @ y)

    solver = {"x0": np.zeros(2), "bounds": [(0, 0.4)] * 2}  # noqa: RUF012

    def phi(self, x):
        c, slope = self.c(x)
        free = np.array([c - self.slack, -c - self.slack]) / self.penalty
        y = np.clip(free, 0, 0.4)
        return self.f(x, y), slopes(x, WEIGHT) + (y[0] - y[1]) * slope

    lr = (0.5, 1.0)


class FairToPositives(Fair):
    criterion = "opportunity"
    counted = (B > 0) * 1.0


CASES = [Agnostic(), Adversarial(), AdversarialSigns(), Fair(), FairToPositives()]
cases = pytest.mark.parametrize("case", CASES, ids=lambda c: type(c).__name__)


def seen(problem):
    """Problem, rows and weights as an evaluation has them."""
    shape = {"cohort": 1, "batch_size": None}
    setup = Setup.of(problem, FEDERATION, jnp.float64, **shape)
    view = View.of(setup, FEDERATION, jnp.float64)
    return view.clients.problem, view.clients.table, view.weight


@cases
def test_the_inner_maximum_is_scipys(case):
    given = case.problem()
    own = seen(given)
    for x in RNG.normal(size=(3, 3)):
        solved = minimize(
            lambda y, x=x: -case.f(x, y), method="SLSQP", options=TIGHT, **case.solver
        )
        start = given.init(jax.random.key(0)).y
        best = outer(own[0], Point(x, start), *own[1:])
        np.testing.assert_allclose(best.phi, -solved.fun, atol=1e-6)
        np.testing.assert_allclose(case.f(x, np.ravel(best.y)), -solved.fun, atol=1e-6)
        phi, slope = case.phi(x)
        np.testing.assert_allclose(best.phi, phi, rtol=1e-9)
        np.testing.assert_allclose(best.grad, slope, atol=1e-9)


def first(problem, seed):
    """Where a run of that seed starts: drawn in single precision."""
    with jax.enable_x64(False):
        start = problem.init(key_of(root_key(seed), "start"))
    return jax.tree.map(lambda a: np.asarray(a, np.float64), start)


@cases
def test_the_optimum_is_scipys(case):
    problem = case.problem()
    run = run64(
        sagda.parallel_sgda(local_lr=case.lr),
        problem,
        FEDERATION,
        rounds=4000,
        batch_size=None,
        eval_every=4000,
    )
    start = first(problem, 0).x
    solved = minimize(case.phi, start, jac=True, method="BFGS", options={"gtol": 1e-10})
    np.testing.assert_allclose(run.history["phi"][0, -1], solved.fun, atol=1e-9)
    np.testing.assert_allclose(run.z.x[0], solved.x, atol=1e-6)
    assert run.history["grad_phi_sq"][0, -1] < 1e-12


def test_without_a_penalty_the_worst_client_decides():
    """By the epigraph: min t, with t above every client's loss."""
    problem, rows, weight = seen(sagda.Agnostic.of(FEDERATION, penalty=0.0))
    solved = minimize(
        lambda v: v[0],
        np.array([1.0, 0, 0, 0]),
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda v: v[0] - losses(v[1:])},
        options=TIGHT,
    )
    best = outer(problem, Point(solved.x[1:], np.full(3, 1 / 3)), rows, weight)
    np.testing.assert_allclose(best.phi, solved.x[0], atol=1e-6)
    assert sorted(np.asarray(best.y).tolist()) == [0, 0, 1]
    assert problem.concavity() is None


def test_columns_of_the_history():
    run = run64(sagda.parallel_sgda(), Agnostic().problem(), FEDERATION, rounds=3)
    x = run.z.x[0]
    np.testing.assert_allclose(run.history["worst_loss"][0, -1], losses(x).max())
    run = run64(sagda.parallel_sgda(), Fair().problem(), FEDERATION, rounds=3)
    x, one = run.z.x[0], A[:, 0] > 0.5
    rate = lambda own: WEIGHT[own] @ (A[own] @ x > 0) / WEIGHT[own].sum()
    found = run.history["disparity"][0, -1]
    np.testing.assert_allclose(found, rate(one) - rate(~one), atol=1e-12)
    np.testing.assert_allclose(run.history["difference"][0, -1], Fair().c(x)[0])
    assert "auc_train" in run.history.columns


def test_only_a_problem_that_asks_knows_the_owner():
    before = FEDERATION.content
    assert seen(Fair().problem())[1].owner is None
    assert np.array_equal(seen(Agnostic().problem())[1].owner, OWNER)
    assert FEDERATION.data.owner is None
    assert FEDERATION.content == before


def test_what_is_measured_is_known_before_a_run():
    names = columns_of(Agnostic().problem(), FEDERATION, None)
    assert {"phi", "worst_loss", "auc_train"} <= set(names)


@pytest.mark.slow
def test_owners_travel_with_their_rows():
    """The run is the same in both layouts."""
    given = Agnostic().problem(), FEDERATION
    mapped, batched = (
        run64(sagda.fsgda(local_lr=0.1), *given, cohort=1, rounds=4, layout=layout)
        for layout in ("mapped", "batched")
    )
    np.testing.assert_allclose(mapped.z.y, batched.z.y, rtol=1e-12)
    np.testing.assert_allclose(
        mapped.history["phi"], batched.history["phi"], rtol=1e-12
    )


def test_a_named_group_from_the_command_and_scores_afterwards(tmp_path, monkeypatch):
    """Also where features are standardised: the threshold goes along."""
    from sagda.commands.main import main
    from sagda.runs.config import build
    from sagda.runs.experiment import prepare, resolve
    from sagda.scoring.scorer import Scorer

    monkeypatch.chdir(tmp_path)
    sex = np.where(RNG.random(60) < 0.9, "f", "m")
    age = RNG.normal(size=60) + (sex == "f")
    ill = (age + RNG.normal(size=60) > 0.8) * 1
    lines = [f"{a:.3f},{s},{i}" for a, s, i in zip(age, sex, ill, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["age,sex,label", *lines]))
    given = {"problem": "fair", "data": "rows.csv", "partition": "iid", "rounds": 2}
    given |= {"clients": 3, "samples": 20, "standardise": True}
    config = resolve(build(given), {"group": "sex=f", "criterion": "parity"})
    problem = prepare(config).problem
    assert problem.group == 1
    assert problem.shares == pytest.approx(((sex == "f").mean(), (sex == "m").mean()))
    told = "--problem fair --data rows.csv --partition iid --clients 3 --samples 20"
    told += " --rounds 2 --standardise --set group=sex=f --out r"
    assert main(["run", *told.split()]) == 0
    assert len(Scorer.load("r").predict("rows.csv")) == 60


# ---- problems from one function ------------------------------------------------------


def shifted(x, y, batch):
    """Rows of any class moved by y, at a price."""
    margin = batch.label * (batch.features @ x + y @ x)
    return sagda.softplus(-margin) - 0.5 * (y**2).sum()


@dataclass(frozen=True)
class Shifted(sagda.Problem):
    """The same as a class."""

    def init(self, key):
        return Point(jnp.full(3, 0.5), jnp.zeros(3))

    def loss(self, z, batch, key):
        return shifted(z.x, z.y, batch)

    def sets(self):
        return Box(-1.0, 0.6), Ball(0.3)

    def score(self, x, rows):
        return rows.features @ x


def one_function(**options):
    given = {"x": np.full(3, 0.5), "y": np.zeros(3), "x_in": Box(-1.0, 0.6)}
    given |= {"y_in": Ball(0.3), "score": lambda x, rows: rows.features @ x}
    return MinMax(shifted, **given | options)


@pytest.mark.slow
def test_one_function_is_as_good_as_a_class():
    options = {"rounds": 20, "cohort": 2}
    one = run64(sagda.fsgda(local_lr=0.1), one_function(), FEDERATION, **options)
    other = run64(sagda.fsgda(local_lr=0.1), Shifted(), FEDERATION, **options)
    assert one.history.columns.keys() == other.history.columns.keys()
    for name in {"phi", "grad_phi_sq", "inner_residual", "auc_train"}:
        assert np.array_equal(one.history[name], other.history[name])
    assert np.array_equal(one.z.x, other.z.x)
    assert np.array_equal(one.z.y, other.z.y)
    assert one.history["inner_residual"].max() < 1e-9


def test_a_closed_form_and_starts_from_a_key():
    """f = <y, x> - |y|^2/2 in the ball: y* = x, or as much of it as fits."""
    problem = MinMax(
        lambda x, y, batch: batch.label * 0 + y["w"] @ x - (y["w"] ** 2).sum() / 2,
        x=lambda key: jax.random.normal(key, (3,)),
        y={"w": np.zeros(3)},
        y_in=Ball(0.5),
        best_y=lambda x, rows, weight: Ball(0.5).project({"w": x}),
        concavity=1,
    )
    assert problem.concavity() == 1.0
    run = run64(sagda.fsgda(), problem, FEDERATION, rounds=1, seeds=(0, 1))
    assert "inner_residual" not in run.history.columns
    x = first(problem, 1).x
    length = np.linalg.norm(x)
    expected = length**2 / 2 if length < 0.5 else 0.5 * length - 0.125
    np.testing.assert_allclose(run.history["phi"][1, 0], expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["Agnostic", "Adversarial", "Fair", "MinMax"])
def test_every_round_is_feasible(name):
    by_name = {type(case).__name__: case.problem for case in CASES}
    problem = (by_name | {"MinMax": one_function})[name]()
    points = []
    run64(
        sagda.parallel_sgda(local_lr=(0.5, 1.0)),
        problem,
        FEDERATION,
        rounds=6,
        cohort=2,
        chunk=1,
        progress=lambda now: points.append(now.snapshot().z),
    )
    assert len(points) == 6
    moved = [np.abs(z.y[0] - points[0].y[0]).max() for z in points[1:]]
    assert max(moved) > 1e-3
    for z in points:
        x, y = np.asarray(z.x[0]), np.asarray(z.y[0])
        least = {
            "Agnostic": lambda y=y: min(y.min(), -abs(y.sum() - 1)),
            "Adversarial": lambda y=y: 0.15 - np.sqrt((y**2).sum(1)).max(),
            "Fair": lambda y=y: min(y.min(), 0.4 - y.max()),
            "MinMax": lambda x=x, y=y: min(
                0.3 - np.linalg.norm(y), 0.6 - x.max(), x.min() + 1
            ),
        }[name]()
        assert least > -1e-12


def test_a_constrained_x_has_its_gradient_mapping_measured():
    """Phi = (x - 3)^2 / 2 + x^2 / 2 is least at 1.5: on [0, 1] at 1, with slope -1."""
    problem = MinMax(
        lambda x, y, batch: batch.label * 0 + (x - 3) ** 2 / 2 + x * y - y**2 / 2,
        x=0.25,
        y=0.0,
        x_in=Box(0.0, 1.0),
    )
    method = sagda.parallel_sgda(local_lr=0.2)
    run = run64(method, problem, FEDERATION, rounds=200, eval_every=200)
    np.testing.assert_allclose(run.z.x, 1.0)
    # At the start the gradient is 2 * 0.25 - 3 = -2.5, and a step of it ends at 1.
    np.testing.assert_allclose(run.history["grad_phi_sq"][0, 0], 0.75**2, rtol=1e-9)
    assert run.history["grad_phi_sq"][0, -1] == 0
    free = MinMax(problem.function, x=0.25, y=0.0)
    at = Point(jnp.array(0.25), jnp.array(0.0))
    assert stationarity(free, at, jnp.array(-2.5)) == 6.25


def test_what_a_residual_certifies():
    """f* - f <= r (D + ||g||), and the distance to y* is at most (1 + L) r / mu."""
    root = RNG.normal(size=(4, 4))
    H = root @ root.T + 0.1 * np.eye(4)
    mu, *_, L = np.linalg.eigvalsh(H)
    own, D = Ball(0.7), 1.4
    for b in RNG.normal(size=(3, 4)):
        value = lambda y, b=b: b @ y - y @ H @ y / 2
        best, least = maximise(value, own.project, jnp.zeros(4))
        assert least < 1e-9
        for steps in (1, 2, 4):
            y, r = maximise(value, own.project, jnp.zeros(4), max_steps=steps)
            g = b - H @ y
            assert value(best) - value(y) <= r * (D + norm(g)) + 1e-12
            assert norm(y - best) <= (1 + L) / mu * r + 1e-12


def test_a_maximum_that_is_not_there_is_not_passed_over():
    """Linear in y, and nothing holds it."""
    problem = MinMax(lambda x, y, b: b.features @ x + y, x=np.zeros(3), y=0.0)
    with pytest.warns(sagda.UnsolvedWarning, match="inner maximum was not found: `inn"):
        run = run64(sagda.fsgda(), problem, FEDERATION, rounds=1)
    assert not (run.history["inner_residual"] < 1).any()


# ---- mistakes ------------------------------------------------------------------------


def simulate(problem, **options):
    return run64(sagda.fsgda(), problem, FEDERATION, rounds=1, **options)


def of(kind, **options):
    return lambda: getattr(sagda, kind).of(FEDERATION, **options)


MISTAKES = {
    "a mean": (
        lambda: simulate(
            MinMax(lambda x, y, b: (b.features @ x).mean() + y, x=np.zeros(3), y=0.0)
        ),
        "the loss of MinMax must return one value per row, got shape () for 20 rows; "
        "do not take the mean, since sagda does that.",
    ),
    "two losses": (
        lambda: simulate(MinMax(lambda x, y, b: (b.label, y), x=np.zeros(3), y=0.0)),
        "the loss of MinMax must return one value per row, got a tuple for 20 rows; "
        "do not take the mean, since sagda does that.",
    ),
    "an infeasible start": (
        lambda: simulate(one_function(y=np.full(3, 1.0))),
        "the start of `y` must lie in Ball(radius=0.3, norm=2, rows=False), but does "
        "not; use the method `project` of the set to get the nearest point in it.",
    ),
    "an infeasible start for one run": (
        lambda: simulate(
            Agnostic().problem(), start=Point(np.zeros(3), np.array([0.5, 0.6, 0.1]))
        ),
        "the start of `y` must lie in Simplex(scale=1.0), but does not; use the method "
        "`project` of the set to get the nearest point in it.",
    ),
    "an unknown set": (
        lambda: one_function(y_in="simplex"),
        "`y_in` must be a ConvexSet, such as sagda.Ball(1.0), or None, "
        "got 'simplex' of type str.",
    ),
    "a negative radius": (
        lambda: Ball(-1.0),
        "`radius` must be at least 0, got -1.",
    ),
    "a norm there is none of": (
        lambda: Ball(1.0, 3),
        "`norm` must be 1, 2 or 'inf', got 3.",
    ),
    "a simplex of nothing": (
        lambda: Simplex(0),
        "`scale` must be above zero, got 0.",
    ),
    "a box inside out": (
        lambda: Box(2, 1),
        "`low` must be at most `high`, got 2.0 and 1.0.",
    ),
    "a box of words": (
        lambda: Box("low", 1),
        "`low` must be a number or an array of numbers, got 'low' of type str.",
    ),
    "bounds of two shapes": (
        lambda: Box(np.zeros(2), np.ones(3)),
        "`low` and `high` must have the same shape, got (2,) and (3,).",
    ),
    "bounds of another shape": (
        lambda: one_function(x_in=Box(-1.0, np.ones(2))),
        "`x` must be one array of shape (2,), the shape of the bounds of its Box, got "
        "(3,); a number as bound fits arrays of any shape.",
    ),
    "a simplex of several arrays": (
        lambda: one_function(y={"a": np.zeros(2), "b": np.zeros(3)}, y_in=Simplex()),
        "`y` must be one vector for a Simplex, got shapes (2,), (3,); put all "
        "weights into one array.",
    ),
    "a simplex of a matrix": (
        lambda: one_function(y=np.zeros((2, 2)), y_in=Simplex()),
        "`y` must be one vector for a Simplex, got shapes (2, 2); put all "
        "weights into one array.",
    ),
    "rows of a vector": (
        lambda: one_function(y_in=Ball(1.0, rows=True)),
        "`y` must be a matrix for a Ball with rows=True, got an array of shape (3,); "
        "use rows=False for one ball.",
    ),
    "whole numbers": (
        lambda: one_function(x=np.zeros(3, int)),
        "`x` must be float arrays, such as np.zeros(3), or a function that makes "
        "them from a key, got int64 of shape (3,).",
    ),
    "a function of whole numbers": (
        lambda: one_function(y=lambda key: jnp.zeros(3, jnp.int32)),
        "`y` must be float arrays, such as np.zeros(3), or a function that makes "
        "them from a key, got int32 of shape (3,).",
    ),
    "no arrays": (
        lambda: one_function(y=None),
        "`y` must be float arrays, such as np.zeros(3), or a function that makes "
        "them from a key, got none.",
    ),
    "no function": (
        lambda: MinMax("loss", x=0.0, y=0.0),
        "`loss` must be a function, got 'loss' of type str.",
    ),
    "no concavity": (
        lambda: one_function(concavity=0.0),
        "`concavity` must be above zero, got 0.",
    ),
    "a negative penalty": (
        of("Agnostic", penalty=-1.0),
        "`penalty` must be at least 0, got -1.",
    ),
    "other clients": (
        lambda: simulate(sagda.Agnostic(sagda.Linear(3), 4)),
        "`clients` must be 3, the number of clients in the federation, got 4; use "
        "`Agnostic.of(federation)`.",
    ),
    "a diamond": (
        of("Adversarial", norm=1),
        "`ball` must have norm 2 or 'inf', and rows=True for one perturbation per "
        "class, got Ball(radius=0.1, norm=1, rows=True).",
    ),
    "a model that is none": (
        of("Adversarial", model=3),
        "`model` must have `init` and `apply`, such as sagda.Equinox(make), "
        "sagda.Torch(module) or a pair (init, apply), got an object of type int.",
    ),
    "a feature there is none of": (
        of("Fair", group=3),
        "`group` must be between 0 and 2 (features are counted from 0), got 3.",
    ),
    "one group": (
        of("Fair", group=1, threshold=100.0),
        "`group` must name a feature that splits the rows into two groups, but no "
        "rows have feature 1 above 100; choose another feature or `threshold`.",
    ),
    "another criterion": (
        of("Fair", group=0, criterion="parities"),
        "`criterion` must be one of parity, opportunity, got 'parities'; did you mean "
        "'parity'?",
    ),
    "no penalty": (
        of("Fair", group=0, penalty=0),
        "`penalty` must be above zero, got 0.",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_get_one_sentence(name):
    action, sentence = MISTAKES[name]
    with pytest.raises((BadValue, BadKind)) as caught:
        action()
    assert str(caught.value) == sentence
