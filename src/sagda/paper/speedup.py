"""`reproduce speedup`: the corollaries' rates against what is measured.

The error is the theorems' left side, the mean of ||grad Phi(x_t)||^2 over all rounds,
at the corollaries' rates. By them it falls as (mKT)^(-1/2).
"""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sagda import durable
from sagda.check import BadValue
from sagda.data.datasets import load
from sagda.data.federation import Federation
from sagda.keys import generator
from sagda.paper.evidence import interval
from sagda.paper.theorem import Trial, built, distant, sampled, tried
from sagda.problems.auc import AUC
from sagda.problems.base import Problem
from sagda.problems.quadratic import Quadratic
from sagda.simulator.run import Progress
from sagda.simulator.simulate import simulate
from sagda.theory import Setting, Steps, rates

SEEDS, QUICK_SEEDS = 8, 2
ROWS = 4000  # of a9a, however many clients share them
CLIENTS, COHORT, LOCAL_STEPS = 40, 10, 4  # where they are not what is swept
METHODS = {
    "full": ("sagda-i", "sagda-ii", "fsgda"),
    "partial": ("sagda-i", "sagda-i all", "sagda-ii", "fsgda"),
}
OVER = ("m", "K", "T", "rounds")


class Bench(NamedTuple):
    """A problem that is the same however many clients share it."""

    rounds: int
    scale: float  # of the corollaries' rates, which name no constants
    make: Callable[[int], tuple[Problem, Federation]]


def quadratic(clients: int) -> tuple[Problem, Federation]:
    return Quadratic.make(
        clients=clients, samples=10, smoothness=2.0, mu=1.0, noise=2.0,
        heterogeneity=1.0, nonconvex_clients=True,
    )  # fmt: skip


