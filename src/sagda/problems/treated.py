"""`Treated`: any problem, with weight decay and clipped stochastic gradients.

`Treated` wraps a problem and passes every other hook on to it. Learning rates and their
schedules are not here: they belong to the algorithms, see `core.Rates`.
"""

from dataclasses import dataclass
from typing import Any

import jax

from sagda import check
from sagda.core import Point, PyTree, where
from sagda.keys import Key
from sagda.problems.base import Problem
from sagda.problems.inner import norm_sq


@dataclass(frozen=True)
class Treated(Problem):
    """A problem with weight decay added to f, and stochastic gradients of bounded norm.

    Weight decay adds weight_decay/2 ||x||^2 to the objective, and so to Phi. Clipping
    does not change the objective. It changes the gradients that clients use: the mean
    of clipped gradients is not the gradient of f.

    Args:
        problem: any problem.
        weight_decay: the factor of the term, at least zero.
        clip: the largest Euclidean norm of a stochastic gradient, above zero. The parts
            for x and y are clipped separately. None for no clipping.

    Examples:
        >>> import sagda
        >>> problem, clients = sagda.Quadratic.make(clients=4)
        >>> steady = Treated(problem, weight_decay=0.01, clip=1.0)
        >>> run = sagda.simulate(sagda.fsgda(), steady, clients, rounds=2)
        >>> run.round
        2
    """

    problem: Problem
    weight_decay: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        check.kind("problem", self.problem, Problem, "such as sagda.AUC.of(federation)")
        decay = check.real("weight_decay", self.weight_decay, low=0)
        object.__setattr__(self, "weight_decay", decay)
        if self.clip is not None:
            object.__setattr__(self, "clip", check.positive("clip", self.clip))

    def loss(self, z: Point, batch: Any, key: Key) -> jax.Array:
        decay = self.weight_decay / 2 * norm_sq(z.x)
        return self.problem.loss(z, batch, key) + decay

    def treat(self, gradient: Point) -> Point:
        g = self.problem.treat(gradient)
        if self.clip is None:
            return g
        return Point(shortened(g.x, self.clip), shortened(g.y, self.clip))

    # All other hooks are those of the wrapped problem.

    def __getattribute__(self, name: str) -> Any:
        # This also covers hooks that are added to `Problem` later.
        if name in PASSED_ON:
            return getattr(self.problem, name)
        return super().__getattribute__(name)

    def has(self, name: str) -> bool:
        return name == "treat" or self.problem.has(name)

    def init(self, key: Key) -> Point:
        return self.problem.init(key)


# The hooks that `Treated` does not define itself: `best_y`, `sets`, `score` and so on.
PASSED_ON = frozenset(
    name for name in vars(Problem).keys() - vars(Treated) if not name.startswith("_")
)


def shortened(g: PyTree, longest: Any) -> PyTree:
    """Return g, scaled down to norm `longest` if its norm is larger."""
    length = norm_sq(g) ** 0.5
    share = where(length > longest, longest / length, length * 0 + 1)
    return jax.tree.map(lambda a: share * a, g)
