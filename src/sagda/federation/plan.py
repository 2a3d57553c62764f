"""The plan of a settled run, and the names and shapes of the arrays in every message.

The server and each site build the same plan from the same terms (`federation.terms`).
Every message contains `config`, a digest of the terms, so that a message of a run with
other terms is refused. Next: `federation.protocol.wire` for `Spec`.
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
    """One settled run: what the server and the sites need to compute the rounds."""

    method: Method
    problem: Problem
    run: str  # the name of the run
    config: str  # the digest of the terms
    seed: int
    batch_size: int | None  # None: a batch has all rows of the site
    cohort: int  # the largest number of members in one round
    width: int  # the number of features
    float64: bool = False

    @property
    def algorithm(self) -> Algorithm:
        """Return the algorithm, built from the method with its parameters."""
        return self.method.build()

    @property
    def dtype(self) -> Any:
        """Return the type of all floats in rounds."""
        return jnp.float64 if self.float64 else jnp.float32

    def start(self) -> Point:
        """Return the initial point z_0 = (x_0, y_0), as the simulator draws it.

        The draw always uses single precision, so that a run in double precision starts
        from the same point.
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
        """Return the shapes and types of z_0 without computing z_0."""
        z = shape_of(self.problem)
        with jax.enable_x64(self.float64):
            return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, self.dtype), z)

    def initial_memory(self) -> Any:
        """Return the first value of v_i, which is the same for all members.

        The server and the sites compute this value without a message.
        """
        with jax.enable_x64(self.float64):
            return on_host(self.algorithm.memory(self.start()))

    def initial_variables(self) -> Any:
        """Return the state of the algorithm before round 0.

        The mean V / M of all control variates is left out: the server computes it from
        its table of members.
        """
        algorithm, z = self.algorithm, self.start()
        with jax.enable_x64(self.float64):
            state = on_host(algorithm.init(z))
        if algorithm.mean is None:
            return state
        return state._replace(**{algorithm.mean: None})

    def check(self) -> None:
        """Raise `BadValue` if a phase before the last one of a round changes v_i.

        One reply makes one version of v_i, and a commit stores one new version of each
        member (rule R5 in `federation/protocol`).
        """
        for phase in self.algorithm.phases[:-1]:
            if phase.renew is not keep:
                raise BadValue(
                    "control variates must change in the last phase of a round only, "
                    f"got {self.method.name}, which changes them in phase "
                    f"{phase.name!r}; choose another algorithm."
                )


def on_host(tree: PyTree) -> Any:
    """Return the tree with NumPy arrays in place of JAX arrays."""
    return jax.tree.map(np.asarray, tree)


def added(*arrays: np.ndarray) -> np.ndarray:
    """Return the sum of the arrays in double precision, added in the given order."""
    total = np.zeros(arrays[0].shape, np.float64)
    for array in arrays:
        total = total + array
    return total


def phase_of(algorithm: Algorithm, name: str) -> Phase:
    """Return the phase called `name`, in a round or in the opening exchange."""
    phases = (*algorithm.opening, *algorithm.phases)
    return next(phase for phase in phases if phase.name == name)


class Specs(NamedTuple):
    """The specs of all trees of arrays in a run. The keys of dicts are phases."""

    down: dict[str, Spec]  # what the server broadcasts
    up: dict[str, Spec]  # what a site replies
    carried: dict[str, Spec]  # what a site stores until the next phase of the round
    memory: Spec  # the control variate v_i of a member
    point: Spec  # z = (x, y)

    @classmethod
    def of(cls, plan: Plan) -> "Specs":
        """Return the specs of a plan: trace the work of one client without data."""
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
