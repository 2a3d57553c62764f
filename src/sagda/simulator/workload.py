"""`Workload`: an estimate of the memory and work that one client needs on a device.

The estimate comes from a traced program, so nothing is computed. `layout.resolve` uses
it to choose a layout. The bytes and gradients that users see are counted in
`algorithms/costs.py`.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from sagda.algorithms.costs import size_of
from sagda.algorithms.trace import bytes_of, equations, programs_in, trace_round
from sagda.core import Algorithm, Point
from sagda.simulator.setup import Setup

# A product of matrices with more multiplications counts as large.
PRODUCT = 2**16
# XLA cannot compile a loop into a kernel if it contains one of these operations.
BARRED = ("scatter", "sort", "fft", "callback", "ffi", "custom_call", "top_k")


class Workload(NamedTuple):
    """The work of one client in one round, as needed to choose a layout."""

    kernel: bool  # whether each of its loops can be compiled into one kernel
    writes: bool  # whether it writes to array positions that depend on its rows
    heavy: bool  # whether a large product or a convolution keeps a device busy
    meetings: int  # exchanges between devices per round, if they divide the clients
    work: int  # bytes that it writes, plus bytes that its products read
    memory: int  # bytes that it needs at the same time


def workload_of(setup: Setup, algorithm: Algorithm, z: Point) -> Workload:
    """Estimate the workload of one client from the equations of its traced programs."""
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
            # An equation with programs inside, such as a loop, writes nothing itself.
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
        # A program holds about four arrays of the largest size, and four copies of z.
        memory=4 * largest + 4 * size_of(z),
    )


def stored(variable: Any) -> int:
    """Return the bytes that a variable needs in memory.

    Unsigned integers count as 0: they are random bits, which stay in registers.
    """
    kind = getattr(variable.aval, "dtype", None)
    return 0 if getattr(kind, "kind", "") == "u" else bytes_of(variable)


def multiplications(equation: Any) -> float:
    """Return the number of multiplications in a product of two matrices.

    The number is infinite for a convolution, and 0 for products with vectors and for
    all other equations. The libraries of XLA compute matrix products and convolutions
    faster than a kernel does.
    """
    if equation.primitive.name == "conv_general_dilated":
        return np.inf
    if equation.primitive.name != "dot_general":
        return 0
    # `free` has the product of the dimensions that only one of the operands has.
    (contracted, batched) = equation.params["dimension_numbers"]
    free = [
        np.prod([n for d, n in enumerate(v.aval.shape) if d not in (*c, *b)])
        for v, c, b in zip(equation.invars, contracted, batched, strict=True)
    ]
    operands = [v.aval.size for v in equation.invars]
    # An [m, k] by [k, n] product has m n k = sqrt(mk nk mn) multiplications.
    return float(np.sqrt(np.prod([*operands, *free]))) if min(free) > 1 else 0
