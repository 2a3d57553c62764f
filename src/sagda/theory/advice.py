"""`sagda advise`: where given rates stand in the theory, and which it would take."""

from typing import Any, NamedTuple

from sagda.theory import rates
from sagda.theory.bounds import Bound, bound, caveats, rounds_to
from sagda.theory.conditions import (
    READINGS,
    Reading,
    Verdict,
    binding,
    judged,
)
from sagda.theory.constants import Estimates
from sagda.theory.terms import Constants, Setting, Steps


class Standing(NamedTuple):
    """Rates, judged by one reading of the theorem."""

    steps: Steps
    reading: Reading
    verdicts: list[Verdict]
    bound: Bound

    @property
    def holds(self) -> bool:
        return all(verdict.slack.holds for verdict in self.verdicts)

    @property
    def binding(self) -> Verdict:
        return binding(self.verdicts)


class Advice(NamedTuple):
    """What the theory says of a run."""

    method: str
    estimates: Estimates
    setting: Setting
    given: dict[Reading, Standing]
    best: Standing  # the proof's reading
    most_local_steps: int  # at the best rates
    rounds: int | None  # to epsilon at the best rates; None: never
    epsilon: float | None
    remarks: list[str]

    @property
    def constants(self) -> Constants:
        return self.estimates.constants


def standing(
    method: str, c: Constants, s: Setting, e: Steps, reading: Reading
) -> Standing:
    verdicts = judged(method, c, s, e, reading)
    return Standing(e, reading, verdicts, bound(method, c, s, e, reading))


def advise(
    method: str,
    estimates: Estimates,
    setting: Setting,
    steps: Steps,
    *,
    epsilon: float | None = None,
    server: float | None = None,
) -> Advice:
    """Judge `steps`, and find the rates that the theorem would take."""
    setting.check()
    steps.check()
    c = estimates.constants
    given: dict[Reading, Standing] = {
        r: standing(method, c, setting, steps, r) for r in READINGS
    }
    e = rates.best(method, c, setting, server=server)
    rounds = None
    if epsilon is not None:
        rounds = rounds_to(method, c, setting, e, epsilon)
    return Advice(
        method,
        estimates,
        setting,
        given,
        standing(method, c, setting, e, "proof"),
        rates.most_local_steps(method, c, setting, e),
        rounds,
        epsilon,
        remarks(method, c, setting, steps),
    )


def remarks(method: str, c: Constants, s: Setting, e: Steps) -> list[str]:
    found = caveats(method, s)
    need = 20 * c.kappa**2
    if e.ratio < need:
        found.append(
            f"The theory needs eta_y/eta_x above 20 kappa^2 = {need:.3g}; here it is "
            f"{e.ratio:.3g}. The paper's own experiments use equal rates, which its "
            "theorems never cover; they work all the same."
        )
    return found


def as_facts(advice: Advice) -> dict[str, Any]:
    """For JSON."""

    def stood(at: Standing) -> dict[str, Any]:
        return {
            "rates": at.steps._asdict(),
            "holds": at.holds,
            "binds": at.binding.condition.name,
            "conditions": [
                {
                    "name": v.condition.name,
                    "says": v.condition.says,
                    "left": v.slack.left,
                    "right": v.slack.right,
                    "holds": v.slack.holds,
                }
                for v in at.verdicts
            ],
            "bound": at.bound._asdict() | {"total": at.bound.total},
        }

    return {
        "method": advice.method,
        "constants": {k: v._asdict() for k, v in advice.estimates._asdict().items()},
        "setting": advice.setting._asdict(),
        "given": {reading: stood(at) for reading, at in advice.given.items()},
        "best": stood(advice.best),
        "most_local_steps": advice.most_local_steps,
        "epsilon": advice.epsilon,
        "rounds": advice.rounds,
        "provable": not caveats(advice.method, advice.setting),
        "remarks": advice.remarks,
    }
