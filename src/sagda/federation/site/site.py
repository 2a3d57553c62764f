"""`Site`: a site's part in one run, computed with the code of the algorithm.

A `Site` is given its rows and its cache: `site.folder` reads both from disk. The rows
never leave the site. It sends only replies to phases and answers to evaluations.
Whether an instruction is valid is decided in `protocol.client`.
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
    """A value that a site carries to the next phase, within one attempt at a round."""

    incarnation: int  # the number of starts of the server
    round: int
    phase: str
    value: Any


class Site:
    """One site in one run: answers instructions and evaluations.

    Args:
        plan: the algorithm, the problem and the options of the run.
        rows: this site's rows, as a federation of one client.
        cache: this site's durable state, as it was last saved.
        save: writes a new cache to disk.
        nonce: returns a fresh random number.
        specs: the specifications of the arrays in letters. None: derived from `plan`.
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
        # Names of the phases that begin with the site's memory, not a carried value.
        first, *others = plan.algorithm.phases
        resampled = [phase for phase in others if phase.resample]
        self.fresh = {p.name for p in (*plan.algorithm.opening, first, *resampled)}
        self.number = 0  # this member's number, from the newest letter
        self.protocol = ClientProtocol(cache, save, self.compute, nonce)

    def handle(self, letter: Letter) -> Letter | None:
        """Return the answer to an instruction or evaluation, or None for no answer."""
        note = letter.note
        if note.config != self.plan.config or note.run != self.plan.run:
            raise BadValue(
                "a letter must have the run and the configuration of this site, got "
                "another; check which server this site joined."
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
        """Compute a phase. Return the reply's arrays, new memory and carried value."""
        phase = phase_of(self.plan.algorithm, instruction.phase)
        round = instruction.round
        incarnation = instruction.ticket.incarnation
        memory = self.plan.initial_memory() if memory is None else memory
        if phase.name in self.fresh:
            value = memory
        # A restarted server repeats the round, so values from before are not valid.
        elif carried is not None and carried[:2] == (incarnation, round):
            value = carried.value
        else:
            raise BadValue(
                f"phase {phase.name!r} needs the value of the phase before it, from "
                "the same attempt at the round."
            )
        plan = self.plan
        with jax.enable_x64(plan.float64):
            # The key depends on seed, round, phase and member, but not on the ticket.
            # So a repeated round draws the same rows.
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
        """Run `phase` on the rows. Return the reply, carried value and new memory."""
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
    """Return the compiled work of the phase with this name.

    The step sizes are arguments of the program, so one program serves all step sizes.
    The random key is an argument too, because XLA compiles its computation slowly.
    """

    def work(setup, method, turn, message, value, memory):
        phase = phase_of(method.build(), name)
        reply, value = phase.client(setup.objective(0), message, value, turn)
        return reply, value, phase.renew(memory, reply)

    return jax.jit(work)
