"""Looking into traced programs: what they compute, how often, and of what size."""

from collections.abc import Callable, Iterator
from typing import Any

import jax

# Bytes that what is worked on together may hold in arrays on the way, where nothing
# but memory speaks against more.
ROOM = 2**28


def programs_in(equation: Any) -> list[Any]:
    """The programs that an equation runs: a loop's body, a function called."""
    found = jax.tree.leaves(
        list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")
    )
    found = [getattr(sub, "jaxpr", sub) for sub in found]
    return [sub for sub in found if hasattr(sub, "eqns")]


def repeats(equation: Any) -> int:
    """How often the programs in an equation run; a loop of unknown length once."""
    return equation.params["length"] if equation.primitive.name == "scan" else 1


def equations(program: Any, times: int = 1) -> Iterator[tuple[Any, int]]:
    """All equations of a traced program with how often each runs."""
    for equation in program.eqns:
        yield equation, times
        for sub in programs_in(equation):
            yield from equations(sub, times * repeats(equation))


def bytes_of(variable: Any) -> int:
    """Of an array in a traced program; keys and the like have none."""
    kind = getattr(variable.aval, "dtype", None)
    return variable.aval.size * getattr(kind, "itemsize", 0)


def have_room(one: Callable, *arguments: Any) -> int:
    """How many can be worked on together, of which `one` works on one."""
    made = equations(jax.make_jaxpr(one)(*arguments).jaxpr)
    largest = max((bytes_of(v) for e, _ in made for v in e.outvars), default=1)
    return max(1, ROOM // (4 * max(largest, 1)))  # few of them live at a time
