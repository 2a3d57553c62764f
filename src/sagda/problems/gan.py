"""Generative adversarial networks: x generates, y tells real from generated."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from sagda import check
from sagda.check import BadValue
from sagda.core import Point, PyTree
from sagda.data.federation import Federation, Table
from sagda.keys import Key, key_of, root_key
from sagda.models import Model
from sagda.models.networks import MLP, Generator
from sagda.problems.base import Problem
from sagda.problems.inner import norm_sq
from sagda.problems.judge import DigitClassifier, frechet
from sagda.problems.losses import softplus

PICTURES = 50
SHOWN = 2000  # generated rows that an evaluation looks at


@dataclass(frozen=True)
class GAN(Problem):
    """x: the generator's parameters, y: the discriminator's; D = sigmoid of its score.

    Per row a, with a fresh z ~ N(0, I):  log D(a) + log(1 - D(G(z)))

    Concave in no sense, so there is no Phi to measure; the columns are f, both squared
    gradient norms, and, where a judge for such rows is at hand, the Fréchet distance of
    generated from real rows in its features and the share of each class that it sees.

    Args:
        generator: G.
        discriminator: the score of D.
        latent: the entries of z.
        noise: standard deviation of noise added to all that the discriminator sees;
            None for none.
        l2: adds -l2/2 ||y||^2; None for none.
        judge: a classifier whose features the Fréchet distance is taken in.
    """

    measures_phi: ClassVar[bool] = False

    generator: Any
    discriminator: Model
    latent: int = 32
    noise: float | None = None
    l2: float | None = None
    judge: DigitClassifier | None = None

    def __post_init__(self) -> None:
        check.integer("latent", self.latent, low=1)
        for name in ("noise", "l2"):
            if (value := getattr(self, name)) is not None:
                check.real(name, value, low=0)

    @classmethod
    def of(
        cls,
        federation: Federation,
        *,
        latent: int = 32,
        width: int = 64,
        noise: float | None = None,
        l2: float | None = None,
    ) -> "GAN":
        """Perceptrons with one hidden layer on this data, and its judge, if any."""
        check_rows(federation)
        features = federation.data.features.shape[1]
        return cls(
            Generator(latent, features, width),
            MLP(features, width, 1),
            latent,
            noise,
            l2,
            DigitClassifier.of(features),
        )

    def check(self, federation: Federation) -> None:
        check_rows(federation)

    def init(self, key: Key) -> Point:
        return Point(
            self.generator.init(key_of(key, "generator")),
            self.discriminator.init(key_of(key, "discriminator")),
        )

    def generate(self, x: PyTree, key: Key, count: int) -> jax.Array:
        """[count, features], rows that look real if all went well."""
        z = jax.random.normal(key, (count, self.latent), jax.tree.leaves(x)[0].dtype)
        return self.generator.outputs(x, z)

    def loss(self, z: Point, batch: Any, key: Key) -> jax.Array:
        real = batch.features
        generated = self.generate(z.x, key_of(key, "latent"), len(real))

        def score(rows: jax.Array, name: str) -> jax.Array:
            if self.noise is not None:
                drawn = jax.random.normal(key_of(key, name), rows.shape, rows.dtype)
                rows = rows + self.noise * drawn
            return self.discriminator.apply(z.y, rows)

        # log D = -softplus(-score) and log(1 - D) = -softplus(score), safe at both ends
        losses = -softplus(-score(real, "real")) - softplus(score(generated, "fake"))
        return losses if self.l2 is None else losses - self.l2 / 2 * norm_sq(z.y)

    def pictures(self, x: PyTree) -> jax.Array | None:
        rows = self.generate(x, root_key(2), PICTURES)
        side = math.isqrt(rows.shape[1])
        return rows.reshape(-1, side, side) if side**2 == rows.shape[1] else None

    def metrics(self, z: Point, rows: Any, weight: jax.Array) -> dict[str, jax.Array]:
        if self.judge is None:
            return {}
        generated = self.generate(z.x, root_key(1), SHOWN)
        even = jnp.full(SHOWN, 1 / SHOWN, weight.dtype)
        there, here = self.judge.hidden(rows.features), self.judge.hidden(generated)
        kinds = self.judge.kinds(here)
        shares = {f"share_{k}": (kinds == k).mean() for k in range(self.judge.classes)}
        return {"frechet": frechet(there, weight, here, even)} | shares


def check_rows(federation: Federation) -> None:
    check.kind("federation", federation, Federation, "such as sagda.partition(table)")
    if not isinstance(federation.data, Table):
        raise BadValue("a GAN needs a federation of rows with features.")
