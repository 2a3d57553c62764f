"""`cost`: the bytes and gradients that one client needs in each phase of a round.

Bytes follow from the shapes of messages. Gradients are counted in a traced program. So
an algorithm has to declare neither. The memory and work of a device are estimated in
`simulator/workload.py`. The totals of a run are columns of its history, see
`simulator/recorder.py`.
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
    """The costs of one phase for one client."""

    name: str
    bytes_down: int  # from the server to the client
    bytes_up: int  # from the client to the server
    gradients: int  # all gradients, including those on all local rows
    rows: int  # rows drawn for stochastic gradients
    passes: int  # gradients on all local rows


class Calls(NamedTuple):
    """Counts of gradients, of rows drawn for them, and of gradients on all rows."""

    gradients: int = 0
    rows: int = 0
    passes: int = 0

    def plus(self, other: "Calls", times: int) -> "Calls":
        return Calls(*(a + times * b for a, b in zip(self, other, strict=True)))


MARK = "a_gradient"


def a_gradient(z: Point, xi: jax.Array) -> Point:
    """Return `z`. A call of this function marks one gradient in a traced program."""
    return z


class Probe(Objective):
    """An objective without data, whose gradients can be counted in a traced program."""

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
    """Count the gradients in a traced program, made with `Probe`.

    A gradient in a loop counts as often as the loop runs.
    """
    total = Calls()
    for equation in program.eqns:
        if equation.params.get("name") == MARK:
            # The last argument is the sample, whose width `Probe.draw` explains.
            width = equation.invars[-1].aval.shape[-1]
            total = total.plus(Calls(1, width, int(width == 0)), 1)
            continue
        for sub in programs_in(equation):
            calls = calls_in(sub)
            if equation.primitive.name == "while" and calls.gradients:
                raise BadValue(
                    "gradients must not be in a loop of unknown length, where they "
                    "cannot be counted; use `sagda.loop` for the local steps."
                )
            total = total.plus(calls, repeats(equation))
    return total


def size_of(tree: PyTree) -> int:
    """Return the bytes of all arrays in a tree. Shapes count like arrays."""
    return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(tree))


def cost(
    algorithm: Algorithm,
    z: Point,
    *,
    batch_size: int | None = None,
    opening: bool = False,
) -> tuple[PhaseCost, ...]:
    """Return the costs of each phase of a round, for one client.

    With `opening`, these are the costs of the opening phases before the first round.
    The phases are traced only, so no gradient is computed.

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
