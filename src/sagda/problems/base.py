"""`Problem`: turns rows of data into f_i, and knows what is special about f.

A problem writes `init` and `loss`. All other methods are hooks with a default. The
library asks `problem.has("inner_sums")` before it relies on a hook. The measures that
follow from a problem, such as Phi, are in `metrics.py`.
"""

import abc
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np

from sagda.check import BadKind
from sagda.core import Point, PyTree
from sagda.data.federation import Federation
from sagda.data.recipe import Recipe
from sagda.keys import Key, root_key
from sagda.problems.sets import ConvexSet
from sagda.pytree import register

SPLIT = ("clients", "samples", "seed")  # keywords that every configuration has itself


def shape_of(problem: "Problem") -> Point:
    """The shapes of (x_0, y_0), without computing them unless PyTorch makes them."""
    if problem.uses_torch:
        shape = lambda a: jax.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype)
        return jax.tree.map(shape, problem.init(root_key(0)))
    return jax.eval_shape(lambda: problem.init(root_key(0)))


@dataclass(frozen=True)
class Problem(abc.ABC):
    """min over x, max over y, of the clients' mean of f_i(x, y).

    f_i is the mean of `loss` over client i's rows. A problem is a frozen dataclass.
    Its floats and arrays are arguments of compiled programs; its integers, names and
    functions shape them. Only `init` and `loss` must be written.

    A problem in `PROBLEMS` also writes the classmethod `of`, or `make` if it draws its
    own data. Their keywords are what `--set` takes. If `of` has a parameter `model`,
    then `--model` works. If the problem has a `score`, then `sagda predict` works.
    """

    # Whether Phi(x) = max over y can be measured; if not, gradients of f are.
    measures_phi: ClassVar[bool] = True
    # Whether y is one number, f is quadratic in it and grad_x f is linear in it. Three
    # values and two gradients then give Phi, so a site can send them in one answer.
    quadratic_in_y: ClassVar[bool] = False
    # Whether the loss needs labels of -1 and +1; if not, rows keep their classes.
    labelled: ClassVar[bool] = True
    # Whether real sites can run it: `of` takes `Facts`, and the loss of a row needs
    # nothing that its site does not know, such as `owner`.
    federates: ClassVar[bool] = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # Without the decorator, fields set in __init__ would be lost on the way into
        # a compiled program.
        if "__init__" in vars(cls) and "__dataclass_fields__" not in vars(cls):
            raise BadKind(
                f"{cls.__name__} must be a dataclass: write @dataclass(frozen=True) "
                "above it, and fields in place of __init__."
            )
        return super().__new__(cls)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register(cls)

    # How a problem is built, and what its class can do.

    @classmethod
    def of(cls, *args: Any, **options: Any) -> Any:
        """The problem for a federation, or for `Facts` about one.

        Write it as `of(cls, data, model=None, *, penalty=1.0)`. The problem's own
        options are keywords. Leave out `model` if x contains no scoring model.
        """
        raise BadKind(
            f"{cls.__name__} cannot be built from a federation: it has no `of`. "
            f"Call {cls.__name__}(...) with its fields."
        )

    @classmethod
    def make(cls, *args: Any, **options: Any) -> Any:
        """A problem together with its federation, for a problem that draws its data."""
        raise BadKind(
            f"{cls.__name__} does not make data; call {cls.__name__}.of(federation)."
        )

    @classmethod
    def defines(cls, name: str) -> bool:
        """Whether the class, or one between it and `Problem`, writes this method."""
        method = inspect.getattr_static(cls, name)
        return method is not inspect.getattr_static(Problem, name)

    def has(self, name: str) -> bool:
        """Whether this problem has the hook `name`, in place of the default."""
        return self.defines(name)

    @classmethod
    def options(cls) -> list[str]:
        """The names that `--set` takes: the keywords of `of`, or those of `make`."""
        constructor = cls.make if cls.defines("make") else cls.of
        return [
            p.name
            for p in inspect.signature(constructor).parameters.values()
            if p.kind is p.KEYWORD_ONLY and p.name not in SPLIT
        ]

    @classmethod
    def takes_model(cls) -> bool:
        """Whether `--model` chooses what scores a row."""
        return "model" in inspect.signature(cls.of).parameters

    @classmethod
    def resolved(cls, options: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
        """Options as `of` takes them, if a configuration names columns of a file.

        Args:
            options: what a configuration sets.
            recipe: the names of the features, and how they were scaled.
        """
        return dict(options)

    # The function.

    @abc.abstractmethod
    def init(self, key: Key) -> Point:
        """(x_0, y_0)."""

    @abc.abstractmethod
    def loss(self, z: Point, batch: Any, key: Key) -> jax.Array:
        """One value per row of `batch`, whose mean is f_i; `key` is for a noisy loss.

        `batch` has the columns of the federation's data. For a `Table`, `position` is
        one of them: the number of each row within its client, or the slice of all of
        them. `sagda.entries(y, batch.position)` picks each row's entry of y.
        """

    def check(self, federation: Federation) -> None:
        """Raise a `ValueError` if this problem cannot run on that data."""
        return None

    def columns(self, federation: Federation) -> PyTree:
        """The columns that the loss gets; a problem may add some, such as `owner`."""
        return federation.data

    def sets(self) -> tuple[ConvexSet | None, ConvexSet | None]:
        """The sets that x and y must lie in; None if every point is feasible."""
        return None, None

    def project(self, z: Point) -> Point:
        """The feasible point nearest to `z`."""
        nearest = lambda feasible, tree: (
            tree if feasible is None else feasible.project(tree)
        )
        x_in, y_in = self.sets()
        return Point(nearest(x_in, z.x), nearest(y_in, z.y))

    def treat(self, gradient: Point) -> Point:
        """A stochastic gradient as a client uses it; unchanged by default."""
        return gradient

    @property
    def uses_torch(self) -> bool:
        """Whether it contains a PyTorch model, which JAX cannot compile."""
        return any(getattr(value, "uses_torch", False) for value in vars(self).values())

    @property
    def most_rows(self) -> int | None:
        """The most rows that a client may have; None for any number."""
        return None

    # The maximum over y.

    def best_y(self, x: PyTree, rows: Any, weight: jax.Array) -> PyTree | None:
        """argmax over y of f(x, y) in closed form; None if it must be solved for.

        `weight @ values` is the mean over clients of client means of per-row values.
        """
        sums = self.inner_sums(x, rows, weight)
        return None if sums is None else self.y_from(sums)

    def inner_sums(self, x: PyTree, rows: Any, weight: jax.Array) -> PyTree | None:
        """Weighted sums over rows that determine y*; clients can add them up."""
        return None

    def y_from(self, sums: PyTree) -> PyTree:
        """argmax over y of f(x, y), from `inner_sums` at x."""
        raise NotImplementedError

    def concavity(self) -> float | None:
        """mu, if it is known: the modulus of concavity, or PL constant, of f in y."""
        return None

    # What is measured.

    def score(self, x: PyTree, rows: Any) -> jax.Array | None:
        """One score per row, higher for the positive class; AUC is measured on it."""
        return None

    def metrics(self, z: Point, rows: Any, weight: jax.Array) -> dict[str, jax.Array]:
        """Additional columns of the history."""
        return {}

    def pictures(self, x: PyTree) -> jax.Array | None:
        """Pictures for the report, [count, height, width] in [0, 1], if x makes any."""
        return None
