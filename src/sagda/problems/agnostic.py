"""Agnostic federated learning: the worst mixture of clients (Mohri et al. 2019).

y has one entry per client, so the number of clients is part of the problem. It runs in
the simulator only: in a real federation, sites join and leave. Weights of rows instead
of clients are in `dro.py`.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sagda import check
from sagda.check import BadValue
from sagda.core import Point, PyTree
from sagda.data.federation import Facts, Federation
from sagda.keys import Key
from sagda.models import as_model
from sagda.problems.logistic import Logistic
from sagda.problems.losses import summed
from sagda.problems.sets import ConvexSet, Simplex


@dataclass(frozen=True)
class Agnostic(Logistic):
    """A classifier trained on the worst mixture of clients, so that it serves them all.

    x holds the parameters of the model h. y holds one weight for each of the M clients,
    and lies in the simplex.

    f(x, y) = sum_i y_i l_i(x) - penalty/2 ||y - 1/M||^2

    l_i is the mean logistic loss of client i. A row of client i with logistic loss l
    contributes the following value; the mean over the rows of client i is f_i:

    M y_i l - penalty/2 ||y - 1/M||^2

    The best y is the projection of 1/M + (l_1, ..., l_M)/penalty onto the simplex.
    Without a penalty, the worst client has all the weight. Phi(x) is then the loss of
    this client, and has kinks where two clients have the same loss.

    Args:
        model: the model h; see `sagda.models`.
        clients: M, the number of clients and of entries of y.
        penalty: pulls the weights towards 1/M. It is the modulus of concavity in y.
    """

    clients: int
    penalty: float = 1.0

    def __post_init__(self) -> None:
        check.integer("clients", self.clients, low=1)
        penalty = check.real("penalty", self.penalty, low=0)
        object.__setattr__(self, "penalty", penalty)

    @classmethod
    def of(
        cls,
        data: Federation | Facts,
        model: Any = None,
        *,
        penalty: float = 1.0,
    ) -> "Agnostic":
        """Return the problem for `data`, with a linear model by default.

        Args:
            data: the federation, or facts about it.
            model: the model h; see `sagda.models`.
            penalty: pulls the weights of the clients towards 1/M.
        """
        facts = Facts.of(data)
        return cls(as_model(model, facts.width), facts.clients, penalty)

    def check(self, federation: Federation) -> None:
        super().check(federation)
        if federation.clients != self.clients:
            raise BadValue(
                f"`clients` must be {federation.clients}, the number of clients in the "
                f"federation, got {self.clients}; use `Agnostic.of(federation)`."
            )

    def columns(self, federation: Federation) -> PyTree:
        return federation.data._replace(owner=federation.owner.astype(np.int32))

    def sets(self) -> tuple[ConvexSet | None, ConvexSet | None]:
        return None, Simplex()

    def concavity(self) -> float | None:
        return self.penalty if self.penalty > 0 else None

    def init(self, key: Key) -> Point:
        even = jnp.full((self.clients,), 1 / self.clients)
        return Point(self.model.init(key), even)

    def loss(self, z: Point, batch: Any, key: Key) -> jax.Array:
        M = self.clients
        V = self.penalty / 2 * ((z.y - 1 / M) ** 2).sum()
        return M * z.y[batch.owner] * self.logistic(z.x, batch) - V

    def inner_sums(self, x: PyTree, rows: Any, weight: jax.Array) -> jax.Array:
        """Return the mean loss l_i of every client, [clients]."""
        shares = self.clients * weight * self.logistic(x, rows)
        return summed(shares, rows.owner, self.clients)

    def y_from(self, sums: PyTree) -> jax.Array:
        penalised = self.penalty > 0
        pull = jnp.where(penalised, self.penalty, 1)
        mixture = Simplex().project(1 / self.clients + sums / pull)
        worst = jnp.arange(self.clients) == sums.argmax()
        return jnp.where(penalised, mixture, worst * jnp.ones_like(sums))

    def metrics(self, z: Point, rows: Any, weight: jax.Array) -> dict[str, jax.Array]:
        """Return the loss of the worst client, and the mean loss of the clients."""
        losses = self.inner_sums(z.x, rows, weight)
        return {"worst_loss": losses.max(), "mean_loss": losses.mean()}
