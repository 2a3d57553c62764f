"""`Method`: an algorithm with checked hyperparameters, made by the `@method` decorator.

Write a function that takes hyperparameters and returns an `Algorithm`, and decorate it
with `@method`. Calling it checks the hyperparameters and returns a `Method`. The
`Algorithm` is built later, inside the compiled program. The algorithms of the library
are listed in `sagda.algorithms.ALGORITHMS`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args, get_type_hints

import jax
import numpy as np
from jax.core import Tracer

from sagda import check
from sagda.check import BadValue
from sagda.core import Algorithm, Rates
from sagda.pytree import split


@jax.tree_util.register_pytree_with_keys_class
class Method:
    """An algorithm with its hyperparameters.

    Rates and other real numbers are arguments of the compiled program. So a run with
    different rates needs no new compilation.
    """

    def __init__(self, factory: Callable[..., Algorithm], arguments: Mapping[str, Any]):
        self.factory = factory
        self.arguments = dict(arguments)
        # `dynamic` are names of arguments of the compiled program, see `pytree.split`.
        self.dynamic, self.fixed = split(self.arguments)

    @property
    def name(self) -> str:
        """The name of the algorithm as users write it, such as `sagda-i`."""
        return self.factory.__name__.replace("_", "-")

    def build(self) -> Algorithm:
        """Return the `Algorithm` with these hyperparameters."""
        return self.factory(**self.arguments)

    def tree_flatten_with_keys(self):
        key = jax.tree_util.DictKey
        leaves = [(key(name), self.arguments[name]) for name in self.dynamic]
        return leaves, (self.factory, self.dynamic, self.fixed)

    @classmethod
    def tree_unflatten(cls, structure, leaves):
        self = object.__new__(cls)
        self.factory, self.dynamic, self.fixed = structure
        self.arguments = dict(zip(self.dynamic, leaves, strict=True))
        self.arguments |= dict(self.fixed)
        return self

    def __repr__(self) -> str:
        given = ", ".join(f"{k}={v!r}" for k, v in self.arguments.items())
        return f"{self.factory.__name__}({given})"


def stack(methods: Sequence[Method], dtype: Any) -> Method:
    """Stack methods that differ only in real numbers into one method, along axis 0."""
    if len({jax.tree.structure(method) for method in methods}) > 1:
        raise BadValue(
            "methods in one program must differ in rates and other real numbers only, "
            f"got {', '.join(dict.fromkeys(map(repr, methods)))}."
        )
    return jax.tree.map(lambda *numbers: np.array(numbers, dtype), *methods)


def rates(name: str, value: Any) -> Rates:
    """Return `value` as checked `Rates`. It may be `Rates`, a pair or one number."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    if isinstance(value, Rates):
        value = value.x, value.y
    elif not isinstance(value, tuple | list):
        value = value, value
    if len(value) != 2:
        raise BadValue(
            f"`{name}` must be one rate or a pair (x, y), got {len(value)} values."
        )
    x, y = value

    def checked(half: str, eta: Any) -> Any:
        # Traced rates (inside a compiled program) have no value to check.
        if isinstance(eta, Tracer):
            return eta
        if callable(eta):
            first = np.asarray(eta(0)).item()
            check.positive(f"{name} ({half}) in round 0", first)
            return eta
        eta = eta.item() if hasattr(eta, "item") else eta
        return check.positive(f"{name} ({half})", eta)

    return Rates(checked("x", x), checked("y", y))


def method(factory: Callable[..., Algorithm]) -> Callable[..., Method]:
    """Decorate a function that takes hyperparameters and returns an `Algorithm`.

    The decorated function checks its arguments and returns a `Method`. The annotation
    of each hyperparameter decides how its value is checked:

    - `Rates`: one number or a pair of numbers, each positive and finite
    - `int`: at least 1
    - `float`: finite
    - `Literal`: one of the listed values
    """
    hints = get_type_hints(factory)
    signature = inspect.signature(factory)

    def checked(name: str, value: Any) -> Any:
        hint = hints.get(name)
        if hint is Rates:
            return rates(name, value)
        if hint is int:
            return check.integer(name, value, low=1)
        if hint is float:
            traced = isinstance(value, Tracer)
            return value if traced else check.real(name, value)
        if get_args(hint) and all(isinstance(a, str) for a in get_args(hint)):
            return check.choice(name, value, get_args(hint))
        return value

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Method:
        for name in kwargs:
            check.choice(f"parameter of {factory.__name__}", name, signature.parameters)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = {name: checked(name, v) for name, v in bound.arguments.items()}
        return Method(factory, arguments)

    return make
