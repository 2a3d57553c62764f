"""A site's part in a run: it answers instructions with the algorithm's own code.

`Site` needs rows and a cache, wherever they come from: `site.folder` reads both from
disk. The rows never leave it; only what a phase replies does.
"""

from collections.abc import Callable
from functools import cache
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
from sagda.federation.site.measure import measured
from sagda.keys import Key, key_of, root_key
from sagda.simulator.setup import Setup


class CarriedValue(NamedTuple):
    """What a site carries from one phase to the next, within one attempt at a round."""

    incarnation: int
    round: int
    phase: str
    value: Any


class Site:
    """A site of one run.

    Args:
        plan: the settled run.
        rows: a federation of one client: this site's rows.
        cache: its durable state.
        save: makes a cache durable.
        nonce: returns a fresh random number.
        specs: the plan's, if they are known already.
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
        # Phases that begin with the site's memory, not with a carried value.
        first, *others = plan.algorithm.phases
        resampled = [phase for phase in others if phase.resample]
        self.fresh = {p.name for p in (*plan.algorithm.opening, first, *resampled)}
        self.number = 0  # the member's, as the letter in hand gives it
        self.protocol = ClientProtocol(cache, save, self.compute, nonce)

    def handle(self, letter: Letter) -> Letter | None:
        """The answer to an instruction or a question; None if it must be ignored."""
        note = letter.note
        if note.config != self.plan.config or note.run != self.plan.run:
            raise BadValue(
                "a letter must be of this site's run and configuration, got another."
            )
        self.number = letter.number
        if isinstance(note, Evaluate):
            z = self.specs.point.unpack(note.message)
            answer = Evaluated(
                run=note.run,
                config=note.config,
                round=note.round,
                question=note.question,
                payload=measured(self.plan, self.rows, z, note.question),
            )
            return Letter(answer, letter.number)
        message = self.specs.down[note.phase].unpack(note.message)
        memory = None
        if note.memory is not None:
            memory = self.specs.memory.unpack(note.memory)
        reply = self.protocol.handle(note._replace(message=message, memory=memory))
        return None if reply is None else Letter(reply, letter.number)

    def compute(
        self, instruction: Instruction, memory: Any, carried: CarriedValue | None
    ) -> tuple[Parcel, Any, CarriedValue]:
        """The payload of the reply, the new memory, and what is carried on."""
        phase = phase_of(self.plan.algorithm, instruction.phase)
        round = instruction.round
        incarnation = instruction.ticket.incarnation
        memory = self.plan.initial_memory() if memory is None else memory
        if phase.name in self.fresh:
            value = memory
        # A restarted server repeats the round, so a value of its last life is void.
        elif carried is not None and carried[:2] == (incarnation, round):
            value = carried.value
        else:
            raise BadValue(
                f"phase {phase.name!r} needs the phase before it, in the same attempt."
            )
        plan = self.plan
        with jax.enable_x64(plan.float64):
            # Randomness follows from seed, round, phase and member, never from the
            # ticket: a repeated round draws the same rows.
            key = key_of(root_key(plan.seed), round, phase.name, self.number)
            reply, value, new = self.work(phase, key, instruction, value, memory)
        parcel = self.specs.up[phase.name].pack(reply)
        carried = CarriedValue(
            incarnation=incarnation, round=round, phase=phase.name, value=value
        )
        return parcel, new, carried

    def work(
        self, phase: Phase, key: Key, instruction: Instruction, value: Any, memory: Any
    ) -> tuple[Any, Any, Any]:
        """The phase on this site's rows: reply, carried value and renewed memory."""
        plan, message = self.plan, instruction.message
        if plan.problem.uses_torch:
            from sagda.simulator.torch.objective import TorchRows, client_part

            rows = TorchRows.of(plan.problem, self.rows, plan.batch_size, plan.dtype)
            turn = Turn(instruction.round, key)
            return client_part(rows, phase, message, value, memory, turn)
        setup = Setup.of(
            plan.problem, self.rows, plan.dtype, cohort=1, batch_size=plan.batch_size
        )
        turn = Turn(np.int32(instruction.round), key)
        work = program(phase.name)
        return on_host(work(setup, plan.method, turn, message, value, memory))


@cache
def program(name: str) -> Callable:
    """The compiled work of a phase.

    Rates are arguments, so the phase is built inside and one program serves all rates.
    The key comes from outside: for a single client XLA compiles its hashing slowly.
    """

    def work(setup, method, turn, message, value, memory):
        phase = phase_of(method.build(), name)
        reply, value = phase.client(setup.objective(0), message, value, turn)
        return reply, value, phase.renew(memory, reply)

    return jax.jit(work)
