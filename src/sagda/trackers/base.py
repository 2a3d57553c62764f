"""`Tracker`: what all stores of a run's evaluations have in common."""

import abc
import time
from importlib.util import find_spec
from typing import Any, NamedTuple

from sagda import check
from sagda.check import BadValue
from sagda.core import Rates
from sagda.methods import Method
from sagda.simulator.history import History
from sagda.simulator.processes import is_first
from sagda.simulator.run import Progress

SECONDS = 1.0  # between writes: rounds can be faster than any store
PACKAGES = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
}


def check_extra(name: str) -> None:
    """Refuse a tracker that is not known, or whose packages are not here."""
    check.choice("track", name, PACKAGES)
    if any(find_spec(package) is None for package in PACKAGES[name]):
        raise BadValue(
            f"tracking with {name} needs the extra `{name}`: pip install "
            f"'sagda[{name}]'."
        )


class LoggedRow(NamedTuple):
    """One evaluation of one seed."""

    round: int
    values: dict[str, float]


class Tracker(abc.ABC):
    """A callback that hands every evaluation to a store, once; one name per seed."""

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}  # by method
        self.restart()

    def restart(self) -> None:
        self.now: Progress | None = None  # what is yet to be written
        self.names: list[str] = []  # as soon as something is written
        self.written, self.clock = 0, time.monotonic()

    def __enter__(self) -> "Tracker":
        self.restart()
        return self

    def __call__(self, now: Progress) -> None:
        if not is_first():
            return
        self.now = now
        if time.monotonic() - self.clock >= SECONDS:
            self.write(now)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self.now is not None:
                self.write(self.now)
        finally:
            self.close(finished=kind is None)
            self.restart()

    def write(self, now: Progress) -> None:
        """What is new; at first that is the whole history, also of a resumed run."""
        self.now = None  # a store that fails is not asked again
        if not self.names:
            lanes = list(zip(now.methods, now.history.seeds, strict=True))
            names = [f"{self.label(m)}/seed-{seed}" for m, seed in lanes]
            for name, (method, seed) in zip(names, lanes, strict=True):
                self.begin(name, parameters(now, method, seed))
            self.names = names
        for i, name in enumerate(self.names):
            self.log(name, rows(now.history, i, self.written))
        self.written, self.clock = len(now.history.rounds), time.monotonic()

    def label(self, method: Method) -> str:
        """The method's name, with a number where other rates have it already."""
        text, start = repr(method), f"{method.factory.__name__}("
        if text not in self.labels:
            others = sum(known.startswith(start) for known in self.labels)
            self.labels[text] = method.name + (f"-{others + 1}" if others else "")
        return self.labels[text]

    @abc.abstractmethod
    def begin(self, name: str, parameters: dict[str, Any]) -> None:
        """Open a run of the store, with the hyperparameters."""

    @abc.abstractmethod
    def log(self, name: str, rows: list[LoggedRow]) -> None:
        """Keep rows that were not there before."""

    @abc.abstractmethod
    def close(self, finished: bool) -> None:
        """Close all of them; `finished` unless an exception ended the run."""


def parameters(now: Progress, method: Method, seed: int) -> dict[str, Any]:
    """Hyperparameters as numbers where they are, rates as halves, the rest as texts."""
    out: dict[str, Any] = {"method": method.name, "seed": seed, "rounds": now.rounds}
    for key, value in method.arguments.items():
        if isinstance(value, Rates):
            out |= {f"{key}.x": value.x, f"{key}.y": value.y}
        else:
            out[key] = value
    known = ("method", "seeds")
    out |= {key: text for key, text in now.setting.items() if key not in known}
    plain = lambda v: v if isinstance(v, bool | int | float) else str(v)
    return {key: plain(value) for key, value in out.items()}


def rows(history: History, i: int, first: int) -> list[LoggedRow]:
    """The i-th seed's rows from the `first` on; the round is the step, not a value."""
    columns = {name: c[i] for name, c in history.columns.items() if name != "round"}
    return [
        LoggedRow(
            int(history.rounds[j]), {name: float(c[j]) for name, c in columns.items()}
        )
        for j in range(first, len(history.rounds))
    ]
