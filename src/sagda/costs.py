"""What a phase costs, measured: bytes from its shapes, gradients by counting calls."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sagda.core import Algorithm, Objective, Phase, Point, PyTree, Turn
from sagda.keys import Key, root_key


class PhaseCost(NamedTuple):
    """One client's part in one phase."""

    name: str
    bytes_down: int
    bytes_up: int
    gradients: int  # stochastic gradient evaluations
    rows: int  # rows drawn for them
    passes: int  # those of them that ran over all local rows


class Probe(Objective):
    """An objective without data, which counts what is asked of it."""

    def __init__(self, batch_size: int | None):
        self.batch_size = batch_size
        self.gradients = self.rows = self.passes = 0

    def draw(self, key: Key, count: int | None = None) -> jax.Array:
        # A sample is known by its width; width zero stands for all local rows.
        width = self.batch_size or 0
        return jnp.zeros((width,) if count is None else (count, width))

    def whole(self, key: Key) -> jax.Array:
        return jnp.zeros((0,))

    def grad(self, z: Point, xi: jax.Array) -> Point:
        self.gradients += 1
        self.rows += xi.shape[-1]
        self.passes += xi.shape[-1] == 0
        return z

    def project(self, z: Point) -> Point:
        return z


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

    Examples:
        >>> from sagda import Point, sagda_i
        >>> import numpy as np
        >>> z = Point(np.zeros(3, np.float32), np.zeros(1, np.float32))
        >>> (phase,) = cost(sagda_i(local_steps=5).build(), z, batch_size=10)
        >>> phase.bytes_down, phase.bytes_up, phase.gradients, phase.rows
        (32, 32, 6, 60)
    """
    phases = algorithm.opening if opening else algorithm.phases
    sizes = _run(algorithm, phases, z, Probe(batch_size), jax.eval_shape)
    # Under eval_shape a loop's body is traced once, so calls are counted in a plain
    # run; they do not depend on the size of z.
    point = jax.tree.map(lambda _: jnp.zeros(()), z)
    counts = []
    with jax.disable_jit():
        for i in range(len(phases)):
            probe = Probe(batch_size)
            call = lambda f, *args: f(*args)
            _run(algorithm, phases[: i + 1], point, probe, call)
            counts.append((probe.gradients, probe.rows, probe.passes))
    before, out = (0, 0, 0), []
    for phase, (down, up), count in zip(phases, sizes, counts, strict=True):
        own = [now - then for now, then in zip(count, before, strict=True)]
        out.append(PhaseCost(phase.name, down, up, *own))
        before = count
    return tuple(out)


def _run(
    algorithm: Algorithm, phases: tuple[Phase, ...], z: Point, probe: Probe, call: Any
) -> list[tuple[int, int]]:
    """One client alone through the phases; the sizes of its messages and replies."""
    turn = Turn(jnp.zeros((), jnp.int32), root_key(0))
    state, memory = call(algorithm.init, z), call(algorithm.memory, z)
    kept, sizes = memory, []
    for phase in phases:
        message = call(phase.broadcast, state)
        if phase.resample:
            kept = memory
        work = lambda message, kept, phase=phase: phase.client(
            probe, message, kept, turn
        )
        reply, kept = call(work, message, kept)
        fold = lambda state, reply, phase=phase: phase.server(
            state, reply, 1.0, turn.round
        )
        state = call(fold, state, reply)
        memory = call(phase.renew, memory, reply)
        sizes.append((size_of(message), size_of(reply)))
    return sizes
