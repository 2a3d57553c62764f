"""Step-size advice: what the theorems say about a method on a problem, and what works.

`advise` is the whole computation. `sagda.report.terminal_theory` prints the result and
`as_facts` turns it into JSON.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from sagda.check import BadValue
from sagda.data.federation import Federation
from sagda.methods import Method
from sagda.problems.base import Problem
from sagda.theory import rates
from sagda.theory.bounds import Bound, bound, caveats, samples
from sagda.theory.conditions import (
    CONDITIONS,
    READINGS,
    ConditionCheck,
    Reading,
    binding,
    check_conditions,
)
from sagda.theory.constants import SYMBOLS, Estimates, estimate
from sagda.theory.practice import Practice, TriedRates, practice
from sagda.theory.setting import Constants, Setting, Steps


class Assessment(NamedTuple):
    """Step sizes under one reading of a theorem: its conditions and its bound."""

    steps: Steps
    reading: Reading
    checks: list[ConditionCheck]
    bound: Bound

    @property
    def holds(self) -> bool:
        """Whether every condition holds."""
        return all(check.slack.holds for check in self.checks)

    @property
    def binding(self) -> ConditionCheck:
        """The condition with the smallest margin."""
        return binding(self.checks)


class Target(NamedTuple):
    """The fewest rounds whose minimal bound is at most epsilon^2."""

    epsilon: float
    rounds: int
    samples: int  # of each client
    steps: Steps


class Advice(NamedTuple):
    """What the theorems say about the step sizes of a run, and what works."""

    method: str
    estimates: Estimates
    setting: Setting
    given: dict[Reading, Assessment]
    best: Assessment  # the rates that minimise the bound of the reading "proof"
    most_local_steps: int  # the largest K at which the best rates stay feasible
    remarks: list[str]
    target: Target | None = None
    practice: Practice | None = None


def steps_of(method: Method) -> Steps:
    """The step sizes of a method; schedules are refused."""
    local, server = method.arguments["local_lr"], method.arguments["server_lr"]
    if any(callable(rate) for rate in (local.x, local.y, server.x, server.y)):
        raise BadValue(
            "`local_lr` and `server_lr` must be numbers, because the theorems do not "
            "cover schedules."
        )
    return Steps(
        x_local=float(local.x),
        y_local=float(local.y),
        x_server=float(server.x),
        y_server=float(server.y),
    )


def advise(
    method: Method,
    problem: Problem,
    federation: Federation,
    *,
    rounds: int,
    cohort: int | None = None,
    batch_size: int | None = 1,
    seed: int = 0,
    epsilon: float | None = None,
    max_server_lr: float | None = None,
    estimates: Estimates | None = None,
    try_rates: bool = True,
    waiting: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    **options: Any,
) -> Advice:
    """Assess a method's step sizes and find better ones.

    Measures the constants, checks the conditions at the given step sizes, minimises the
    bound, and runs a short grid for step sizes that work.

    Args:
        method: one of the paper's, with the step sizes to assess.
        problem: the objective f.
        federation: the clients and their rows.
        rounds: T.
        cohort: m, or None for all clients.
        batch_size: rows per stochastic gradient, or None for all rows of a client.
        seed: seed of the measurements and of the short runs.
        epsilon: also find the fewest rounds until the bound is at most epsilon^2.
        max_server_lr: the largest server rate to advise (default: sqrt(mK)).
        estimates: the constants, if they are already measured.
        try_rates: whether to run the short grid.
        waiting: called with a sentence before each long step; its context ends with it.
        options: further options of `simulate` for the short runs.
    """
    name = method.name
    if name not in CONDITIONS:
        raise BadValue(
            f"`algorithm` must be one of {', '.join(CONDITIONS)}, which the paper's "
            f"theorems cover, got {name}."
        )
    steps = steps_of(method).check()
    clients = federation.clients
    K = int(method.arguments["local_steps"])
    setting = Setting(
        clients=clients, cohort=cohort or clients, local_steps=K, rounds=rounds
    ).check()
    if estimates is None:
        with waiting("measuring the constants"):
            estimates = estimate(problem, federation, batch_size=batch_size, seed=seed)
    c, target, tried = estimates.constants, None, None
    with waiting("solving for rates"):
        best = rates.best(name, c, setting, max_server_lr=max_server_lr)
        if epsilon is not None:
            target = reached(name, c, setting, epsilon, max_server_lr)
    if try_rates:
        options |= {"batch_size": batch_size, "seeds": seed}
        with waiting("trying rates"):
            tried = practice(
                method, problem, federation, c, setting, steps, best, **options
            )
    return Advice(
        method=name,
        estimates=estimates,
        setting=setting,
        given={r: assessed(name, c, setting, steps, r) for r in READINGS},
        best=assessed(name, c, setting, best, "proof"),
        most_local_steps=rates.most_local_steps(name, c, setting, best),
        remarks=remarks(name, c, setting, steps),
        target=target,
        practice=tried,
    )


def assessed(
    method: str, c: Constants, s: Setting, e: Steps, reading: Reading
) -> Assessment:
    """The conditions and the bound at these step sizes."""
    return Assessment(
        steps=e,
        reading=reading,
        checks=check_conditions(method, c, s, e, reading),
        bound=bound(method, c, s, e, reading),
    )


def reached(
    method: str, c: Constants, s: Setting, epsilon: float, max_server_lr: float | None
) -> Target:
    """The rounds, samples and step sizes that bring the bound to epsilon^2."""
    s, steps = rates.reach(method, c, s, epsilon, max_server_lr=max_server_lr)
    return Target(
        epsilon=epsilon, rounds=s.rounds, samples=samples(method, s), steps=steps
    )


def remarks(method: str, c: Constants, s: Setting, e: Steps) -> list[str]:
    """Sentences about what the theorems do not cover here."""
    sentences = caveats(method, s)
    need = 20 * c.kappa**2
    if e.ratio < need:
        sentences.append(
            f"The theorems need eta_y/eta_x above 20 kappa^2 = {need:.3g}, and this "
            f"run has {e.ratio:.3g}. The paper's own experiments use equal rates. The "
            "theorems never cover these, yet they work."
        )
    return sentences


def practice_facts(result: Practice) -> dict[str, Any]:
    """Short runs for JSON; `grad_phi_sq` is null if the run diverged."""

    def facts_of(tried: TriedRates) -> dict[str, Any]:
        error = tried.error if tried.error < float("inf") else None
        return {"rates": tried.steps._asdict(), "grad_phi_sq": error}

    facts = result._asdict()
    return facts | {key: facts_of(facts[key]) for key in ("best", "given", "provable")}


def assessment_facts(assessment: Assessment) -> dict[str, Any]:
    """An assessment for JSON."""
    return {
        "rates": assessment.steps._asdict(),
        "holds": assessment.holds,
        "binds": assessment.binding.condition.name,
        "conditions": [
            {"name": condition.name, "formula": condition.formula}
            | slack._asdict()
            | {"holds": slack.holds}
            for condition, slack in assessment.checks
        ],
        "bound": assessment.bound.terms,
    }


def as_facts(advice: Advice) -> dict[str, Any]:
    """All of the advice for JSON, as in `theory.json` and `sagda advise --json`."""
    given = {r: assessment_facts(at) for r, at in advice.given.items()}
    target = advice.target
    return {
        "method": advice.method,
        "constants": {
            name: {"symbol": SYMBOLS[name]} | constant._asdict()
            for name, constant in advice.estimates._asdict().items()
        },
        "setting": advice.setting._asdict(),
        "given": given,
        "best": assessment_facts(advice.best),
        "most_local_steps": advice.most_local_steps,
        "epsilon": target and target.epsilon,
        "rounds": target and target.rounds,
        "samples": target and target.samples,
        "rates_to_epsilon": target and target.steps._asdict(),
        "practice": advice.practice and practice_facts(advice.practice),
        "provable": not caveats(advice.method, advice.setting),
        "remarks": advice.remarks,
    }
