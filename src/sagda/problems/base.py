"""`Problem`: the base class of all min-max problems, with a loss for each row of data.

A problem must define `init` and `loss`. All other methods are optional hooks with a
default. `problem.has("inner_sums")` tells whether a problem defines a hook. Values that
are computed from a problem, such as Phi, are in `metrics.py`. To write a problem in a
script, start with `minmax.py`.
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

# Keywords of `make` that are fields of every configuration, and so not of `--set`.
SPLIT = ("clients", "samples", "seed")


def shape_of(problem: "Problem") -> Point:
    """Return the shapes and types of the arrays in (x_0, y_0).

    The starting values are computed only for PyTorch, which JAX cannot trace.
    """
    if problem.uses_torch:
        shape = lambda a: jax.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype)
        return jax.tree.map(shape, problem.init(root_key(0)))
    return jax.eval_shape(lambda: problem.init(root_key(0)))


@dataclass(frozen=True)
class Problem(abc.ABC):
    """A min-max problem: min over x, max over y, of f(x, y), the mean of all f_i(x, y).

    f_i is the mean of `loss` over the rows of client i. A subclass must be a frozen
    dataclass and define `init` and `loss`. Fields that are floats or arrays become
    arguments of compiled programs. A new value of any other field compiles new ones.

    A problem in `PROBLEMS` also defines the classmethod `of`, or `make` if it generates
    its own data. The keywords of `of` or `make` are the options of `--set`. If `of` has
    a parameter `model`, then `--model` works. If the problem defines `score`, then
    `sagda predict` works.
    """

    # Whether Phi(x), the maximum of f(x, y) over y, can be measured. If not, the
    # history has the gradients of f in x and in y instead.
    measures_phi: ClassVar[bool] = True
    # Whether y is one number, f is quadratic in y and grad_x f is linear in y. Three
    # values and two gradients then determine Phi, so a site sends them in one message.
    quadratic_in_y: ClassVar[bool] = False
    # Whether the loss needs labels -1 and +1. If not, rows keep their original labels.
    labelled: ClassVar[bool] = True
    # Whether real sites can run it. Then `of` takes `Facts`, and the loss of a row uses
    # only columns that its site has. A site does not have `owner`, for example.
    federates: ClassVar[bool] = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # A compiled program receives the fields of a dataclass only. It would lose
        # attributes that a handwritten __init__ sets.
        if "__init__" in vars(cls) and "__dataclass_fields__" not in vars(cls):
            raise BadKind(
                f"{cls.__name__} must be a dataclass: write @dataclass(frozen=True) "
                "above the class, and fields instead of __init__."
            )
        return super().__new__(cls)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register(cls)

    # Construction, and what the command may use.

    @classmethod
    def of(cls, *args: Any, **options: Any) -> Any:
        """Return the problem for a federation, or for `Facts` about one.

        A subclass defines it as `of(cls, data, model=None, *, penalty=1.0)`, with its
        options as keywords. Leave out `model` if x contains no scoring model.
        """
        raise BadKind(
            f"{cls.__name__} cannot be built from a federation, because it has no "
            f"class method `of`; call {cls.__name__}(...) with its fields."
        )

    @classmethod
    def make(cls, *args: Any, **options: Any) -> Any:
        """Return a problem and its federation, if the problem generates its data."""
        raise BadKind(
            f"{cls.__name__} does not generate data; call "
            f"{cls.__name__}.of(federation)."
        )

    @classmethod
    def defines(cls, name: str) -> bool:
        """Return whether this class, or a parent below `Problem`, defines `name`."""
        method = inspect.getattr_static(cls, name)
        return method is not inspect.getattr_static(Problem, name)

    def has(self, name: str) -> bool:
        """Return whether this problem defines the hook `name`, not only the default."""
        return self.defines(name)

    @classmethod
    def options(cls) -> list[str]:
        """Return the names that `--set` takes: the keywords of `make` or of `of`."""
        constructor = cls.make if cls.defines("make") else cls.of
        return [
            p.name
            for p in inspect.signature(constructor).parameters.values()
            if p.kind is p.KEYWORD_ONLY and p.name not in SPLIT
        ]

    @classmethod
    def takes_model(cls) -> bool:
        """Return whether `--model` can choose the scoring model."""
        return "model" in inspect.signature(cls.of).parameters

    @classmethod
    def resolved(cls, options: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
        """Return `options` for `of`: names of columns become numbers of features.

        The default returns `options` unchanged.

        Args:
            options: the options in a configuration.
            recipe: the names of the features, and how they were scaled.
        """
        return dict(options)

    # The objective function.

    @abc.abstractmethod
    def init(self, key: Key) -> Point:
        """Return the starting point (x_0, y_0)."""

    @abc.abstractmethod
    def loss(self, z: Point, batch: Any, key: Key) -> jax.Array:
        """Return one loss per row of `batch`. The mean over a client's rows is f_i.

        Args:
            z: the point (x, y).
            batch: rows, with the columns that `columns` returns. The column `position`
                of a `Table` has the number of each row within its client. It is a slice
                if the batch holds all rows of one client. For a y with one entry per
                row, `sagda.entries(y, batch.position)` returns these entries.
            key: the random key for a noisy loss.
        """

    def check(self, federation: Federation) -> None:
        """Raise a `ValueError` if this problem cannot run on the federation."""
        return None

    def columns(self, federation: Federation) -> PyTree:
        """Return the columns that `loss` receives. A subclass may add `owner`."""
        return federation.data

    def sets(self) -> tuple[ConvexSet | None, ConvexSet | None]:
        """Return the sets that x and y must lie in; None for no constraint."""
        return None, None

    def project(self, z: Point) -> Point:
        """Return the feasible point nearest to `z`."""
        nearest = lambda feasible, tree: (
            tree if feasible is None else feasible.project(tree)
        )
        x_in, y_in = self.sets()
        return Point(nearest(x_in, z.x), nearest(y_in, z.y))

    def treat(self, gradient: Point) -> Point:
        """Return the stochastic gradient that a client uses in place of `gradient`."""
        return gradient

    @property
    def uses_torch(self) -> bool:
        """Whether the problem contains a PyTorch model, which JAX cannot compile."""
        return any(getattr(value, "uses_torch", False) for value in vars(self).values())

    @property
    def most_rows(self) -> int | None:
        """The largest number of rows that a client may have; None for no limit."""
        return None

    # The maximum over y.

    def best_y(self, x: PyTree, rows: Any, weight: jax.Array) -> PyTree | None:
        """Return the y that maximises f(x, y); None without a closed form.

        Args:
            x: the parameters.
            rows: the rows of all clients.
            weight: one weight per row. For values per row, `weight @ values` is the
                mean over clients of the means of their rows.
        """
        sums = self.inner_sums(x, rows, weight)
        return None if sums is None else self.y_from(sums)

    def inner_sums(self, x: PyTree, rows: Any, weight: jax.Array) -> PyTree | None:
        """Return weighted sums over rows that determine the best y.

        Sites compute these sums on their own rows, and the server adds them.
        """
        return None

    def y_from(self, sums: PyTree) -> PyTree:
        """Return the y that maximises f(x, y), computed from `inner_sums` at x."""
        raise NotImplementedError

    def concavity(self) -> float | None:
        """Return mu, the modulus of concavity or PL constant of f in y, if known."""
        return None

    # Values for the history and the report.

    def score(self, x: PyTree, rows: Any) -> jax.Array | None:
        """Return one score per row, higher for the positive class. It gives the AUC."""
        return None

    def metrics(self, z: Point, rows: Any, weight: jax.Array) -> dict[str, jax.Array]:
        """Return additional columns of the history, by name."""
        return {}

    def pictures(self, x: PyTree) -> jax.Array | None:
        """Return an array of pictures for the report, or None.

        Its shape is [count, height, width], and its values are between 0 and 1.
        """
        return None
