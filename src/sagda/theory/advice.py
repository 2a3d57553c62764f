"""Step-size advice for a method on a problem, from the theorems and from short runs.

`advise` does the whole computation. `as_facts` converts the advice to JSON. This module
does not print: see `sagda.report.terminal_theory`.
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
    """The conditions and the bound of a theorem at some step sizes, under one reading.

    `conditions` explains the two readings.
    """

    steps: Steps
    reading: Reading
    checks: list[ConditionCheck]
    bound: Bound

    @property
    def holds(self) -> bool:
        """True if every condition holds."""
        return all(check.slack.holds for check in self.checks)

    @property
    def binding(self) -> ConditionCheck:
        """The condition with the smallest margin."""
        return binding(self.checks)


class Target(NamedTuple):
    """The fewest rounds for which the smallest possible bound is at most epsilon^2."""

    epsilon: float
    rounds: int
    samples: int  # stochastic gradients of each client
    steps: Steps  # the step sizes with the smallest bound


class Advice(NamedTuple):
    """An assessment of the step sizes of a run, with better ones to use instead."""

    method: str
    estimates: Estimates
    setting: Setting
    given: dict[Reading, Assessment]  # of the step sizes of the run
    best: Assessment  # of the rates that minimise the bound of the reading "proof"
    most_local_steps: int  # the largest K at which the best rates stay feasible
    remarks: list[str]
    target: Target | None = None  # None: no epsilon was given
    practice: Practice | None = None  # None: no short runs were made


def steps_of(method: Method) -> Steps:
    """Return the step sizes of `method`. Raise `BadValue` if one is a schedule."""
    local, server = method.arguments["local_lr"], method.arguments["server_lr"]
    if any(callable(rate) for rate in (local.x, local.y, server.x, server.y)):
        raise BadValue(
            "`local_lr` and `server_lr` must be numbers, got a schedule: the theorems "
            "cover constant rates only; give numbers."
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
    """Assess the step sizes of a method and find better ones.

    Measures the constants of the problem and checks the conditions at the given step
    sizes. Then minimises the bound, and tries a grid of step sizes in short runs.

    Args:
        method: one of the paper's algorithms, with the step sizes to assess.
        problem: the objective f.
        federation: the clients and their rows.
        rounds: T, the number of rounds.
        cohort: m, the number of clients per round, or None for all clients.
        batch_size: rows per stochastic gradient, or None for all rows of a client.
        seed: seed of the measurements and of the short runs.
        epsilon: if given, also find the fewest rounds that bring the bound to
            epsilon^2.
        max_server_lr: the largest server rate to advise (default: sqrt(mK)).
        estimates: the constants, if they are already measured.
        try_rates: whether to try a grid of step sizes in short runs.
        waiting: called with a description of each long step. It returns a context
            manager, inside which the step runs.
        options: further options of `simulate` for the short runs.
    """
    name = method.name
    if name not in CONDITIONS:
        raise BadValue(
            f"`algorithm` must be one of {', '.join(CONDITIONS)}, got {name}: the "
            "paper's theorems cover no others."
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
    """Return the assessment of the step sizes `e` under one reading."""
    return Assessment(
        steps=e,
        reading=reading,
        checks=check_conditions(method, c, s, e, reading),
        bound=bound(method, c, s, e, reading),
    )


def reached(
    method: str, c: Constants, s: Setting, epsilon: float, max_server_lr: float | None
) -> Target:
    """Return the rounds, samples and step sizes that bring the bound to epsilon^2."""
    s, steps = rates.reach(method, c, s, epsilon, max_server_lr=max_server_lr)
    return Target(
        epsilon=epsilon, rounds=s.rounds, samples=samples(method, s), steps=steps
    )


def remarks(method: str, c: Constants, s: Setting, e: Steps) -> list[str]:
    """Return one sentence for each way in which the theorems do not cover this run."""
    sentences = caveats(method, s)
    need = 20 * c.kappa**2
    if e.ratio < need:
        sentences.append(
            f"The theorems need eta_y/eta_x above 20 kappa^2 = {need:.3g}, and this "
            f"run has {e.ratio:.3g}. The experiments of the paper use equal rates for "
            "x and y. The theorems never cover equal rates, but such rates work."
        )
    return sentences


def practice_facts(result: Practice) -> dict[str, Any]:
    """Return the result of the short runs for JSON.

    `grad_phi_sq`, the error of a run, is null if the run diverged.
    """

    def facts_of(tried: TriedRates) -> dict[str, Any]:
        error = tried.error if tried.error < float("inf") else None
        return {"rates": tried.steps._asdict(), "grad_phi_sq": error}

    facts = result._asdict()
    return facts | {key: facts_of(facts[key]) for key in ("best", "given", "provable")}


def assessment_facts(assessment: Assessment) -> dict[str, Any]:
    """Return an assessment for JSON."""
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
    """Return the advice for JSON, as in `theory.json` and in `sagda advise --json`."""
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
