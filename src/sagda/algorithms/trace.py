"""One client traced through a round: shapes of messages, and the programs it runs.

Nothing is computed. `costs.cost` counts bytes and gradients with it, the simulator
estimates a client's work, and federations learn the shapes of their messages. What a
phase does with its numbers is in the algorithm's own module.
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

# Bytes of intermediate arrays that clients or rows processed together may hold, where
# only memory limits their number.
MEMORY = 2**28


class TracedPhase(NamedTuple):
    """One client's part in a phase. All arrays are shapes (`jax.ShapeDtypeStruct`)."""

    phase: Phase
    message: PyTree  # from the server to the client
    reply: PyTree  # from the client to the server
    kept: PyTree  # what the client keeps until the next phase of this round
    program: Any  # the client's work as a traced program (a jaxpr)


def trace_round(
    algorithm: Algorithm,
    z: Point,
    objective: Callable[..., Objective],
    *arguments: Any,
    opening: bool = False,
) -> Iterator[TracedPhase]:
    """The phases of a round (or of the opening), each traced for one client.

    Args:
        algorithm: its state starts at `init(z)`, the client's memory at `memory(z)`.
        z: the iterate, or its shape.
        objective: makes the client's objective inside the traced program, from
        arguments: arrays or shapes, which become arguments of that program.
        opening: trace the opening phases, not those of a round.
    """
    t = jax.ShapeDtypeStruct((), jnp.int32)
    state = jax.eval_shape(algorithm.init, z)
    memory = kept = jax.eval_shape(algorithm.memory, z)
    for phase in algorithm.opening if opening else algorithm.phases:
        # A fresh cohort has kept nothing from the phases before.
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
                f"(reply, kept), got {type(out).__name__}."
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
    """The programs inside an equation, such as a loop's body."""
    parts = jax.tree.leaves(
        list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")
    )
    parts = [getattr(part, "jaxpr", part) for part in parts]
    return [part for part in parts if hasattr(part, "eqns")]


def repeats(equation: Any) -> int:
    """How often the programs in an equation run; 1 for a loop of unknown length."""
    return equation.params["length"] if equation.primitive.name == "scan" else 1


def equations(program: Any, times: int = 1) -> Iterator[tuple[Any, int]]:
    """All equations of a traced program, each with the number of times it runs."""
    for equation in program.eqns:
        yield equation, times
        for part in programs_in(equation):
            yield from equations(part, times * repeats(equation))


def bytes_of(variable: Any) -> int:
    """The size of an array in a traced program; 0 for random keys and the like."""
    kind = getattr(variable.aval, "dtype", None)
    return variable.aval.size * getattr(kind, "itemsize", 0)


def batch_that_fits(one: Callable, *arguments: Any) -> int:
    """How many calls of `one` can be batched before their arrays exceed `MEMORY`."""
    made = equations(jax.make_jaxpr(one)(*arguments).jaxpr)
    largest = max((bytes_of(v) for e, _ in made for v in e.outvars), default=1)
    # About four arrays of the largest size exist at a time.
    return max(1, MEMORY // (4 * max(largest, 1)))
