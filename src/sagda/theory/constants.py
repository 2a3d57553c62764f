"""The theorems' constants, measured on a problem's data.

Curvatures, noise and spread are taken at the start, at (x_0, y*(x_0)), and at points
around the start; they hold there, and no more is said: DRO is not smooth everywhere,
and AUC's noise grows with x.
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
from sagda.core import Point
from sagda.data.federation import Federation
from sagda.keys import key_of, root_key
from sagda.problems.base import Problem
from sagda.problems.inner import norm_sq
from sagda.problems.metrics import mean_loss, outer
from sagda.simulator.setup import Setup, View
from sagda.simulator.simulate import draw_starts
from sagda.theory.setting import Constants

DENSE = 400  # numbers in z up to which whole Hessians are made
POWER = 200  # steps of the power iteration beyond
NORMAL = 1.96  # 95 % of a normal distribution lie within so many deviations
FLAT = 1e-6  # curvatures below this share of the largest are none


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
    """A constant, how it was had, where it holds, and within what."""

    value: float
    how: str
    where: str = "everywhere"
    low: float | None = None  # of a 95 % interval, where it was sampled
    high: float | None = None


class Estimates(NamedTuple):
    """All that the theorems need."""

    smoothness: Estimate
    mu: Estimate
    sigma_x: Estimate
    sigma_y: Estimate
    spread_x: Estimate
    spread_y: Estimate
    gap: Estimate

    @property
    def constants(self) -> Constants:
        found = {name: own.value for name, own in self._asdict().items()}
        return Constants(**found | {"mu": min(found["mu"], found["smoothness"])})


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
    """Measure the constants of a problem.

    Args:
        problem: f.
        federation: its clients.
        batch_size: rows of a stochastic gradient; None: all of a client's.
        points: places around the start to look at, beside it and (x_0, y*).
        radius: how far from the start they lie.
        draws: stochastic gradients of every client, for the noise.
        seed: of the start, the places and the draws.
    """
    check.integer("points", points, low=0)
    check.positive("radius", radius)
    check.integer("draws", draws, low=2)
    if (reason := beyond(problem)) is not None:
        raise BadValue(reason)
    keys = jax.vmap(root_key)(np.array([seed], np.uint32))
    start = jax.tree.map(lambda a: np.asarray(a)[0], draw_starts(problem, keys))
    with jax.enable_x64(True):
        setup = Setup.of(
            problem, federation, np.float64, cohort=1, batch_size=batch_size
        )
        view = View.of(setup, federation, np.float64)
        places = looked_at(view, start, points, radius, seed)
        where = f"within {radius:g} of the start" if points else "at the start"
        smoothness = max(float(x) for z in places for x in curvatures(view, z))
        noise = [noise_at(view, z, draws, seed) for z in places]
        spread = [spread_at(view, z) for z in places]
        return Estimates(
            Estimate(smoothness, curvature_method(places[0]), where),
            strong(view, places, where),
            sampled([at.x for at in noise], draws, where),
            sampled([at.y for at in noise], draws, where),
            Estimate(max(float(s.x) for s in spread), "all clients", where),
            Estimate(max(float(s.y) for s in spread), "all clients", where),
            initial_gap(view, places[0]),
        )


def beyond(problem: Problem) -> str | None:
    """Why the theorems say nothing of a problem; None if they may."""
    name = type(problem).__name__
    if problem.uses_torch:
        return (
            "the theorems' constants are measured by JAX, which cannot look into a "
            "PyTorch model; `sagda sweep` finds rates for it."
        )
    if getattr(problem, "clip", None) is not None:
        return "the theorems take gradients as they are, and `clip` cuts them short."
    if not problem.measures_phi:
        return f"the theorems need Phi, which {name} does not have."
    for letter, held in zip("xy", problem.sets(), strict=True):
        if held is not None:
            return (
                f"the theorems let x and y range freely, but {name} holds {letter} in "
                f"a {type(held).__name__.lower()}; `sagda sweep` finds rates for it."
            )
    return None


def looked_at(
    view: View, start: Point, points: int, radius: float, seed: int
) -> list[Point]:
    """The start, the start with its best y, and places at `radius` from the start."""
    problem = view.clients.problem
    z = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), start)
    best = outer(problem, z, view.clients.table, view.weight).y
    places = [z, Point(z.x, best)]
    flat, back = ravel_pytree(z)
    for i in range(points):
        key = key_of(root_key(seed), i, "places", 0)
        ahead = jax.random.normal(key, flat.shape, jnp.float64)
        places.append(back(flat + radius * ahead / jnp.linalg.norm(ahead)))
    return [problem.project(place) for place in places]


# Curvature.


def curvature_method(z: Point) -> str:
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(z))
    return "Hessians of all clients" if size <= DENSE else "power iteration, from below"


@jax.jit
def curvatures(view: View, z: Point) -> jax.Array:
    """[M], the largest curvature of every f_i at z, up or down."""
    flat, back = ravel_pytree(z)

    def one(i: jax.Array) -> jax.Array:
        f = view.clients.objective(i)
        xi = f.whole(root_key(0))
        slope = lambda v: ravel_pytree(f.grad(back(v), xi))[0]
        times = lambda v: jax.jvp(slope, (flat,), (v,))[1]
        if flat.size <= DENSE:
            whole = jax.vmap(times)(jnp.eye(flat.size, dtype=flat.dtype))
            return jnp.abs(jnp.linalg.eigvalsh((whole + whole.T) / 2)).max()
        return power(times, flat)

    return jax.lax.map(one, jnp.arange(view.clients.count))


def power(times: Any, like: jax.Array) -> jax.Array:
    """The largest absolute eigenvalue, approached from below."""
    first = jax.random.normal(root_key(0), like.shape, like.dtype)

    def step(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        v, _ = carry
        w = times(v / jnp.linalg.norm(v))
        return w + jnp.finfo(w.dtype).tiny, jnp.linalg.norm(w)

    return jax.lax.fori_loop(0, POWER, step, (first, jnp.zeros((), like.dtype)))[1]


def strong(view: View, places: list[Point], where: str) -> Estimate:
    """mu: the problem's own, or the least curvature in y that is not zero.

    Where f is not concave in y, curvatures say nothing of the PL inequality.
    """
    own = view.clients.problem.concavity()
    if own is not None:
        return Estimate(float(own), "closed form")
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(places[0].y))
    values = []
    if size <= DENSE:
        values = [np.asarray(y_curvatures(view, z)) for z in places]
    if not values or any(v.min() < -FLAT * v.max() or v.max() <= 0 for v in values):
        return Estimate(
            min(float(pl_ratio(view, z)) for z in places),
            "least ratio of the PL inequality seen, an estimate from above",
            where,
        )
    least = min(float(v[v > FLAT * v.max()].min()) for v in values)
    return Estimate(least, "least curvature in y, of f", where)


@jax.jit
def y_curvatures(view: View, z: Point) -> jax.Array:
    """Eigenvalues of - d^2 f / dy^2."""
    flat, back = ravel_pytree(z.y)
    table, weight = view.clients.table, view.weight
    f = lambda y: mean_loss(view.clients.problem, Point(z.x, back(y)), table, weight)
    return jnp.linalg.eigvalsh(-jax.hessian(f)(flat))


@jax.jit
def pl_ratio(view: View, z: Point) -> jax.Array:
    """||grad_y f||^2 / (2 (Phi - f))."""
    problem, table, weight = view.clients.problem, view.clients.table, view.weight
    f = lambda z: mean_loss(problem, z, table, weight)
    value, slope = jax.value_and_grad(f)(z)
    gap = outer(problem, z, table, weight).phi - value
    return jnp.where(gap > 0, norm_sq(slope.y) / (2 * gap), jnp.inf)


# Noise and spread.


class GradientMoments(NamedTuple):
    """The mean of squared distances, and the deviation of that mean."""

    mean: Any
    deviation: Any


@partial(jax.jit, static_argnames="draws")
def noise_at(view: View, z: Point, draws: int, seed: int) -> Point:
    """E ||g_i - grad f_i||^2, mean over clients, in x and in y."""

    def one(i: jax.Array) -> Point:
        f = view.clients.objective(i)
        center = f.grad(z, f.whole(root_key(0)))
        xi = f.draw(key_of(root_key(seed), 0, "noise", i), draws)

        def away(own: Any) -> Point:
            g = f.grad(z, own)
            return Point(norm_sq(minus(g.x, center.x)), norm_sq(minus(g.y, center.y)))

        return jax.lax.map(away, xi)

    squares = jax.lax.map(one, jnp.arange(view.clients.count))  # [M, draws]

    def moments(values: jax.Array) -> GradientMoments:
        # Every client is there; chance is in its draws alone.
        within = values.var(axis=1, ddof=1).mean() / values.size
        return GradientMoments(values.mean(), jnp.sqrt(within))

    return Point(moments(squares.x), moments(squares.y))


def minus(a: Any, b: Any) -> Any:
    return jax.tree.map(lambda p, q: p - q, a, b)


def sampled(found: list[GradientMoments], draws: int, where: str) -> Estimate:
    """The noisiest place's, with its interval."""
    mean, deviation = max((float(m.mean), float(m.deviation)) for m in found)
    root = lambda value: float(np.sqrt(max(value, 0.0)))
    low, high = mean - NORMAL * deviation, mean + NORMAL * deviation
    how = f"{draws} draws of every client"
    return Estimate(root(mean), how, where, root(low), root(high))


