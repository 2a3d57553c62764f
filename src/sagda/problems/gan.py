"""Generative adversarial networks: x generates rows, y tells them from real rows.

A stored classifier of digits measures the quality of the generated rows: the Fréchet
distance to real rows, and the share of each class. `scripts/train_judges.py` trains the
classifier. The networks are in `sagda.models.networks`.
"""

import math
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from sagda import check
from sagda.core import Point, PyTree
from sagda.data.federation import Federation, check_rows
from sagda.keys import Key, key_of, root_key
from sagda.models import Model
from sagda.models.networks import MLP, Generator
from sagda.problems.base import Problem
from sagda.problems.inner import norm_sq
from sagda.problems.losses import softplus
from sagda.pytree import register

PICTURES = 50
GENERATED = 2000  # rows that are generated for an evaluation
# The file of the stored classifier, by the number of features of a row.
FILES = {64: "judge-digits.npz", 784: "judge-mnist.npz"}


@register
@dataclass(frozen=True)
class DigitClassifier:
    """A trained classifier of digits: a perceptron with one hidden layer."""

    first: Any  # [d, units]
    first_bias: Any  # [units]
    second: Any  # [units, classes]
    second_bias: Any  # [classes]

    @classmethod
    def of(cls, features: int) -> "DigitClassifier | None":
        """Return the stored classifier for rows with `features` entries, or None."""
        if features not in FILES:
            return None
        path = resources.files("sagda.data").joinpath("embedded", FILES[features])
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            names = [field.name for field in fields(cls)]
            return cls(**{name: stored[name].astype(np.float32) for name in names})

    def hidden(self, rows: jax.Array) -> jax.Array:
        """Return the values of the hidden units for each row, [rows, units]."""
        return jax.nn.relu(rows @ self.first + self.first_bias[None])

    def kinds(self, hidden: jax.Array) -> jax.Array:
        """Return the class of each row, [rows], from the values of its hidden units."""
        return jnp.argmax(hidden @ self.second + self.second_bias[None], axis=1)


@dataclass(frozen=True)
class GAN(Problem):
    """A generator of rows, trained so that a second network takes them for real rows.

    x holds the parameters of the generator G. y holds those of the discriminator, whose
    score goes through a sigmoid to give D, the probability that a row is real.

    Loss of a real row a, with a new noise vector z ~ N(0, I) for every row:

    log D(a) + log(1 - D(G(z)))

    f is not concave in y, so Phi is not measured. The history has f and the squared
    norms of its gradients in x and in y. Rows with 64 or 784 entries add two metrics:
    the Fréchet distance between generated and real rows, and the share of each class
    among the generated rows.

    Args:
        generator: the network G.
        discriminator: the network whose sigmoid is D.
        latent: the number of entries of the noise vector z.
        noise: standard deviation of noise that is added to the rows that D receives;
            None for no noise.
        l2: subtracts l2/2 ||y||^2 from f; None for no such term.
        judge: the classifier whose hidden units define the Fréchet distance, or None.
    """

    measures_phi: ClassVar[bool] = False
    labelled: ClassVar[bool] = False

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
        data: Federation,
        *,
        latent: int = 32,
        width: int = 64,
        noise: float | None = None,
        l2: float | None = None,
    ) -> "GAN":
        """Return the problem for `data`, with one hidden layer in each network.

        Args:
            data: the federation. Its labels are not used.
            latent: the number of entries of the noise vector z.
            width: the number of hidden units of each network.
            noise: standard deviation of noise that is added to the rows that the
                discriminator receives.
            l2: subtracts l2/2 ||y||^2 from f.
        """
        check_rows(data)
        return cls(
            generator=Generator(latent, data.width, width),
            discriminator=MLP(data.width, width, depth=1),
            latent=latent,
            noise=noise,
            l2=l2,
            judge=DigitClassifier.of(data.width),
        )

    def check(self, federation: Federation) -> None:
        check_rows(federation)

    def init(self, key: Key) -> Point:
        return Point(
            self.generator.init(key_of(key, "generator")),
            self.discriminator.init(key_of(key, "discriminator")),
        )

    def generate(self, x: PyTree, key: Key, count: int) -> jax.Array:
        """Return `count` generated rows, [count, features]."""
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

        # log D = -softplus(-score) and log(1 - D) = -softplus(score) cannot overflow.
        losses = -softplus(-score(real, "real")) - softplus(score(generated, "fake"))
        return losses if self.l2 is None else losses - self.l2 / 2 * norm_sq(z.y)

    def pictures(self, x: PyTree) -> jax.Array | None:
        rows = self.generate(x, root_key(2), PICTURES)
        side = math.isqrt(rows.shape[1])
        return rows.reshape(-1, side, side) if side**2 == rows.shape[1] else None

    def metrics(self, z: Point, rows: Any, weight: jax.Array) -> dict[str, jax.Array]:
        if self.judge is None:
            return {}
        generated = self.generate(z.x, root_key(1), GENERATED)
        even = jnp.full(GENERATED, 1 / GENERATED, weight.dtype)
        real, fake = self.judge.hidden(rows.features), self.judge.hidden(generated)
        kinds, classes = self.judge.kinds(fake), len(self.judge.second_bias)
        shares = {f"share_{k}": (kinds == k).mean() for k in range(classes)}
        return {"frechet": frechet(real, weight, fake, even)} | shares


def frechet(a: jax.Array, p: jax.Array, b: jax.Array, q: jax.Array) -> jax.Array:
    """Return the squared Fréchet distance between two samples of rows.

    It is the distance of normal distributions with the means and covariances (A and B)
    of the samples: ||mean_a - mean_b||^2 + tr(A + B - 2 (A^1/2 B A^1/2)^1/2).

    Args:
        a: rows of the first sample.
        p: weights of these rows, which add up to 1.
        b: rows of the second sample.
        q: weights of these rows, which add up to 1.
    """

    def moments(rows: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean = weight @ rows
        centred = rows - mean[None]
        return mean, (weight[:, None] * centred).T @ centred

    (mean_a, A), (mean_b, B) = moments(a, p), moments(b, q)
    values, vectors = jnp.linalg.eigh(A)
    root = (vectors * jnp.sqrt(jnp.maximum(values, 0))[None]) @ vectors.T
    middle = jnp.linalg.eigvalsh(root @ B @ root)
    cross = jnp.sum(jnp.sqrt(jnp.maximum(middle, 0)))
    return jnp.sum((mean_a - mean_b) ** 2) + jnp.trace(A) + jnp.trace(B) - 2 * cross
