"""Scoring models h_x: parameters are a pytree, everything else is structure."""

import abc
import importlib.util
import math
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jax

from sagda import check
from sagda.algorithms.trace import have_room
from sagda.check import BadKind, BadValue
from sagda.core import PyTree
from sagda.keys import Key


class Model(Protocol):
    """What a problem asks of a model; hashable, since it shapes compiled programs."""

    def init(self, key: Key) -> PyTree: ...

    def apply(self, parameters: Any, features: jax.Array) -> jax.Array:
        """One score per row of features."""
        ...


@dataclass(frozen=True)
class Linear:
    """h_x(a) = <x, a>, without intercept, started at 0.1 N(0, I)."""

    features: int

    def init(self, key: Key) -> jax.Array:
        return 0.1 * jax.random.normal(key, (self.features,))

    def apply(self, parameters: Any, features: jax.Array) -> jax.Array:
        return features @ parameters


# Rows that go through a network together where all of them have no room.
BLOCK = 1024


def row_by_row(module: Any, rows: jax.Array) -> jax.Array:
    """`module` of every row: of all at once or, where its layers make too much of so
    many, of some at a time, also on the way back."""
    if len(rows) <= BLOCK or len(rows) <= have_room(module, rows[0]):
        return jax.vmap(module)(rows)
    again = jax.checkpoint(lambda row: module(row))
    return jax.lax.map(again, rows, batch_size=BLOCK)


class Network(abc.ABC):
    """An equinox module of one row as a model.

    Its inexact arrays are the parameters; the rest stays in the program. A module that
    returns shape `(1,)` or `()` will do.
    """

    @abc.abstractmethod
    def build(self, key: Key) -> Any:
        """The module, started by `key`."""

    frozen: tuple[str, ...] = ()  # what is not trained, such as ("layers.0",)

    def init(self, key: Key) -> PyTree:
        import equinox as eqx

        module = self.build(key)
        return eqx.filter(module, self.trained(module))

    def trained(self, module: Any) -> Any:
        """Which leaves of the module are parameters."""
        import equinox as eqx

        name = lambda path: jax.tree_util.keystr(path, simple=True, separator=".")
        under = lambda path, part: f"{name(path)}.".startswith(f"{part}.")
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(module)]
        for part in self.frozen:
            if not any(under(path, part) for path in paths):
                names = ", ".join(dict.fromkeys(name(path) for path in paths))
                raise BadValue(
                    f"`frozen` must name parts of the module, found no {part!r} among "
                    f"{names}."
                )
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: (
                eqx.is_inexact_array(leaf)
                and not any(under(path, part) for part in self.frozen)
            ),
            module,
        )

    def outputs(self, parameters: Any, features: jax.Array) -> jax.Array:
        """What the module returns, row by row."""
        import equinox as eqx

        # Arrays of parameters made here are not used, and so never computed.
        module = self.build(jax.random.key(0))
        _, fixed = eqx.partition(module, self.trained(module))
        return row_by_row(eqx.combine(parameters, fixed), features)

    def apply(self, parameters: Any, features: jax.Array) -> jax.Array:
        return self.outputs(parameters, features).reshape(len(features))


@dataclass(frozen=True)
class Equinox(Network):
    """Your own module: `make(key)` builds it.

    Args:
        make: a function of a key that builds the module.
        frozen: parts that stay as `make` builds them with key 0, whatever the seed,
            named as in ("layers.0",).
    """

    make: Any
    frozen: tuple[str, ...] = ()

    def build(self, key: Key) -> Any:
        return self.make(key)


@dataclass(frozen=True)
class Functions:
    """A model as a pair of functions, as Flax's and Haiku's are."""

    init: Any  # key -> parameters
    apply: Any  # (parameters, features) -> one score per row


def as_model(model: Any, features: int) -> Any:
    """What a user gives for a model: none, a pair (init, apply), or a `Model`."""
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


@dataclass(frozen=True)
class MLP(Network):
    """A perceptron with `depth` hidden layers of `width` units."""

    features: int
    width: int = 64
    depth: int = 2

    def __post_init__(self) -> None:
        for name in ("features", "width", "depth"):
            check.integer(name, getattr(self, name), low=1)

    def build(self, key: Key) -> Any:
        import equinox as eqx

        return eqx.nn.MLP(self.features, "scalar", self.width, self.depth, key=key)


