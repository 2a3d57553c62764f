"""`DigitClassifier`: a network whose features tell generated rows from real ones."""

from dataclasses import dataclass
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sagda.pytree import register

# By the entries of a row, the judge that was trained on such rows.
FILES = {64: "judge-digits.npz", 784: "judge-mnist.npz"}


@register
@dataclass(frozen=True)
class DigitClassifier:
    """A perceptron with one hidden layer, whose units are the features.

    `scripts/train_judges.py` trains and stores it, with its accuracy on test rows.
    """

    first: Any  # [d, units]
    first_bias: Any  # [units]
    second: Any  # [units, classes]
    second_bias: Any  # [classes]

    @classmethod
    def of(cls, features: int) -> "DigitClassifier | None":
        """The stored judge for rows of that many entries."""
        if features not in FILES:
            return None
        place = resources.files("sagda.data").joinpath("embedded", FILES[features])
        with place.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            names = "first", "first_bias", "second", "second_bias"
            return cls(*(stored[name].astype(np.float32) for name in names))

    @property
    def classes(self) -> int:
        return self.second.shape[1]

    def hidden(self, rows: jax.Array) -> jax.Array:
        """[rows, units]."""
        return jax.nn.relu(rows @ self.first + self.first_bias[None])

    def kinds(self, hidden: jax.Array) -> jax.Array:
        """[rows], the class that the judge sees in each."""
        return jnp.argmax(hidden @ self.second + self.second_bias[None], axis=1)


def frechet(a: jax.Array, p: jax.Array, b: jax.Array, q: jax.Array) -> jax.Array:
    """The squared Fréchet distance of normal laws fitted to rows with weights.

    ||mean_a - mean_b||^2 + tr(A + B - 2 (A^1/2 B A^1/2)^1/2), A and B the covariances.
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
