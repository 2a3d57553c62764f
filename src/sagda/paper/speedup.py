"""Runs and slopes of `sagda reproduce speedup`: the corollaries' rates, measured.

The error is the mean of ||grad Phi(x_t)||^2 over all rounds, which the theorems bound.
The corollaries predict that this error falls as (mKT)^(-1/2) at their rates. `theorem`
compares runs with the bounds of the theorems, and `slopes` makes the page.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from sagda import durable
from sagda.data.datasets import load
from sagda.data.federation import Federation
from sagda.keys import generator
from sagda.paper.evidence import interval, unreadable
from sagda.paper.theorem import Trial, distant_case, errors_at, run_trial, sampling_case
from sagda.problems.auc import AUC
from sagda.problems.base import Problem
from sagda.problems.quadratic import Quadratic
from sagda.simulator.run import Progress
from sagda.theory import Setting, Steps, rates

SEEDS, QUICK_SEEDS = 8, 2
ROWS = 4000  # the number of rows of a9a, for any number of clients
CLIENTS, COHORT, LOCAL_STEPS = 40, 10, 4  # M, m and K, unless they are swept
METHODS = {
    "full": ("sagda-i", "sagda-ii", "fsgda"),
    "partial": ("sagda-i", "sagda-i all", "sagda-ii", "fsgda"),
}
OVER = ("m", "K", "T", "rounds")  # the quantities that are swept


class Bench(NamedTuple):
    """A problem on which slopes are measured."""

    rounds: int
    scale: float  # replaces the unnamed constants of the corollaries' rates
    # From the number of clients to a problem. f is the same for any number.
    make: Callable[[int], tuple[Problem, Federation]]


def quadratic(clients: int) -> tuple[Problem, Federation]:
    """Return a noisy quadratic problem. The f_i of some clients are not convex in x."""
    return Quadratic.make(
        clients=clients, samples=10, smoothness=2.0, mu=1.0, noise=2.0,
        heterogeneity=1.0, nonconvex_clients=True,
    )  # fmt: skip


def a9a(clients: int) -> tuple[Problem, Federation]:
    """Return AUC maximisation on rows of a9a that are sorted by label.

    So most clients have one class only.
    """
    table = load("a9a").train
    rows = generator(0, "speedup", "rows").permutation(len(table.label))[:ROWS]
    rows = rows[np.argsort(table.label[rows], kind="stable")]
    federation = Federation.of(table, rows, np.full(clients, ROWS // clients))
    return AUC.of(federation), federation


BENCHES = {"quadratic": Bench(2000, 0.3, quadratic), "a9a": Bench(1000, 0.1, a9a)}
# Many runs share a problem, so each is built once.
problem_of = cache(lambda bench, clients: BENCHES[bench].make(clients))


class Task(NamedTuple):
    """One run with all its seeds, for a slope or (bench "theorem") for a theorem."""

    bench: str
    method: str
    setting: Setting

    def __str__(self) -> str:
        M, m, K, T = self.setting
        return f"{self.bench} {self.method} M={M} m={m} K={K} T={T}"

    @property
    def work(self) -> float:
        """The expected work, approximately in local steps.

        The overhead of a round counts as 100 local steps.
        """
        _, m, K, T = self.setting
        return T * (m * K + 100)


class Line(NamedTuple):
    """A sweep of one method over one quantity, to which a slope is fitted."""

    bench: str
    clients: str  # "full" or "partial" participation
    method: str
    over: str  # the quantity, one of `OVER`
    settings: list[Setting]

    @property
    def runs(self) -> list[Task]:
        """The runs of the sweep, one for each setting."""
        return [Task(self.bench, self.method, s) for s in self.settings]

    @property
    def predicted(self) -> float:
        """The slope that the corollaries predict.

        It is the slope of log error in log mKT. If rounds are swept, it is the slope of
        log rounds in log 1/epsilon^2.
        """
        limited = self.method == "fsgda" and self.clients == "partial"
        if self.over == "rounds":
            return 2.0 if limited else 1.0
        return 0.0 if limited and self.over == "K" else -0.5


def lines(quick: bool) -> Iterator[Line]:
    """Return every sweep of the page.

    A quick sweep has two settings and a tenth of the rounds.
    """
    for name, clients, over in product(BENCHES, METHODS, OVER):
        base = Setting(
            clients=COHORT if clients == "full" else CLIENTS,
            cohort=COHORT,
            local_steps=LOCAL_STEPS,
            rounds=BENCHES[name].rounds,
        )
        settings = swept(over, clients, base)
        if quick:
            ends = (settings[0], settings[-1])
            settings = [s._replace(rounds=s.rounds // 10) for s in ends]
        for method in METHODS[clients]:
            yield Line(
                bench=name,
                clients=clients,
                method=method,
                over=over,
                settings=settings,
            )


def swept(over: str, clients: str, s: Setting) -> list[Setting]:
    """Return the settings of a sweep: `s` with several values of `over`."""
    if over == "m" and clients == "full":
        return [s._replace(clients=m, cohort=m) for m in (5, 10, 20, 40)]
    if over == "m":
        return [s._replace(cohort=m) for m in (5, 10, 20)]
    if over == "K":
        return [s._replace(local_steps=K) for K in (1, 4, 16, 64)]
    if over == "T":
        times = (0.25, 0.5, 1, 2)
        return [s._replace(rounds=int(s.rounds * factor)) for factor in times]
    # Corollary 1 needs O(1/eps^2) rounds if K grows with T, up to T = Omega(mK).
    longer = [s._replace(rounds=T) for T in (100, 200, 400, 800, 1600)]
    return [s._replace(local_steps=s.rounds // (5 * s.cohort)) for s in longer]


def errors_of_run(
    task: Task, seeds: int, progress: Callable[[Progress], None]
) -> list[float]:
    """Make one run and return the mean of ||grad Phi||^2 over rounds for each seed."""
    problem, federation = problem_of(task.bench, task.setting.clients)
    name = task.method.partition(" ")[0]
    steps = rates.schedule(name, task.setting, BENCHES[task.bench].scale)
    errors = errors_at(
        task.method, steps, task.setting, problem, federation, seeds=range(seeds),
        progress=progress,
    )  # fmt: skip
    return errors[:, :-1].mean(axis=1).tolist()


class Slope(NamedTuple):
    """The mean over seeds of a fitted slope, with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def fitted(line: Line, errors: np.ndarray) -> Slope:
    """Fit the slope of log error in log mKT.

    If rounds are swept, fit the slope of log rounds in log 1/epsilon^2, where epsilon^2
    is the error. `errors` has shape [settings, seeds].
    """
    if line.over == "rounds":
        sizes = [float(s.rounds) for s in line.settings]
    else:
        sizes = [float(s.cohort * s.local_steps * s.rounds) for s in line.settings]
    slopes = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    return Slope(*interval(-1 / slopes if line.over == "rounds" else slopes))


