"""Estimates of the theorems' constants from a problem and its data.

Curvature, noise and spread are measured at the start z_0, at (x_0, y*(x_0)) and at
random points around z_0. The estimates are valid near these points only: DRO is not
smooth everywhere, and the noise of AUC grows with x. `setting.Constants` explains the
symbols. `advice` uses the estimates.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

from sagda import check
from sagda.check import BadValue
from sagda.core import Point, minus
from sagda.data.federation import Federation
from sagda.keys import key_of, root_key
from sagda.problems.base import Problem
from sagda.problems.inner import norm_sq
from sagda.problems.metrics import mean_loss, outer
from sagda.simulator.setup import Setup, View
from sagda.simulator.simulate import draw_starts
from sagda.theory.setting import Constants

DENSE = 400  # the largest number of entries of z = (x, y) with a full Hessian
POWER = 200  # number of power iterations for larger models
NORMAL = 1.96  # half width of a 95 % normal interval, in standard deviations
FLAT = 1e-6  # curvatures below this fraction of the largest count as zero


SYMBOLS = {
    "smoothness": "L_f",
    "mu": "mu",
    "sigma_x": "sigma_x",
    "sigma_y": "sigma_y",
    "spread_x": "sigma_x,G",
    "spread_y": "sigma_y,G",
    "gap": "L_0 - L_*",
}


class Estimate(NamedTuple):
    """An estimate of one constant."""

    value: float
    how: str  # how the constant was measured, for users
    where: str = "everywhere"  # the region where the estimate is valid, for users
    # Ends of the 95 % interval, if the constant was measured on random draws.
    low: float | None = None
    high: float | None = None


class Estimates(NamedTuple):
    """An estimate of every constant that the theorems need."""

    smoothness: Estimate
    mu: Estimate
    sigma_x: Estimate
    sigma_y: Estimate
    spread_x: Estimate
    spread_y: Estimate
    gap: Estimate

    @property
    def constants(self) -> Constants:
        """The estimated values. mu is L_f at most."""
        values = {name: estimate.value for name, estimate in self._asdict().items()}
        return Constants(**values | {"mu": min(values["mu"], values["smoothness"])})


def estimate(
    problem: Problem,
    federation: Federation,
    *,
    batch_size: int | None = 1,
    points: int = 3,
    radius: float = 1.0,
    draws: int = 64,
    seed: int = 0,
) -> Estimates:
    """Estimate the constants that the theorems need for a problem.

    Args:
        problem: the objective f.
        federation: the clients and their rows.
        batch_size: rows per stochastic gradient, or None for all rows of a client.
        points: number of random points at which to measure, in addition to the start
            z_0 and (x_0, y*(x_0)).
        radius: Euclidean distance of the random points from z_0.
        draws: number of stochastic gradients per client that measure the noise.
        seed: seed of the start, the points and the draws.
    """
    check.integer("points", points, low=0)
    check.positive("radius", radius)
    check.integer("draws", draws, low=2)
    if (reason := not_covered(problem)) is not None:
        raise BadValue(reason)
    keys = jax.vmap(root_key)(np.array([seed], np.uint32))
    start = jax.tree.map(lambda a: np.asarray(a)[0], draw_starts(problem, keys))
    # Double precision, because mu is the smallest curvature and may be near zero.
    with jax.enable_x64(True):
        # No rounds are run, so the cohort plays no role.
        setup = Setup.of(
            problem, federation, np.float64, cohort=1, batch_size=batch_size
        )
        view = View.of(setup, federation, np.float64)
        places = measured_points(view, start, points, radius, seed)
        where = f"within {radius:g} of the start" if points else "at the start"
        smoothness = max(float(x) for z in places for x in curvatures(view, z))
        noise = [noise_at(view, z, draws, seed) for z in places]
        spread = [spread_at(view, z) for z in places]
        spread_x = max(float(s.x) for s in spread)
        spread_y = max(float(s.y) for s in spread)
        return Estimates(
            smoothness=Estimate(smoothness, curvature_method(places[0]), where),
            mu=estimated_mu(view, places, where),
            sigma_x=noisiest([moments.x for moments in noise], draws, where),
            sigma_y=noisiest([moments.y for moments in noise], draws, where),
            spread_x=Estimate(spread_x, "all clients", where),
            spread_y=Estimate(spread_y, "all clients", where),
            gap=initial_gap(view, places[0]),
        )


def not_covered(problem: Problem) -> str | None:
    """Return the reason why the theorems do not cover a problem, or None."""
    name = type(problem).__name__
    if problem.uses_torch:
        return (
            "the constants of the theorems are measured with JAX, which cannot "
            "differentiate a PyTorch model; find rates with `sagda sweep`."
        )
    if getattr(problem, "clip", None) is not None:
        return "the theorems do not cover clipped gradients; remove `clip`."
    if not problem.measures_phi:
        return (
            f"the theorems need Phi(x), the maximum of f over y, which {name} does not "
            "compute; find rates with `sagda sweep`."
        )
    for letter, domain in zip("xy", problem.sets(), strict=True):
        if domain is not None:
            return (
                f"the theorems need unconstrained x and y, but {name} constrains "
                f"{letter} to a {type(domain).__name__.lower()}; find rates with "
                "`sagda sweep`."
            )
    return None


def measured_points(
    view: View, start: Point, points: int, radius: float, seed: int
) -> list[Point]:
    """Return the start, (x_0, y*(x_0)), and random points at `radius` from it."""
    problem = view.clients.problem
    z = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), start)
    best = outer(problem, z, view.clients.table, view.weight).y
    places = [z, Point(z.x, best)]
    flat, back = ravel_pytree(z)
    for i in range(points):
        key = key_of(root_key(seed), i, "places", 0)
        direction = jax.random.normal(key, flat.shape, jnp.float64)
        places.append(back(flat + radius * direction / jnp.linalg.norm(direction)))
    return [problem.project(place) for place in places]


# Curvature.


def curvature_method(z: Point) -> str:
    """Return how `curvatures` measures at a point of this size, as text for users."""
    if ravel_pytree(z)[0].size <= DENSE:
        return "Hessians of all clients"
    return "power iteration, a lower bound"


@jax.jit
def curvatures(view: View, z: Point) -> jax.Array:
    """Return the largest absolute Hessian eigenvalue of each f_i at z, shape [M]."""
    flat, back = ravel_pytree(z)

    def largest(i: jax.Array) -> jax.Array:
        f = view.clients.objective(i)
        xi = f.whole(root_key(0))
        slope = lambda v: ravel_pytree(f.grad(back(v), xi))[0]
        times = lambda v: jax.jvp(slope, (flat,), (v,))[1]  # Hessian times v
        if flat.size <= DENSE:
            whole = jax.vmap(times)(jnp.eye(flat.size, dtype=flat.dtype))
            return jnp.abs(jnp.linalg.eigvalsh((whole + whole.T) / 2)).max()
        return power(times, flat)

    # One client at a time: M Hessians together would need M times the memory.
    return jax.lax.map(largest, jnp.arange(view.clients.count))


def power(times: Any, like: jax.Array) -> jax.Array:
    """Return a lower bound on the largest absolute eigenvalue of a symmetric matrix.

    Args:
        times: a function that multiplies the matrix by a vector.
        like: a vector with the shape and dtype that `times` expects.
    """
    first = jax.random.normal(root_key(0), like.shape, like.dtype)

    def step(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        v, _ = carry
        w = times(v / jnp.linalg.norm(v))
        # `tiny` keeps the next division defined if the Hessian is zero.
        return w + jnp.finfo(w.dtype).tiny, jnp.linalg.norm(w)

    return jax.lax.fori_loop(0, POWER, step, (first, jnp.zeros((), like.dtype)))[1]


def estimated_mu(view: View, places: list[Point], where: str) -> Estimate:
    """Return mu in closed form if the problem has one, else measured at `places`.

    If f is concave in y at all places, mu is the smallest positive curvature of f in y.
    If it is not, or if y has many entries, mu is the smallest PL ratio (`pl_ratio`).
    """
    concavity = view.clients.problem.concavity()
    if concavity is not None:
        return Estimate(float(concavity), "closed form")
    values = []
    if ravel_pytree(places[0].y)[0].size <= DENSE:
        values = [np.asarray(y_curvatures(view, z)) for z in places]
    if not values or any(v.min() < -FLAT * v.max() or v.max() <= 0 for v in values):
        return Estimate(
            min(float(pl_ratio(view, z)) for z in places),
            "smallest PL ratio measured, an upper bound",
            where,
        )
    least = min(float(v[v > FLAT * v.max()].min()) for v in values)
    return Estimate(least, "smallest curvature of f in y", where)


@jax.jit
def y_curvatures(view: View, z: Point) -> jax.Array:
    """Return the eigenvalues of -d^2 f / dy^2 at z, in ascending order."""
    flat, back = ravel_pytree(z.y)
    table, weight = view.clients.table, view.weight
    f = lambda y: mean_loss(view.clients.problem, Point(z.x, back(y)), table, weight)
    return jnp.linalg.eigvalsh(-jax.hessian(f)(flat))


@jax.jit
def pl_ratio(view: View, z: Point) -> jax.Array:
    """Return the PL ratio ||grad_y f||^2 / (2 (Phi - f)) at z.

    The PL constant mu is the infimum of this ratio over z.
    """
    problem, table, weight = view.clients.problem, view.clients.table, view.weight
    f = lambda z: mean_loss(problem, z, table, weight)
    value, slope = jax.value_and_grad(f)(z)
    gap = outer(problem, z, table, weight).phi - value
    # At a maximum in y the ratio is 0/0, which contains no information about mu.
    return jnp.where(gap > 0, norm_sq(slope.y) / (2 * gap), jnp.inf)


# Noise and spread.


class GradientMoments(NamedTuple):
    """The mean of ||g_i - grad f_i||^2 over draws and clients, with standard error."""

    mean: Any
    deviation: Any  # the standard error of `mean`


@partial(jax.jit, static_argnames="draws")
def noise_at(view: View, z: Point, draws: int, seed: int) -> Point:
    """Measure the noise of stochastic gradients at z over all clients.

    Returns a `Point` whose x and y are the `GradientMoments` of each variable.
    """

    def squared_noise(i: jax.Array) -> Point:
        f = view.clients.objective(i)
        center = f.grad(z, f.whole(root_key(0)))
        xi = f.draw(key_of(root_key(seed), 0, "noise", i), draws)

        def of_draw(batch: Any) -> Point:
            g = f.grad(z, batch)
            return Point(norm_sq(minus(g.x, center.x)), norm_sq(minus(g.y, center.y)))

        return jax.lax.map(of_draw, xi)

    squares = jax.lax.map(squared_noise, jnp.arange(view.clients.count))  # [M, draws]

    def moments(values: jax.Array) -> GradientMoments:
        # All clients are measured. So the only random part is the draws of a client,
        # and the standard error needs the variance within clients only.
        within = values.var(axis=1, ddof=1).mean() / values.size
        return GradientMoments(values.mean(), jnp.sqrt(within))

    return Point(moments(squares.x), moments(squares.y))


def noisiest(moments: list[GradientMoments], draws: int, where: str) -> Estimate:
    """Return sigma at the point with the most noise, with a 95 % interval."""
    mean, deviation = max((float(m.mean), float(m.deviation)) for m in moments)
    root = lambda value: float(np.sqrt(max(value, 0.0)))
    low, high = mean - NORMAL * deviation, mean + NORMAL * deviation
    how = f"{draws} draws of every client"
    return Estimate(root(mean), how, where, root(low), root(high))


@jax.jit
def spread_at(view: View, z: Point) -> Point:
    """Return the root mean square of grad f_i - grad f over clients, in x and in y."""

    def gradient(i: jax.Array) -> Point:
        f = view.clients.objective(i)
        return f.grad(z, f.whole(root_key(0)))

    slopes = jax.lax.map(gradient, jnp.arange(view.clients.count))

    def rms(tree: Any) -> jax.Array:
        # In every leaf, axis 0 is the client.
        away = jax.tree.map(lambda a: a - a.mean(0, keepdims=True), tree)
        return jnp.sqrt(norm_sq(away) / view.clients.count)

    return Point(rms(slopes.x), rms(slopes.y))


# The gap.


@jax.jit
def phi_at(view: View, z: Point, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return Phi and its gradient at `x`, a flat vector with the entries of z.x."""
    back = ravel_pytree(z.x)[1]
    clients = view.clients
    at = outer(clients.problem, Point(back(x), z.y), clients.table, view.weight)
    return at.phi, ravel_pytree(at.grad)[0]


def initial_gap(view: View, z: Point) -> Estimate:
    """Return calL_0 - calL_* = Phi(x_0) - f(z_0)/10 - 0.9 inf Phi.

    0.9 inf Phi is the infimum of calL = Phi - f/10, because f <= Phi with equality at
    y*. L-BFGS-B minimises Phi from the start. Its result is an upper bound on inf Phi,
    so the returned gap is a lower bound.
    """
    flat = np.asarray(ravel_pytree(z.x)[0])
    both = lambda x: tuple(np.asarray(a) for a in phi_at(view, z, jnp.asarray(x)))
    options = {"maxiter": 500, "maxcor": 20}
    done = minimize(both, flat, jac=True, method="L-BFGS-B", options=options)
    f = mean_loss(view.clients.problem, z, view.clients.table, view.weight)
    gap = max(float(both(flat)[0]) - float(f) / 10 - 0.9 * float(done.fun), 0.0)
    return Estimate(gap, "Phi minimised from the start, a lower bound", "at the start")
