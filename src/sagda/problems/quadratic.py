"""Quadratic saddle problems with a known solution, to compare methods and test theory.

The problem generates its own data, so it takes no data set, model or partition. Its
constants L_f and mu are exact, so the step-size conditions in `sagda.theory` can be
tested on it.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sagda import check
from sagda.check import BadValue
from sagda.core import Point, PyTree
from sagda.data.federation import Federation
from sagda.keys import Key, generator
from sagda.problems.base import Problem

LARGEST = 8.0  # the largest size of the data that `make` generates, in gigabytes


class Coefficients(NamedTuple):
    """The columns of the data: one row has the loss x'Ax/2 + x'By - y'Cy/2 + a'x + b'y.

    Every column has the rows on axis 0.
    """

    A: Any
    B: Any
    C: Any
    a: Any
    b: Any


@dataclass(frozen=True)
class Quadratic(Problem):
    """A quadratic saddle problem with a known solution and chosen difficulty.

    f_i(x, y) = x'A_i x/2 + x'B_i y - y'C_i y/2 + a_i'x + b_i'y

    `Quadratic.make` generates the problem together with its data. `smoothness` and `mu`
    are exact, not bounds.

    Args:
        x_dim: the number of entries of x.
        y_dim: the number of entries of y.
        smoothness: L_f, the largest smoothness constant of the clients.
        mu: the PL constant of f in y, where f is the mean over clients.
        solution: the point (x*, y*). If several y are best, y* is the shortest one.
    """

    x_dim: int
    y_dim: int
    smoothness: float
    mu: float
    solution: Point

    @classmethod
    def make(
        cls,
        *,
        clients: int = 20,
        samples: int = 10,
        x_dim: int = 10,
        y_dim: int = 5,
        smoothness: float = 2.0,
        mu: float = 0.5,
        heterogeneity: float = 1.0,
        noise: float = 0.0,
        nonconvex_clients: bool = False,
        strongly_concave: bool = True,
        seed: int = 0,
    ) -> tuple["Quadratic", Federation]:
        """Return a random problem and its federation.

        Args:
            clients: M, the number of clients.
            samples: the number of rows of each client.
            x_dim: the number of entries of x.
            y_dim: the number of entries of y.
            smoothness: L_f, the largest smoothness constant of the clients. It must be
                above `mu`.
            mu: the modulus of strong concavity in y, or the PL constant if
                `strongly_concave` is False.
            heterogeneity: how far the gradients of f_i are from that of f at the
                solution: the root mean square over clients, in x and in y separately.
            noise: how far the gradients of rows are from the mean gradient of their
                client: the root mean square over rows, in x and in y separately.
            nonconvex_clients: make the matrices A_i indefinite. Their mean stays
                positive definite. If the number of clients is odd, the last one keeps
                a positive definite A_i.
            strongly_concave: if False, the Hessian in y is singular. f is then constant
                along one direction of y, and PL with constant `mu`.
            seed: the seed of the random problem.

        Examples:
            >>> problem, federation = Quadratic.make(clients=4, smoothness=3.0, mu=1.0)
            >>> problem.smoothness, problem.mu, len(federation.size)
            (3.0, 1.0, 4)
        """
        check.integer("clients", clients, low=1)
        check.integer("samples", samples, low=1 if noise == 0 else 2)
        check.integer("x_dim", x_dim, low=1)
        check.integer("y_dim", y_dim, low=1 if strongly_concave else 2)
        _check_dials(clients * samples, x_dim + y_dim, smoothness, mu)
        check.real("heterogeneity", heterogeneity, low=0)
        check.real("noise", noise, low=0)

        def normal(name: str, *shape: int) -> np.ndarray:
            return generator(seed, "quadratic", name).normal(size=shape)

        def centred(name: str, size: float, *shape: int) -> np.ndarray:
            """Return vectors with mean 0 (axis -2) and root mean square norm `size`."""
            rows = normal(name, *shape)
            rows = rows - rows.mean(-2, keepdims=True)
            rms = np.sqrt((rows**2).sum(-1).mean())
            return rows * (size / rms if rms > 0 else 0.0)

        def symmetric(name: str, spectrum: np.ndarray) -> np.ndarray:
            axes, _ = np.linalg.qr(normal(name, len(spectrum), len(spectrum)))
            return axes * spectrum @ axes.T

        flat = 0 if strongly_concave else 1
        curved = np.linspace(mu, np.sqrt(mu * smoothness), y_dim - flat)
        C = symmetric("C", np.concatenate([np.zeros(flat), curved]))
        in_range = C @ np.linalg.pinv(C)  # projects y onto the range of C
        A = symmetric("A", np.linspace(0.1, 1, x_dim))
        B = normal("B", x_dim, y_dim) @ in_range / np.sqrt(x_dim + y_dim)
        bend = symmetric("bend", 1.5 * np.resize([-1.0, 1.0], x_dim))
        # Clients alternate between A + bend and A - bend, so the mean of a pair is A.
        turns = np.resize([1.0, -1.0], clients) * nonconvex_clients
        turns[clients - clients % 2 :] = 0

        A, B, bend = _scale_to(smoothness, A, B, C, bend, turns)

        # a_i and b_i make the mean gradient zero at this (x, y). Heterogeneity has mean
        # zero over clients, and noise over the rows of a client: neither moves (x, y).
        x, y = normal("x*", x_dim), in_range @ normal("y*", y_dim)
        A_i = A + turns[:, None, None] * bend
        a_i = centred("a", heterogeneity, clients, x_dim) - A_i @ x - B @ y
        b_i = centred("b", heterogeneity, clients, y_dim) - B.T @ x + C @ y
        a = a_i[:, None] + centred("noise a", noise, clients, samples, x_dim)
        b = b_i[:, None] + centred("noise b", noise, clients, samples, y_dim)

        rows = clients * samples
        table = Coefficients(
            np.repeat(A_i, samples, axis=0),
            np.broadcast_to(B, (rows, *B.shape)),
            np.broadcast_to(C, (rows, *C.shape)),
            a.reshape(rows, x_dim),
            b.reshape(rows, y_dim),
        )
        sizes = np.full(clients, samples)
        problem = cls(x_dim, y_dim, float(smoothness), float(mu), Point(x, y))
        return problem, Federation.of(table, np.arange(rows), sizes)

    def init(self, key: Key) -> Point:
        x = 0.1 * jax.random.normal(key, (self.x_dim,))
        return Point(x, jnp.zeros((self.y_dim,)))

    def loss(self, z: Point, batch: Any, key: Key) -> jax.Array:
        A, B, C, a, b = batch
        x, y = z.x, z.y
        return (A @ x / 2 + B @ y + a) @ x + (b - C @ y / 2) @ y

    def best_y(self, x: PyTree, rows: Any, weight: jax.Array) -> jax.Array:
        """Return the shortest y with C y = B'x + b, with means of B, C and b."""
        mean = lambda column: jnp.tensordot(weight, column, 1)
        inverse = jnp.linalg.pinv(mean(rows.C), hermitian=True)
        return inverse @ (mean(rows.B).T @ x + mean(rows.b))

    def metrics(self, z: Point, rows: Any, weight: jax.Array) -> dict[str, jax.Array]:
        """Return the squared distance to the nearest solution.

        f may be constant along a direction of y. Such directions do not count.
        """
        error = z - self.solution
        C = jnp.tensordot(weight, rows.C, 1)
        curved = jnp.linalg.pinv(C, hermitian=True) @ (C @ error.y)
        return {"distance_sq": jnp.sum(error.x**2) + jnp.sum(curved**2)}


