"""Quadratic saddle problems with a known solution, on which methods are compared.

The problem draws its own data, so it takes no data set, model or partition. Its
constants hold exactly, which is what the theory is tested on.
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

LARGEST = 8.0  # gigabytes of data that `make` agrees to make


class Coefficients(NamedTuple):
    """One row: x'Ax/2 + x'By - y'Cy/2 + a'x + b'y."""

    A: Any
    B: Any
    C: Any
    a: Any
    b: Any


@dataclass(frozen=True)
class Quadratic(Problem):
    """A quadratic saddle with a known solution and chosen difficulty.

    f_i(x, y) = x'A_i x/2 + x'B_i y - y'C_i y/2 + a_i'x + b_i'y.

    `Quadratic.make` draws it with its data. `smoothness` and `mu` hold exactly.

    Args:
        x_dim: entries of x.
        y_dim: entries of y.
        smoothness: L_f, the largest curvature of any client.
        mu: the PL constant of the mean in y.
        solution: (x*, y*); y* is the shortest maximiser.
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
        """A random problem and its federation.

        Args:
            clients: M.
            samples: rows per client.
            x_dim: entries of x.
            y_dim: entries of y.
            smoothness: L_f, above `mu`.
            mu: modulus of strong concavity, or the PL constant without it.
            heterogeneity: root mean square over clients of the distance between
                grad f_i and grad f at the solution, in x and in y each.
            noise: root mean square distance between a row's gradient and its client's,
                in x and in y each.
            nonconvex_clients: give clients indefinite A_i, except the last of an odd
                number. The mean of all A_i stays positive definite.
            strongly_concave: if False, the Hessian in y is singular. f is then flat
                along one direction of y, and PL with constant `mu`.
            seed: selects the random problem.

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
            """Vectors of mean zero on axis -2, of root mean square length `size`."""
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
        # Clients take turns: A + bend, A - bend. The mean over a pair is A.
        turns = np.resize([1.0, -1.0], clients) * nonconvex_clients
        turns[clients - clients % 2 :] = 0

        A, B, bend = _scale_to(smoothness, A, B, C, bend, turns)

        # a_i and b_i are chosen so that the mean gradient vanishes at this (x, y). What
        # is added to them has mean zero, over clients and over the rows of a client.
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
        """The shortest y* with C y* = B'x + b, for the means over clients."""
        mean = lambda column: jnp.tensordot(weight, column, 1)
        inverse = jnp.linalg.pinv(mean(rows.C), hermitian=True)
        return inverse @ (mean(rows.B).T @ x + mean(rows.b))

    def metrics(self, z: Point, rows: Any, weight: jax.Array) -> dict[str, jax.Array]:
        """The squared distance to the nearest solution; f may be flat in some of y."""
        error = z - self.solution
        C = jnp.tensordot(weight, rows.C, 1)
        curved = jnp.linalg.pinv(C, hermitian=True) @ (C @ error.y)
        return {"distance_sq": jnp.sum(error.x**2) + jnp.sum(curved**2)}


def _check_dials(rows: int, entries: int, smoothness: float, mu: float) -> None:
    """Raise if the matrices are too large, or the curvatures contradict each other."""
    gigabytes = 8e-9 * rows * (entries + 1) ** 2
    if gigabytes > LARGEST:
        raise BadValue(
            f"`clients` x `samples` must be smaller: every row has its matrices, "
            f"{gigabytes:.0f} GB for {rows} rows."
        )
    check.positive("mu", mu)
    if check.real("smoothness", smoothness) <= mu:
        raise BadValue(f"`smoothness` must be above `mu` = {mu:g}, got {smoothness:g}.")


def _scale_to(smoothness, A, B, C, bend, turns):
    """A, B and bend, scaled so that the largest curvature is `smoothness`."""

    def curvature(scale: float) -> float:
        def norm(turn: float) -> float:
            top = np.concatenate([scale * (A + turn * bend), scale * B], axis=1)
            bottom = np.concatenate([scale * B.T, -C], axis=1)
            return float(np.linalg.norm(np.concatenate([top, bottom]), 2))

        return max(norm(turn) for turn in set(turns.tolist()))

    # Convex in the scale and below `smoothness` at zero, so there is one crossing.
    low, high = 0.0, 1.0
    while curvature(high) < smoothness:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if curvature(middle) < smoothness else (low, middle)
    return low * A, low * B, low * bend
