"""`trace_round`: the shapes of messages and the programs of one client in a round.

The round is traced by JAX, and nothing is computed. There are three users.
`costs.cost` counts bytes and gradients. `simulator/workload.py` estimates the work of a
client. Federations check the shapes of their messages. How a round is computed is in
`core.run_round`.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sagda.check import BadKind
from sagda.core import (
    Algorithm,
    Objective,
    Phase,
    Point,
    PyTree,
    Turn,
    check_state,
)
from sagda.keys import root_key

# Limit for the intermediate arrays of one batch, in bytes. `batch_that_fits` uses it.
MEMORY = 2**28


class TracedPhase(NamedTuple):
    """The work of one client in a phase. Arrays are shapes (`jax.ShapeDtypeStruct`)."""

    phase: Phase
    message: PyTree  # from the server to the client
    reply: PyTree  # from the client to the server
    kept: PyTree  # passed to the next phase of the same round, see `Phase`
    program: Any  # the client function as a traced program (a jaxpr)


def trace_round(
    algorithm: Algorithm,
    z: Point,
    objective: Callable[..., Objective],
    *arguments: Any,
    opening: bool = False,
) -> Iterator[TracedPhase]:
    """Trace each phase of a round for one client.

    Args:
        algorithm: the algorithm. Its first state is `init(z)`, and the first memory of
            the client is `memory(z)`.
        z: the iterate, or its shape.
        objective: a function that makes the client's objective from `arguments`. It is
            called inside the traced program.
        arguments: arrays or shapes. They become arguments of the traced program.
        opening: whether to trace the opening phases in place of a round.
    """
    t = jax.ShapeDtypeStruct((), jnp.int32)
    state = jax.eval_shape(algorithm.init, z)
    memory = kept = jax.eval_shape(algorithm.memory, z)
    for phase in algorithm.opening if opening else algorithm.phases:
        # A new cohort starts from the memory, as in the first phase.
        kept = memory if phase.resample else kept
        message = jax.eval_shape(phase.broadcast, state)

        def work(
            t: Any, message: Any, kept: Any, *arguments: Any, phase: Phase = phase
        ) -> tuple[Any, Any]:
            turn = Turn(t, root_key(0))
            out = phase.client(objective(*arguments), message, kept, turn)
            if isinstance(out, tuple) and len(out) == 2:
                return out
            raise BadKind(
                f"the client function of phase {phase.name!r} must return a pair "
                f"(reply, kept), got a value of type {type(out).__name__}."
            )

        program, (reply, kept) = jax.make_jaxpr(work, return_shape=True)(
            t, message, kept, *arguments
        )
        yield TracedPhase(phase, message, reply, kept, program.jaxpr)

        def fold(state: Any, reply: Any, t: Any, phase: Phase = phase) -> Any:
            return check_state(phase.name, phase.server(state, reply, 1.0, t))

        state = jax.eval_shape(fold, state, reply, t)
        memory = jax.eval_shape(phase.renew, memory, reply)


def programs_in(equation: Any) -> list[Any]:
    """Return the programs inside an equation, such as the body of a loop."""
    parts = jax.tree.leaves(
        list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")
    )
    parts = [getattr(part, "jaxpr", part) for part in parts]
    return [part for part in parts if hasattr(part, "eqns")]


def repeats(equation: Any) -> int:
    """Return how often the programs in an equation run.

    The answer is 1 for a loop of unknown length.
    """
    return equation.params["length"] if equation.primitive.name == "scan" else 1


def equations(program: Any, times: int = 1) -> Iterator[tuple[Any, int]]:
    """Return all equations of a traced program, each with how often it runs."""
    for equation in program.eqns:
        yield equation, times
        for part in programs_in(equation):
            yield from equations(part, times * repeats(equation))


def bytes_of(variable: Any) -> int:
    """Return the bytes of a variable in a traced program. Random keys count as 0."""
    kind = getattr(variable.aval, "dtype", None)
    return variable.aval.size * getattr(kind, "itemsize", 0)


def batch_that_fits(one: Callable, *arguments: Any) -> int:
    """Return how many calls of `one` can run in one batch within `MEMORY` bytes."""
    made = equations(jax.make_jaxpr(one)(*arguments).jaxpr)
    largest = max((bytes_of(v) for e, _ in made for v in e.outvars), default=1)
    # A program holds about four arrays of the largest size at the same time.
    return max(1, MEMORY // (4 * max(largest, 1)))