@dataclass(frozen=True)
class Generator(Network):
    """A perceptron from noise to rows with entries in (0, 1), dark at the start."""

    latent: int
    features: int
    width: int = 64
    depth: int = 1

    def __post_init__(self) -> None:
        for name in ("latent", "features", "width", "depth"):
            check.integer(name, getattr(self, name), low=1)

    def build(self, key: Key) -> Any:
        import equinox as eqx

        return eqx.nn.MLP(
            self.latent,
            self.features,
            self.width,
            self.depth,
            final_activation=lambda a: jax.nn.sigmoid(a - 2),
            key=key,
        )


@dataclass(frozen=True)
class CNN(Network):
    """Two convolutions of stride 2 and a linear layer, for square grey pictures."""

    features: int
    channels: int = 8

    def __post_init__(self) -> None:
        check.integer("features", self.features, low=16)
        check.integer("channels", self.channels, low=1)
        if math.isqrt(self.features) ** 2 != self.features:
            raise BadValue(
                "`features` must be the pixels of a square picture for a CNN, got "
                f"{self.features}."
            )

    def build(self, key: Key) -> Any:
        import equinox as eqx

        side, wide = math.isqrt(self.features), self.channels
        rest = ((side + 1) // 2 + 1) // 2  # after two strides of 2
        first, second, last = jax.random.split(key, 3)
        layers = [
            eqx.nn.Lambda(lambda row: row.reshape(1, side, side)),
            eqx.nn.Conv2d(1, wide, 3, stride=2, padding=1, key=first),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Conv2d(wide, 2 * wide, 3, stride=2, padding=1, key=second),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Lambda(lambda maps: maps.reshape(-1)),
            eqx.nn.Linear(2 * wide * rest**2, "scalar", key=last),
        ]
        return eqx.nn.Sequential(layers)


MODELS = {"linear": Linear, "mlp": MLP, "cnn": CNN}
OWN: dict[str, Path] = {}  # files that may be run here, by NAME.py:FUNCTION


def is_own(name: str) -> bool:
    """Whether it names a function of the user's, as in nets.py:make."""
    return ":" in name


def allow(place: str, beside: Path | None = None) -> str:
    """Let this process run FILE.py:FUNCTION for a model; the name without folders.

    What a configuration or a server names is code. It runs only where someone who
    answers for this process has named its file.
    """
    file, _, function = place.rpartition(":")
    path = (beside or Path()) / file
    if path.suffix != ".py" or not function.isidentifier() or not path.is_file():
        raise BadValue(
            "`model` must be one of linear, mlp, cnn, or FILE.py:FUNCTION with a file "
            f"that exists, got {place!r}."
        )
    name = f"{path.name}:{function}"
    OWN[name] = path.resolve()
    return name


def check_model(name: str) -> None:
    if not is_own(name):
        check.choice("model", name, MODELS)
    elif name not in OWN:
        raise BadValue(
            f"`model` {name} is code that is run only if you name its file: give "
            f"--model FOLDER/{name}."
        )


def model_of(name: str, features: int) -> Any:
    """A model for so many features: one of MODELS, or what a user's function makes."""
    check_model(name)
    if not is_own(name):
        return MODELS[name](features)
    function = name.rpartition(":")[2]
    spec = importlib.util.spec_from_file_location("sagda_own_model", OWN[name])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make = getattr(module, function, None)
    if not callable(make):
        raise BadValue(f"`model`: {OWN[name]} must define the function {function}.")
    made = make(features)
    if hasattr(made, "init") and hasattr(made, "apply"):
        return made
    if "torch" in sys.modules and isinstance(made, sys.modules["torch"].nn.Module):
        from sagda.models.torch import Torch

        return Torch(partial(make, features))
    raise BadValue(
        f"`model`: {name} must make a torch.nn.Module, or a model with `init` and "
        f"`apply` such as sagda.Equinox(make), got {type(made).__name__}."
    )
