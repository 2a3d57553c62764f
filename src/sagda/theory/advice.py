"""`sagda advise`: where given rates stand in the theory, and which it would take."""

from typing import Any, NamedTuple

from sagda.check import BadValue
from sagda.runs.experiment import Experiment
from sagda.theory import rates
from sagda.theory.bounds import Bound, bound, caveats, samples
from sagda.theory.conditions import (
    READINGS,
    ConditionCheck,
    Reading,
    binding,
    judged,
)
from sagda.theory.constants import SYMBOLS, Estimates
from sagda.theory.practice import Practice, Tried
from sagda.theory.setting import Constants, Setting, Steps


class Standing(NamedTuple):
    """Rates, judged by one reading of the theorem."""

    steps: Steps
    reading: Reading
    verdicts: list[ConditionCheck]
    bound: Bound

    @property
    def holds(self) -> bool:
        return all(verdict.slack.holds for verdict in self.verdicts)

    @property
    def binding(self) -> ConditionCheck:
        return binding(self.verdicts)


class Advice(NamedTuple):
    """What the theory says of a run."""

    method: str
    estimates: Estimates
    setting: Setting
    given: dict[Reading, Standing]
    best: Standing  # the proof's reading
    most_local_steps: int  # at the best rates
    epsilon: float | None
    reached: Standing | None  # the rates for the fewest rounds to epsilon
    rounds: int | None  # those rounds
    remarks: list[str]
    practice: Practice | None = None

    @property
    def constants(self) -> Constants:
        return self.estimates.constants


def standing(
    method: str, c: Constants, s: Setting, e: Steps, reading: Reading
) -> Standing:
    verdicts = judged(method, c, s, e, reading)
    return Standing(e, reading, verdicts, bound(method, c, s, e, reading))


def asked(experiment: Experiment, name: str) -> tuple[Steps, Setting]:
    """The rates and the setting of a configuration, as the theorems name them."""
    method, config = experiment.methods[name], experiment.config
    local, server = method.arguments["local_lr"], method.arguments["server_lr"]
    if any(callable(rate) for rate in (local.x, local.y, server.x, server.y)):
        raise BadValue("`local_lr` and `server_lr` must be numbers to be judged.")
    clients = experiment.federation.clients
    setting = Setting(
        clients,
        config.cohort or clients,
        int(method.arguments["local_steps"]),
        config.rounds,
    )
    steps = [float(rate) for rate in (local.x, local.y, server.x, server.y)]
    return Steps(*steps), setting


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
    reached, rounds = None, None
    if epsilon is not None:
        at, steps_there = rates.reach(method, c, setting, epsilon, server=server)
        reached, rounds = standing(method, c, at, steps_there, "proof"), at.rounds
    return Advice(
        method,
        estimates,
        setting,
        given,
        standing(method, c, setting, e, "proof"),
        rates.most_local_steps(method, c, setting, e),
        epsilon,
        reached,
        rounds,
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


def samples_to(advice: Advice) -> int | None:
    """Of each client, to epsilon."""
    if advice.rounds is None:
        return None
    return samples(advice.method, advice.setting._replace(rounds=advice.rounds))


def practised(found: Practice) -> dict[str, Any]:
    """For JSON; null: diverged."""

    def one(own: Tried) -> dict[str, Any]:
        error = own.error if own.error < float("inf") else None
        return {"rates": own.steps._asdict(), "grad_phi_sq": error}

    facts = found._asdict()
    return facts | {key: one(facts[key]) for key in ("best", "given", "provable")}


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
        "constants": {
            name: {"symbol": SYMBOLS[name]} | own._asdict()
            for name, own in advice.estimates._asdict().items()
        },
        "setting": advice.setting._asdict(),
        "given": {reading: stood(at) for reading, at in advice.given.items()},
        "best": stood(advice.best),
        "most_local_steps": advice.most_local_steps,
        "epsilon": advice.epsilon,
        "rounds": advice.rounds,
        "samples": samples_to(advice),
        "rates_to_epsilon": advice.reached and advice.reached.steps._asdict(),
        "practice": advice.practice and practised(advice.practice),
        "provable": not caveats(advice.method, advice.setting),
        "remarks": advice.remarks,
    }