@jax.jit
def spread_at(view: View, z: Point) -> Point:
    """Root mean square of grad f_i - grad f over clients, in x and in y."""

    def one(i: jax.Array) -> Point:
        f = view.clients.objective(i)
        return f.grad(z, f.whole(root_key(0)))

    slopes = jax.lax.map(one, jnp.arange(view.clients.count))

    def rms(tree: Any) -> jax.Array:
        away = jax.tree.map(lambda a: a - a.mean(0, keepdims=True), tree)
        return jnp.sqrt(norm_sq(away) / view.clients.count)

    return Point(rms(slopes.x), rms(slopes.y))


# The gap.


@jax.jit
def phi_at(view: View, z: Point, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Phi and its gradient at `x`, a vector in the shape of z.x."""
    back = ravel_pytree(z.x)[1]
    at = outer(
        view.clients.problem, Point(back(x), z.y), view.clients.table, view.weight
    )
    return at.phi, ravel_pytree(at.grad)[0]


def initial_gap(view: View, z: Point) -> Estimate:
    """Phi(x_0) - f(z_0)/10 - 0.9 inf Phi, the infimum by minimising Phi.

    inf (Phi - f/10) = 0.9 inf Phi, since f <= Phi with equality at y*.
    """
    flat = np.asarray(ravel_pytree(z.x)[0])
    both = lambda x: tuple(np.asarray(a) for a in phi_at(view, z, jnp.asarray(x)))
    options = {"maxiter": 500, "maxcor": 20}
    done = minimize(both, flat, jac=True, method="L-BFGS-B", options=options)
    f = mean_loss(view.clients.problem, z, view.clients.table, view.weight)
    gap = max(float(both(flat)[0]) - float(f) / 10 - 0.9 * float(done.fun), 0.0)
    return Estimate(
        gap, "Phi minimised from the start, an estimate from below", "there"
    )
