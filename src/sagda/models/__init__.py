"""Scoring models: the protocol `Model`, and the registry of models by name.

A model has two functions: `init(key)` makes its parameters, and
`apply(parameters, features)` gives one score per row. A new model is one class and one
line in `MODELS`. Networks are in `networks.py`, PyTorch modules in `torch.py`, and
models from a user's file in `user_code.py`.
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
    """What problems need of a model. It must be hashable: it shapes programs."""

    def init(self, key: Key) -> PyTree:
        """Initial parameters."""
        ...

    def apply(self, parameters: Any, features: jax.Array) -> jax.Array:
        """One score per row of features."""
        ...


MODELS: dict[str, Callable[[int], Any]] = {"linear": Linear, "mlp": MLP, "cnn": CNN}


@dataclass(frozen=True)
class Functions:
    """A model from a pair of functions, as in Flax and Haiku."""

    init: Any  # key -> parameters
    apply: Any  # (parameters, features) -> one score per row


def as_model(model: Any, features: int) -> Any:
    """The model a user gave: a `Model`, a pair (init, apply), or None for linear."""
    if model is None:
        return Linear(features)
    if isinstance(model, tuple) and len(model) == 2 and all(map(callable, model)):
        return Functions(*model)
    if hasattr(model, "init") and hasattr(model, "apply"):
        return model
    raise BadKind(
        "`model` must have `init` and `apply`, such as sagda.Equinox(make), "
        "sagda.Torch(module) or a pair (init, apply), got one of type "
        f"{type(model).__name__}."
    )