def a9a(clients: int) -> tuple[Problem, Federation]:
    """Rows sorted by label, so that nearly every client has one class only."""
    table = load("a9a").train
    rows = generator(0, "speedup", "rows").permutation(len(table.label))[:ROWS]
    rows = rows[np.argsort(table.label[rows], kind="stable")]
    federation = Federation.of(table, rows, np.full(clients, ROWS // clients))
    return AUC.of(federation), federation


BENCHES = {"quadratic": Bench(2000, 0.3, quadratic), "a9a": Bench(1000, 0.1, a9a)}
made = cache(lambda bench, clients: BENCHES[bench].make(clients))


class SlopeRun(NamedTuple):
    """One run to make, with all its seeds."""

    bench: str
    method: str
    setting: Setting

    def __str__(self) -> str:
        M, m, K, T = self.setting
        return f"{self.bench} {self.method} M={M} m={m} K={K} T={T}"

    @property
    def work(self) -> float:
        """In rounds of one step, roughly; a round by itself is worth some steps."""
        _, m, K, T = self.setting
        return T * (m * K + 100)


class Line(NamedTuple):
    """A sweep of one method: the error at every setting."""

    bench: str
    clients: str  # full or partial
    method: str
    over: str
    settings: list[Setting]

    @property
    def places(self) -> list[SlopeRun]:
        return [SlopeRun(self.bench, self.method, s) for s in self.settings]

    @property
    def predicted(self) -> float:
        """By the corollaries: of the error, or of the rounds in 1/epsilon^2."""
        limited = self.method == "fsgda" and self.clients == "partial"
        if self.over == "rounds":
            return 2.0 if limited else 1.0
        return 0.0 if limited and self.over == "K" else -0.5


def lines(quick: bool) -> Iterator[Line]:
    for bench, (rounds, _, _) in BENCHES.items():
        for clients, methods in METHODS.items():
            M = COHORT if clients == "full" else CLIENTS
            for over in OVER:
                found = swept(over, clients, Setting(M, COHORT, LOCAL_STEPS, rounds))
                if quick:
                    ends = (found[0], found[-1])
                    found = [s._replace(rounds=s.rounds // 10) for s in ends]
                for method in methods:
                    yield Line(bench, clients, method, over, found)


def swept(over: str, clients: str, s: Setting) -> list[Setting]:
    if over == "m" and clients == "full":
        return [s._replace(clients=m, cohort=m) for m in (5, 10, 20, 40)]
    if over == "m":
        return [s._replace(cohort=m) for m in (5, 10, 20)]
    if over == "K":
        return [s._replace(local_steps=K) for K in (1, 4, 16, 64)]
    if over == "T":
        times = (0.25, 0.5, 1, 2)
        return [s._replace(rounds=int(s.rounds * factor)) for factor in times]
    # Corollary 1 has its O(1/eps^2) rounds where K grows with T, up to T = Omega(mK).
    some = [s._replace(rounds=T) for T in (100, 200, 400, 800, 1600)]
    return [s._replace(local_steps=s.rounds // (5 * s.cohort)) for s in some]


def error(
    place: SlopeRun, seeds: int, progress: Callable[[Progress], None]
) -> list[float]:
    """The mean of ||grad Phi||^2 over rounds, by seed."""
    problem, federation = made(place.bench, place.setting.clients)
    name = place.method.partition(" ")[0]
    steps = rates.schedule(name, place.setting, BENCHES[place.bench].scale)
    method = built(place.method, steps, place.setting.local_steps)
    run = simulate(
        method, problem, federation, rounds=place.setting.rounds,
        cohort=place.setting.cohort, batch_size=1, seeds=range(seeds),
        progress=progress,
    )  # fmt: skip
    return run.history["grad_phi_sq"][:, :-1].mean(axis=1).tolist()


class Slope(NamedTuple):
    """Of logarithms, fitted seed by seed, with the 95 % interval of their mean."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def fitted(line: Line, errors: np.ndarray) -> Slope:
    """Of the error in mKT; of rounds in 1/epsilon^2, where the error is epsilon^2.

    `errors` are [settings, seeds].
    """
    sizes = [float(s.cohort * s.local_steps * s.rounds) for s in line.settings]
    if line.over == "rounds":
        sizes = [float(s.rounds) for s in line.settings]
    slopes = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    return Slope(*interval(-1 / slopes if line.over == "rounds" else slopes))


# The theorems themselves.


class Theorem(NamedTuple):
    """A theorem to try: with all clients at its best rates, or the counter-example."""

    method: str
    setting: Setting
    counter: bool

    def __str__(self) -> str:
        M, m, K, T = self.setting
        return f"theorem {self.method} M={M} m={m} K={K} T={T}"

    @property
    def work(self) -> float:
        return self.setting.rounds * 100.0

    def run(self, seeds: int, progress: Callable[[Progress], None]) -> Trial:
        if not self.counter:
            case = distant(self.setting.clients)
            return tried(
                self.method, case, self.setting, seeds=seeds, progress=progress
            )
        # With K = 1 only the products of rates matter; these satisfy the conditions.
        steps = Steps(2.2e-6, 1.2e-4, 1e3, 1e3)
        case = sampled(self.setting.clients)
        return tried(
            self.method, case, self.setting, steps, seeds=seeds, progress=progress
        )


def theorems(quick: bool) -> list[Theorem]:
    T = 10**4 if quick else 10**5
    found = [
        Theorem(method, Setting(5, 5, K, T), False)
        for K in (1, 5)
        for method in METHODS["full"]
    ]
    rounds = (10**4,) if quick else (10**4, 10**5)
    return found + [Theorem("sagda-ii", Setting(20, 1, 1, T), True) for T in rounds]


# What was found, kept as it comes.


class Found(NamedTuple):
    """Errors and trials by the names of their places."""

    path: Path
    quick: bool
    values: dict[str, Any]

    @property
    def seeds(self) -> int:
        return QUICK_SEEDS if self.quick else SEEDS

    @classmethod
    def at(cls, path: Path, quick: bool, again: bool = False) -> "Found":
        """What is there already; of another plan, nothing is."""
        empty = cls(path, quick, {})
        if again or not path.is_file():
            return empty
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            same = kept["plan"] == empty.plan
            return cls(path, quick, kept["values"]) if same else empty
        except (ValueError, KeyError, TypeError):
            raise BadValue(
                f"{path} is not evidence; remove it to run it again."
            ) from None

    @property
    def plan(self) -> str:
        """What else a value depends on."""
        scales = {name: bench.scale for name, bench in BENCHES.items()}
        return json.dumps([self.seeds, ROWS, scales])

    def keep(self, name: str, value: Any) -> None:
        self.values[name] = value
        text = json.dumps({"plan": self.plan, "values": self.values}, indent=0)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(self.path, text + "\n")

    def of(self, line: Line) -> np.ndarray:
        """[settings, seeds]."""
        return np.array([self.values[str(place)] for place in line.places])

    @property
    def to_do(self) -> list[SlopeRun | Theorem]:
        """Every place once, in the order of the page, but for what is there."""
        every: dict[str, SlopeRun | Theorem] = {}
        for line in lines(self.quick):
            every |= {str(place): place for place in line.places}
        every |= {str(own): own for own in theorems(self.quick)}
        return [task for name, task in every.items() if name not in self.values]

    def run(
        self, task: SlopeRun | Theorem, progress: Callable[[Progress], None]
    ) -> None:
        digits = lambda value: float(f"{value:.5g}")
        if isinstance(task, SlopeRun):
            found = error(task, self.seeds, progress)
            self.keep(str(task), [digits(v) for v in found])
            return
        trial = task.run(self.seeds, progress)
        self.keep(
            str(task),
            {
                "rates": [digits(trial.steps.x), digits(trial.steps.y)],
                "printed": digits(trial.printed),
                "proof": digits(trial.proof),
                "begin": digits(trial.begin),
                "measured": [digits(v) for v in trial.measured],
            },
        )
