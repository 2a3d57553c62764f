"""What one client's part in a round costs a device: memory, work, kinds of operations.

Found by tracing, so nothing is computed. `layout.resolve` decides by it how clients
share a device. Bytes and gradients that users see are in `sagda.algorithms.costs`.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from sagda.algorithms.costs import size_of
from sagda.algorithms.trace import bytes_of, equations, programs_in, trace_round
from sagda.core import Algorithm, Point
from sagda.simulator.setup import Setup

# Multiplications from which on a product of matrices counts as large.
PRODUCT = 2**16
# XLA compiles no loop that has one of these operations into a kernel.
BARRED = ("scatter", "sort", "fft", "callback", "ffi", "custom_call", "top_k")


class Workload(NamedTuple):
    """A client's part in a round, as far as the choice of a layout depends on it."""

    kernel: bool  # its loops may be compiled into one kernel each
    writes: bool  # it writes to places that depend on the rows drawn
    heavy: bool  # large matrix products or convolutions keep a whole device busy
    meetings: int  # how often devices that share a round's clients must exchange sums
    work: int  # bytes that it writes, and that its products read
    memory: int  # bytes that it needs at a time


def workload_of(setup: Setup, algorithm: Algorithm, z: Point) -> Workload:
    """The workload of one client, by the equations of its traced programs."""
    kernel, writes, heavy, work, largest = True, False, False, 0, 0
    client = jax.ShapeDtypeStruct((), np.int32)
    for traced in trace_round(algorithm, z, Setup.objective, setup, client):
        for equation, times in equations(traced.program):
            name, product = equation.primitive.name, multiplications(equation)
            heavy = heavy or product > PRODUCT
            barred = any(word in name for word in BARRED)
            kernel = kernel and not (barred or product)
            writes = writes or name == "dynamic_update_slice"
            largest = max([largest, *map(bytes_of, equation.outvars)])
            if not programs_in(equation):
                work += times * sum(map(stored, equation.outvars))
            if name == "dot_general":
                work += times * sum(map(bytes_of, equation.invars))
    return Workload(
        kernel=kernel,
        writes=writes,
        heavy=heavy,
        meetings=len(algorithm.phases),
        work=work,
        # About four arrays of the largest size, and four of z, exist at a time.
        memory=4 * largest + 4 * size_of(z),
    )


def stored(variable: Any) -> int:
    """Its bytes, but none of unsigned integers: random bits are made in registers."""
    kind = getattr(variable.aval, "dtype", None)
    return 0 if getattr(kind, "kind", "") == "u" else bytes_of(variable)


def multiplications(equation: Any) -> float:
    """In a product of matrices; no number is enough for a convolution.

    XLA's library does both better than a kernel. Products with vectors count as none.
    """
    if equation.primitive.name == "conv_general_dilated":
        return np.inf
    if equation.primitive.name != "dot_general":
        return 0
    (contracted, batched) = equation.params["dimension_numbers"]
    free = [
        np.prod([n for d, n in enumerate(v.aval.shape) if d not in (*c, *b)])
        for v, c, b in zip(equation.invars, contracted, batched, strict=True)
    ]
    operands = [v.aval.size for v in equation.invars]
    # m n k = sqrt(mk nk mn), with the free dimensions m and n.
    return float(np.sqrt(np.prod([*operands, *free]))) if min(free) > 1 else 0
