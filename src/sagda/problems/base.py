"""`Problem`: what makes f_i from rows of data, and Phi from the whole of it."""

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np

from sagda.check import BadKind
from sagda.core import Point, PyTree
from sagda.data.federation import Federation
from sagda.keys import Key, root_key
from sagda.problems.sets import ConvexSet
from sagda.pytree import register


def shape_of(problem: "Problem") -> Point:
    """The shapes of (x_0, y_0); computed only where PyTorch makes them."""
    if problem.uses_torch:
        shape = lambda a: jax.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype)
        return jax.tree.map(shape, problem.init(root_key(0)))
    return jax.eval_shape(lambda: problem.init(root_key(0)))


@dataclass(frozen=True)
class Problem(abc.ABC):
    """min over x, max over y, of the clients' mean of f_i(x, y).

    f_i is the mean of `loss` over client i's rows. A problem is a frozen dataclass:
    its floats and arrays are arguments of compiled programs, its whole numbers, names
    and functions shape them. Only `init` and `loss` must be written.
    """

    # Whether Phi(x) = max over y can be had; without it gradients of f are measured.
    measures_phi: ClassVar[bool] = True
    # Whether y is one number, f a quadratic in it and grad_x f a line: clients that are
    # elsewhere can then tell Phi by three values and two gradients.
    quadratic_in_y: ClassVar[bool] = False

    @property
    def uses_torch(self) -> bool:
        """Whether a model in it is of PyTorch, whose arrays no program compiles."""
        return any(getattr(value, "uses_torch", False) for value in vars(self).values())

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

    def has(self, hook: str) -> bool:
        """Whether this problem replaces the default of the method `hook`."""
        return getattr(type(self), hook) is not getattr(Problem, hook)

    @abc.abstractmethod
    def init(self, key: Key) -> Point:
        """(x_0, y_0)."""

    @abc.abstractmethod
    def loss(self, z: Point, batch: Any, key: Key) -> jax.Array:
        """One value per row of `batch`, whose mean is f_i; `key` for a loss with noise.

        `batch` has the columns of the federation's data; a `Table` has `position`
        among them, the number of each row within its client (or the slice of all of
        them): `sagda.entries(y, batch.position)` picks each row's entry of y.
        """

    def check(self, federation: Federation) -> None:
        """Raise a `ValueError` if this problem cannot run on that data."""
        return None

    def columns(self, federation: Federation) -> PyTree:
        """The data as the loss sees them; more columns than the federation's, if need
        be, such as `owner`."""
        return federation.data

    def sets(self) -> tuple[ConvexSet | None, ConvexSet | None]:
        """The sets that x and y are held in; None: every point is feasible."""
        return None, None

    def project(self, z: Point) -> Point:
        """The feasible point nearest to `z`."""
        nearest = lambda own, tree: tree if own is None else own.project(tree)
        x_in, y_in = self.sets()
        return Point(nearest(x_in, z.x), nearest(y_in, z.y))

    def best_y(self, x: PyTree, rows: Any, weight: jax.Array) -> PyTree | None:
        """argmax over y of f(x, y) in closed form, or None to have it solved.

        `weight @ values` is the mean over clients of client means of per-row values.
        """
        sums = self.inner_sums(x, rows, weight)
        return None if sums is None else self.y_from(sums)

    def treat(self, gradient: Point) -> Point:
        """What a client does to a stochastic gradient before it uses it: nothing."""
        return gradient

    def concavity(self) -> float | None:
        """mu, where it is known: the modulus or PL constant of f in y."""
        return None

    def inner_sums(self, x: PyTree, rows: Any, weight: jax.Array) -> PyTree | None:
        """What decides argmax over y: weighted sums, which clients can add up."""
        return None

    def y_from(self, sums: PyTree) -> PyTree:
        """argmax over y of f(x, y), from `inner_sums` at x."""
        raise NotImplementedError

    def score(self, x: PyTree, rows: Any) -> jax.Array | None:
        """One score per row, higher for the positive class: what AUC is taken of."""
        return None

    def metrics(self, z: Point, rows: Any, weight: jax.Array) -> dict[str, jax.Array]:
        """More columns for the history."""
        return {}

    def pictures(self, x: PyTree) -> jax.Array | None:
        """[count, height, width] in [0, 1], to look at, where x makes pictures."""
        return None