# Runs that are compared with the bounds of the theorems.


def theorems(quick: bool) -> list[Task]:
    """Return every run that is compared with a theorem.

    Quick runs have fewer rounds.
    """
    T = 10**4 if quick else 10**5
    every = Setting(clients=5, cohort=5, local_steps=1, rounds=T)
    one = Setting(clients=20, cohort=1, local_steps=1, rounds=10**4)
    trials = [
        (method, every._replace(local_steps=K))
        for K in (1, 5)
        for method in METHODS["full"]
    ]
    trials += [("sagda-ii", one._replace(rounds=r)) for r in sorted({10**4, T})]
    return [Task("theorem", method, setting) for method, setting in trials]


def try_theorem(
    task: Task, seeds: int, progress: Callable[[Progress], None] | None
) -> Trial:
    """Run the method of a theorem at rates that satisfy the theorem's conditions."""
    case, steps = distant_case(task.setting.clients), None
    if not task.setting.full:
        case = sampling_case(task.setting.clients)
        # With K = 1 only the effective rates matter. These satisfy the conditions.
        steps = Steps(x_local=2.2e-6, y_local=1.2e-4, x_server=1e3, y_server=1e3)
    return run_trial(
        task.method, case, task.setting, steps, seeds=seeds, progress=progress
    )


# The results, stored after every run.


@dataclass
class SpeedupEvidence:
    """The results of `sagda reproduce speedup`, stored in one file."""

    path: Path
    quick: bool
    # By the name of the task (`str(task)`): an error per seed, or a theorem's trial.
    errors: dict[str, list[float]] = field(default_factory=dict)
    trials: dict[str, Trial] = field(default_factory=dict)

    @property
    def seeds(self) -> int:
        """The number of seeds of every run."""
        return QUICK_SEEDS if self.quick else SEEDS

    @property
    def plan(self) -> str:
        """The options that the results depend on, as JSON, to compare with a file."""
        scales = {name: bench.scale for name, bench in BENCHES.items()}
        return json.dumps([self.seeds, ROWS, scales])

    def errors_of(self, line: Line) -> np.ndarray:
        """Return the errors of a sweep, [settings, seeds]."""
        return np.array([self.errors[str(run)] for run in line.runs])

    def missing(self) -> list[Task]:
        """Return the tasks that have no result yet, each once, in the page's order."""
        tasks = [run for line in lines(self.quick) for run in line.runs]
        tasks += theorems(self.quick)
        done = self.errors.keys() | self.trials.keys()
        return [task for task in dict.fromkeys(tasks) if str(task) not in done]

    def save(self) -> None:
        """Write all results to `path`."""
        trials = {name: trial._asdict() for name, trial in self.trials.items()}
        facts = {"plan": self.plan, "values": self.errors | trials}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(self.path, json.dumps(facts, indent=0) + "\n")


def read_evidence(path: Path, *, quick: bool, again: bool = False) -> SpeedupEvidence:
    """Read the stored results from `path`.

    The evidence is empty if there is no file, if the file has another plan, or if
    `again` is true.
    """
    evidence = SpeedupEvidence(path, quick)
    if again or not path.is_file():
        return evidence
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts["plan"] == evidence.plan:
            for name, value in facts["values"].items():
                if isinstance(value, dict):
                    evidence.trials[name] = Trial(**value)
                else:
                    evidence.errors[name] = value
    except (ValueError, KeyError, TypeError, AttributeError):
        raise unreadable(path) from None
    return evidence


def measure(
    task: Task,
    evidence: SpeedupEvidence,
    progress: Callable[[Progress], None],
) -> None:
    """Make the run of `task` and save its result with five significant digits."""
    digits = lambda value: float(f"{value:.5g}")
    if task.bench == "theorem":
        trial = try_theorem(task, evidence.seeds, progress)
        evidence.trials[str(task)] = jax.tree.map(digits, trial)
    else:
        errors = errors_of_run(task, evidence.seeds, progress)
        evidence.errors[str(task)] = jax.tree.map(digits, errors)
    evidence.save()
