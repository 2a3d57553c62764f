"""`Tracker`: a callback that writes each evaluation of a run to a store, once.

A tracker opens one run in its store for each method and seed. A subclass says how to
open it (`begin`), write rows (`log`) and close it (`close`). This class decides when to
write and which rows are new. It does not stop runs: see `early_stop.py`.
"""

import abc
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from sagda.check import BadValue
from sagda.core import Rates
from sagda.methods import Method
from sagda.simulator.history import History
from sagda.simulator.processes import is_first
from sagda.simulator.run import Progress

SECONDS = 1.0  # between writes, because rounds can be faster than any store


class LoggedRow(NamedTuple):
    """One evaluation of one seed."""

    round: int
    values: dict[str, float]


class Tracker(abc.ABC):
    """A callback that writes each evaluation to a store, under one name per seed."""

    extra: ClassVar[str] = ""  # the extra of `sagda` that installs `packages`
    packages: ClassVar[tuple[str, ...]] = ()  # that `begin`, `log` and `close` import

    @classmethod
    @abc.abstractmethod
    def in_folder(cls, folder: Path, key: str) -> Self:
        """The tracker that `sagda run --track` uses for a run folder.

        `key` is the same text whenever this configuration runs in this folder. A store
        can use it to find what it logged before an interruption.
        """

    @abc.abstractmethod
    def begin(self, name: str, parameters: dict[str, Any]) -> None:
        """Open the run `name` in the store and write its hyperparameters."""

    @abc.abstractmethod
    def log(self, name: str, rows: list[LoggedRow]) -> None:
        """Add rows to the run `name`. They are new since the last call."""

    @abc.abstractmethod
    def close(self, finished: bool) -> None:
        """Close all runs; `finished` is False if an exception ended them."""

    @classmethod
    def check_installed(cls) -> None:
        """Raise `BadValue` if a package of this tracker is missing."""
        if any(find_spec(package) is None for package in cls.packages):
            raise BadValue(
                f"tracking with {cls.extra} needs the extra `{cls.extra}`: pip install "
                f"'sagda[{cls.extra}]'."
            )

    def __init__(self) -> None:
        self.check_installed()
        self.labels: dict[str, str] = {}  # by the text of a method
        self.restart()

    def restart(self) -> None:
        """Forget the last run, so that the tracker can follow another one."""
        self.unwritten: Progress | None = None
        self.names: list[str] = []  # of the store's runs; empty until the first write
        self.written, self.clock = 0, time.monotonic()

    def __enter__(self) -> Self:
        self.restart()
        return self

    def __call__(self, now: Progress) -> None:
        if not is_first():
            return
        self.unwritten = now
        if time.monotonic() - self.clock >= SECONDS:
            self.write(now)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self.unwritten is not None:
                self.write(self.unwritten)
        finally:
            self.close(finished=kind is None)

    def write(self, now: Progress) -> None:
        """Write the new rows. The first time these are all rows of the history."""
        self.unwritten = None  # if the store fails, it is not asked a second time
        if not self.names:
            runs = list(zip(now.methods, now.history.seeds, strict=True))
            names = [f"{self.label(method)}/seed-{seed}" for method, seed in runs]
            for name, (method, seed) in zip(names, runs, strict=True):
                self.begin(name, parameters(now, method, seed))
            self.names = names
        for i, name in enumerate(self.names):
            self.log(name, rows(now.history, i, self.written))
        self.written, self.clock = len(now.history.rounds), time.monotonic()

    def label(self, method: Method) -> str:
        """The method's name, numbered if the same algorithm runs with other rates."""
        text, start = repr(method), f"{method.factory.__name__}("
        if text not in self.labels:
            others = sum(known.startswith(start) for known in self.labels)
            self.labels[text] = method.name + (f"-{others + 1}" if others else "")
        return self.labels[text]


def parameters(now: Progress, method: Method, seed: int) -> dict[str, Any]:
    """The hyperparameters: rates as `.x` and `.y`, and what is not a number as text."""
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
    """The i-th seed's rows from index `first`; `round` is the step, not a value."""
    columns = {name: c[i] for name, c in history.columns.items() if name != "round"}
    return [
        LoggedRow(
            int(history.rounds[j]), {name: float(c[j]) for name, c in columns.items()}
        )
        for j in range(first, len(history.rounds))
    ]