def _check_dials(rows: int, entries: int, smoothness: float, mu: float) -> None:
    """Raise if the matrices are too large, or `smoothness` is not above `mu`."""
    gigabytes = 8e-9 * rows * (entries + 1) ** 2
    if gigabytes > LARGEST:
        raise BadValue(
            f"`clients` x `samples` must be small enough for {LARGEST:g} GB of data, "
            f"got {gigabytes:.0f} GB for {rows} rows; lower one of them."
        )
    check.positive("mu", mu)
    if check.real("smoothness", smoothness) <= mu:
        raise BadValue(f"`smoothness` must be above `mu` = {mu:g}, got {smoothness:g}.")


def _scale_to(smoothness, A, B, C, bend, turns):
    """Return A, B and bend, scaled so that the largest curvature is `smoothness`."""

    def curvature(scale: float) -> float:
        def norm(turn: float) -> float:
            top = np.concatenate([scale * (A + turn * bend), scale * B], axis=1)
            bottom = np.concatenate([scale * B.T, -C], axis=1)
            return float(np.linalg.norm(np.concatenate([top, bottom]), 2))

        return max(norm(turn) for turn in set(turns.tolist()))

    # The curvature is convex in the scale, and below `smoothness` at scale zero. So it
    # equals `smoothness` at exactly one scale, which bisection finds.
    low, high = 0.0, 1.0
    while curvature(high) < smoothness:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if curvature(middle) < smoothness else (low, middle)
    return low * A, low * B, low * bend
