"""What a phase costs, measured: bytes from its shapes, gradients from its calls."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sagda import check
from sagda.algorithms.trace import programs_in, repeats, trace_round
from sagda.check import BadValue
from sagda.core import Algorithm, Objective, Point, PyTree
from sagda.keys import Key


class PhaseCost(NamedTuple):
    """One client's part in one phase."""

    name: str
    bytes_down: int
    bytes_up: int
    gradients: int  # stochastic gradient evaluations
    rows: int  # rows drawn for them
    passes: int  # those of them that ran over all local rows


class Calls(NamedTuple):
    """Gradients asked for, the rows drawn for them, and passes over all rows."""

    gradients: int = 0
    rows: int = 0
    passes: int = 0

    def plus(self, other: "Calls", times: int) -> "Calls":
        return Calls(*(a + times * b for a, b in zip(self, other, strict=True)))


MARK = "a_gradient"


def a_gradient(z: Point, xi: jax.Array) -> Point:
    """Stands in a traced program, by its name, for one stochastic gradient."""
    return z


class Probe(Objective):
    """An objective without data, whose gradients leave a mark in the traced program."""

    def __init__(self, batch_size: int | None):
        self.batch_size = batch_size

    def draw(self, key: Key, count: int | None = None) -> jax.Array:
        # A sample is known by its width; width zero stands for all local rows.
        width = self.batch_size or 0
        return jnp.zeros((width,) if count is None else (count, width))

    def whole(self, key: Key) -> jax.Array:
        return jnp.zeros((0,))

    def grad(self, z: Point, xi: jax.Array) -> Point:
        return jax.jit(a_gradient)(z, xi)

    def project(self, z: Point) -> Point:
        return z


def calls_in(program: Any) -> Calls:
    """The marks in a traced program, those in a loop as often as it runs."""
    total = Calls()
    for equation in program.eqns:
        if equation.params.get("name") == MARK:
            width = equation.invars[-1].aval.shape[-1]
            total = total.plus(Calls(1, width, int(width == 0)), 1)
            continue
        for sub in programs_in(equation):
            found = calls_in(sub)
            if equation.primitive.name == "while" and found.gradients:
                raise BadValue(
                    "gradients inside a loop of unknown length cannot be counted; use "
                    "sagda.loop."
                )
            total = total.plus(found, repeats(equation))
    return total


def size_of(tree: PyTree) -> int:
    """Bytes of the arrays in a tree, or of their shapes."""
    return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(tree))


def cost(
    algorithm: Algorithm,
    z: Point,
    *,
    batch_size: int | None = None,
    opening: bool = False,
) -> tuple[PhaseCost, ...]:
    """The phases of a round (or of the opening) with their measured costs.

    One client is traced through them; nothing is computed.

    Examples:
        >>> from sagda import Point, sagda_i
        >>> import numpy as np
        >>> z = Point(np.zeros(3, np.float32), np.zeros(1, np.float32))
        >>> (phase,) = cost(sagda_i(local_steps=5).build(), z, batch_size=10)
        >>> phase.bytes_down, phase.bytes_up, phase.gradients, phase.rows
        (32, 32, 6, 60)
    """
    check.kind("algorithm", algorithm, Algorithm, "such as sagda_i().build()")
    probe = Probe(batch_size)
    return tuple(
        PhaseCost(
            name=traced.phase.name,
            bytes_down=size_of(traced.message),
            bytes_up=size_of(traced.reply),
            **calls_in(traced.program)._asdict(),
        )
        for traced in trace_round(algorithm, z, lambda: probe, opening=opening)
    )
