"""`Site`: a client's part. Its rows stay here."""

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from sagda.check import BadValue
from sagda.core import Phase, Turn
from sagda.data.federation import Federation
from sagda.federation.plan import Plan, Specs, on_host, phase_of
from sagda.federation.protocol.client import Cache, ClientProtocol
from sagda.federation.protocol.letters import Evaluate, Evaluated, Letter
from sagda.federation.protocol.messages import Instruction
from sagda.federation.protocol.wire import Parcel
from sagda.federation.site import measure as assess
from sagda.keys import Key, key_of, root_key
from sagda.simulator.setup import Setup


class CarriedValue(NamedTuple):
    """What a client carries from phase to phase of one attempt at a round."""

    incarnation: int
    round: int
    phase: str
    value: Any


class Site:
    """A client of one run.

    Args:
        plan: what was agreed on.
        rows: a federation of one client.
        cache: what its disk holds.
        save: makes a cache durable.
        nonce: fresh random numbers.
        specs: the plan's, if at hand.
    """

    def __init__(
        self,
        plan: Plan,
        rows: Federation,
        cache: Cache,
        save: Callable[[Cache], None],
        nonce: Callable[[], int],
        specs: Specs | None = None,
    ):
        plan.check()
        self.plan, self.rows, self.specs = plan, rows, specs or Specs.of(plan)
        algorithm = plan.algorithm
        self.phases = {p.name: p for p in (*algorithm.opening, *algorithm.phases)}
        # Those that begin with the client's memory, not with what a phase before kept.
        self.fresh = {p.name for p in self.phases.values() if p.resample}
        self.fresh |= {p.name for p in algorithm.opening} | {algorithm.phases[0].name}
        self.number = 0
        self.machine = ClientProtocol(cache, save, self.compute, nonce)

    @cached_property
    def first(self) -> Any:
        """The memory that every client begins with."""
        with jax.enable_x64(self.plan.float64):
            return on_host(self.plan.algorithm.memory(self.plan.start()))

    def handle(self, letter: Letter) -> Letter | None:
        """The answer to a letter, or None where none must be given."""
        told = letter.note
        if told.config != self.plan.config or told.run != self.plan.run:
            raise BadValue("a letter of another run or configuration.")
        self.number = letter.number
        if isinstance(told, Evaluate):
            z = self.specs.point.unpack(told.message)
            seen = assess.measured(self.plan, self.rows, z, told.question)
            about = told.run, told.config, told.round, told.question
            return Letter(Evaluated(*about, seen), letter.number)
        message = self.specs.down[told.phase].unpack(told.message)
        memory = None
        if told.memory is not None:
            memory = self.specs.memory.unpack(told.memory)
        answer = self.machine.handle(told._replace(message=message, memory=memory))
        return None if answer is None else Letter(answer, letter.number)

    def compute(
        self, told: Instruction, memory: Any, kept: CarriedValue | None
    ) -> tuple[Parcel, Any, CarriedValue]:
        """The algorithm's own text, on this site's rows."""
        phase = self.phases[told.phase]
        memory = self.first if memory is None else memory
        same = kept is not None and kept[:2] == (told.ticket.incarnation, told.round)
        if phase.name in self.fresh:
            value = memory
        elif same and kept is not None:
            value = kept.value
        else:
            raise BadValue(f"phase {phase.name!r} came before the one that it needs.")
        plan = self.plan
        with jax.enable_x64(plan.float64):
            key = key_of(root_key(plan.seed), told.round, phase.name, self.number)
            reply, value, new = self.work(phase, key, told, value, memory)
        parcel = self.specs.up[phase.name].pack(reply)
        at = told.ticket.incarnation, told.round
        return parcel, new, CarriedValue(*at, phase.name, value)

    def work(
        self, phase: Phase, key: Key, told: Instruction, kept: Any, memory: Any
    ) -> tuple[Any, Any, Any]:
        """Reply, what is kept, and the renewed memory."""
        plan = self.plan
        if plan.problem.uses_torch:
            from sagda.simulator.torch.objective import TorchRows, client_part

            rows = TorchRows.of(plan.problem, self.rows, plan.batch_size, plan.dtype)
            turn = Turn(told.round, key)
            return client_part(rows, phase, told.message, kept, memory, turn)
        setup = Setup.of(
            plan.problem, self.rows, plan.dtype, cohort=1, batch_size=plan.batch_size
        )
        turn = Turn(np.int32(told.round), key)
        work = program(phase.name)
        return on_host(work(setup, plan.method, turn, told.message, kept, memory))


@cache
def program(name: str) -> Callable:
    """A phase's work; rates are arguments, so the phase is built inside.

    The key comes from outside: for a single client XLA compiles its hashing slowly.
    """

    def work(setup, method, turn, message, kept, memory):
        own = phase_of(method.build(), name)
        reply, kept = own.client(setup.objective(0), message, kept, turn)
        return reply, kept, own.renew(memory, reply)

    return jax.jit(work)
