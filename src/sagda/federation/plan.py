"""What server and sites agree on before a run, and the arrays of every message.

Both sides build the same plan from the same terms (`federation.terms`). Its digest
`config` is in every message, so that a difference is refused.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sagda.algorithms.costs import Probe
from sagda.algorithms.trace import trace_round
from sagda.check import BadValue
from sagda.core import Algorithm, Phase, Point, PyTree, keep
from sagda.federation.protocol.wire import Spec
from sagda.keys import key_of, root_key
from sagda.methods import Method
from sagda.problems.base import Problem, shape_of
from sagda.simulator.simulate import draw_starts


class Plan(NamedTuple):
    """A settled run: everything that either side needs to do its part."""

    method: Method
    problem: Problem
    run: str
    config: str  # the digest of the configuration
    seed: int
    batch_size: int | None
    cohort: int
    width: int  # features of a row
    float64: bool = False

    @property
    def algorithm(self) -> Algorithm:
        return self.method.build()

    @property
    def dtype(self) -> Any:
        return jnp.float64 if self.float64 else jnp.float32

    def start(self) -> Point:
        """z_0, drawn as the simulator draws it.

        The draw is in single precision whatever the run's precision, so that all
        precisions start from one point.
        """
        with jax.enable_x64(False):
            if self.problem.uses_torch:
                z = self.problem.init(key_of(root_key(np.uint32(self.seed)), "start"))
            else:
                keys = jax.vmap(root_key)(np.array([self.seed], np.uint32))
                z = jax.tree.map(lambda a: a[0], draw_starts(self.problem, keys))
        with jax.enable_x64(self.float64):
            z = jax.tree.map(lambda a: jnp.asarray(a, self.dtype), z)
            return on_host(self.problem.project(z))

    def shape(self) -> Point:
        """The shapes of z_0, without computing it."""
        z = shape_of(self.problem)
        with jax.enable_x64(self.float64):
            return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, self.dtype), z)

    def initial_memory(self) -> Any:
        """The first memory of every member; both sides compute the same."""
        with jax.enable_x64(self.float64):
            return on_host(self.algorithm.memory(self.start()))

    def initial_variables(self) -> Any:
        """The algorithm's state before round 0, without the mean of all memories."""
        algorithm, z = self.algorithm, self.start()
        with jax.enable_x64(self.float64):
            state = on_host(algorithm.init(z))
        if algorithm.mean is None:
            return state
        return state._replace(**{algorithm.mean: None})

    def check(self) -> None:
        """Raise if memories are renewed before the last phase of a round.

        A commit stores one new version per member (R5), made by one reply.
        """
        for phase in self.algorithm.phases[:-1]:
            if phase.renew is not keep:
                raise BadValue(
                    f"{self.method.name} renews memories in phase {phase.name!r}; "
                    "federations can do so in the last phase of a round only."
                )


def on_host(tree: PyTree) -> Any:
    """The tree with NumPy arrays."""
    return jax.tree.map(np.asarray, tree)


def added(*arrays: np.ndarray) -> np.ndarray:
    """The sum of arrays, in the given order and in double precision."""
    total = np.zeros(arrays[0].shape, np.float64)
    for array in arrays:
        total = total + array
    return total


def phase_of(algorithm: Algorithm, name: str) -> Phase:
    """The phase of that name, of a round or of the opening."""
    phases = (*algorithm.opening, *algorithm.phases)
    return next(phase for phase in phases if phase.name == name)


class Specs(NamedTuple):
    """What each phase sends and carries, by name of the phase."""

    down: dict[str, Spec]
    up: dict[str, Spec]
    carried: dict[str, Spec]  # what a site carries to the next phase
    memory: Spec  # a member's v_i
    point: Spec  # z

    @classmethod
    def of(cls, plan: Plan) -> "Specs":
        """The specs of a plan, found by tracing one client without data."""
        algorithm, z, probe = plan.algorithm, plan.shape(), Probe(plan.batch_size)
        down, up, carried = {}, {}, {}
        # Shapes are traced, so that no site needs rows to know what it will send.
        with jax.enable_x64(plan.float64):
            memory = jax.eval_shape(algorithm.memory, z)
            for opening in (True, False):
                for traced in trace_round(algorithm, z, lambda: probe, opening=opening):
                    name = traced.phase.name
                    down[name] = Spec.of(traced.message)
                    up[name] = Spec.of(traced.reply)
                    carried[name] = Spec.of(traced.kept)
        return cls(down, up, carried, memory=Spec.of(memory), point=Spec.of(z))
