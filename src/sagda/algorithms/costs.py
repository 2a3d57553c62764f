"""What a phase costs one client: bytes from shapes, gradients from traced calls.

Measured, so an algorithm declares none of it. What a device needs for the work is in
`simulator.workload`; what a whole run has used is in the columns of its history.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sagda import check
from sagda.algorithms.trace import programs_in, repeats, trace_round
from sagda.check import BadValue
from sagda.core import Algorithm, Objective, Point, PyTree
from sagda.keys import Key


class PhaseCost(NamedTuple):
    """One client's costs of one phase."""

    name: str
    bytes_down: int
    bytes_up: int
    gradients: int  # stochastic gradients
    rows: int  # rows drawn for them
    passes: int  # gradients on all local rows


class Calls(NamedTuple):
    """Counts of gradients, of the rows drawn for them, and of passes over all rows."""

    gradients: int = 0
    rows: int = 0
    passes: int = 0

    def plus(self, other: "Calls", times: int) -> "Calls":
        return Calls(*(a + times * b for a, b in zip(self, other, strict=True)))


MARK = "a_gradient"


def a_gradient(z: Point, xi: jax.Array) -> Point:
    """Marks one stochastic gradient in a traced program, by its name."""
    return z


class Probe(Objective):
    """An objective without data, whose gradients are marks in a traced program."""

    def __init__(self, batch_size: int | None):
        self.batch_size = batch_size

    def draw(self, key: Key, count: int | None = None) -> jax.Array:
        # The width of a sample is its number of rows; 0 stands for all local rows.
        width = self.batch_size or 0
        return jnp.zeros((width,) if count is None else (count, width))

    def whole(self, key: Key) -> jax.Array:
        return jnp.zeros((0,))

    def grad(self, z: Point, xi: jax.Array) -> Point:
        return jax.jit(a_gradient)(z, xi)

    def project(self, z: Point) -> Point:
        return z


def calls_in(program: Any) -> Calls:
    """Count the marks in a traced program. Those in a loop count each time it runs."""
    total = Calls()
    for equation in program.eqns:
        if equation.params.get("name") == MARK:
            width = equation.invars[-1].aval.shape[-1]
            total = total.plus(Calls(1, width, int(width == 0)), 1)
            continue
        for sub in programs_in(equation):
            calls = calls_in(sub)
            if equation.primitive.name == "while" and calls.gradients:
                raise BadValue(
                    "gradients inside a loop of unknown length cannot be counted; use "
                    "sagda.loop."
                )
            total = total.plus(calls, repeats(equation))
    return total


def size_of(tree: PyTree) -> int:
    """Bytes of the arrays, or of the arrays of these shapes, in a tree."""
    return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(tree))


def cost(
    algorithm: Algorithm,
    z: Point,
    *,
    batch_size: int | None = None,
    opening: bool = False,
) -> tuple[PhaseCost, ...]:
    """The costs of each phase of a round (or of the opening) for one client.

    The phases are traced; nothing is computed.

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
