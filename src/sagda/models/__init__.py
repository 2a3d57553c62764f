"""Scoring models: the protocol `Model`, and the registry of models by name.

A model has two functions. `init(key)` returns initial parameters, and
`apply(parameters, features)` returns one score per row. To add a model, write one class
and one line in `MODELS`. Losses are not here: problems define them. Networks are in
`networks.py`, PyTorch modules in `torch.py`, and custom models in `user_code.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from sagda.check import BadKind
from sagda.core import PyTree
from sagda.keys import Key
from sagda.models.networks import CNN, MLP, Linear


class Model(Protocol):
    """A scoring model. It must be hashable, because compiled programs depend on it."""

    def init(self, key: Key) -> PyTree:
        """Return initial parameters."""
        ...

    def apply(self, parameters: Any, features: jax.Array) -> jax.Array:
        """Return one score per row of `features`."""
        ...


MODELS: dict[str, Callable[[int], Any]] = {"linear": Linear, "mlp": MLP, "cnn": CNN}


@dataclass(frozen=True)
class Functions:
    """A model made of two functions, as in Flax and Haiku."""

    init: Any  # init(key) returns parameters
    apply: Any  # apply(parameters, features) returns one score per row


def as_model(model: Any, features: int) -> Any:
    """Return `model` as a `Model`: a pair (init, apply) is wrapped, None means linear.

    Args:
        model: a `Model`, a pair of functions (init, apply), or None.
        features: the number of features, for the linear model.
    """
    if model is None:
        return Linear(features)
    if isinstance(model, tuple) and len(model) == 2 and all(map(callable, model)):
        return Functions(*model)
    if hasattr(model, "init") and hasattr(model, "apply"):
        return model
    raise BadKind(
        "`model` must have `init` and `apply`, such as sagda.Equinox(make), "
        "sagda.Torch(module) or a pair (init, apply), got an object of type "
        f"{type(model).__name__}."
    )
