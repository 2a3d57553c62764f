"""`Tracker`: base class of callbacks that write each evaluation to a store, once.

A store is a place outside the run folder's history, such as TensorBoard or MLflow. A
tracker opens one run in its store for each method and seed. A subclass defines how to
open a run (`begin`), add rows (`log`) and close all runs (`close`). The base class
decides when to write and which rows are new. Trackers do not stop runs: see
`early_stop.py`.
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

# The least number of seconds between two writes. Rounds can be faster than a store.
SECONDS = 1.0


class LoggedRow(NamedTuple):
    """One evaluation of one seed: the round, and the value of each column."""

    round: int
    values: dict[str, float]


class Tracker(abc.ABC):
    """A callback that writes each evaluation to a store, one stored run per seed."""

    # The packages that `begin`, `log` and `close` import, and the extra of `sagda`
    # that installs these packages.
    extra: ClassVar[str] = ""
    packages: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abc.abstractmethod
    def in_folder(cls, folder: Path, key: str) -> Self:
        """Return the tracker that `sagda run --track` uses for the run folder `folder`.

        `key` identifies the configuration and the folder. It does not change when a run
        resumes. A store can use `key` to find the rows logged before an interruption.
        """

    @abc.abstractmethod
    def begin(self, name: str, parameters: dict[str, Any]) -> None:
        """Open the run `name` in the store and write its hyperparameters there."""

    @abc.abstractmethod
    def log(self, name: str, rows: list[LoggedRow]) -> None:
        """Add rows to the run `name`. All of them are new since the last call."""

    @abc.abstractmethod
    def close(self, finished: bool) -> None:
        """Close all runs. `finished` is False if an exception ended them."""

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
        self.labels: dict[str, str] = {}  # names in the store, by `repr(method)`
        self.restart()

    def restart(self) -> None:
        """Forget the last run, so that the tracker can be used for another run."""
        self.unwritten: Progress | None = None
        # The names of the runs in the store. They are set at the first write.
        self.names: list[str] = []
        # The number of evaluations written, and the time of the last write.
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
        """Write the rows that are new. The first call writes the whole history."""
        self.unwritten = None  # so that `__exit__` does not retry a write that failed
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
        """Return the name of `method` in the store.

        If the same algorithm already runs with other parameters, a number is added.
        """
        text, start = repr(method), f"{method.factory.__name__}("
        if text not in self.labels:
            others = sum(known.startswith(start) for known in self.labels)
            self.labels[text] = method.name + (f"-{others + 1}" if others else "")
        return self.labels[text]


def parameters(now: Progress, method: Method, seed: int) -> dict[str, Any]:
    """Return the hyperparameters of one seed, each a number or a text.

    A pair of rates becomes two entries that end in `.x` and `.y`.
    """
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
    """Return the rows of the i-th seed, beginning with evaluation number `first`.

    The column `round` becomes the field `round` of a row, not one of its values.
    """
    columns = {name: c[i] for name, c in history.columns.items() if name != "round"}
    return [
        LoggedRow(
            int(history.rounds[j]), {name: float(c[j]) for name, c in columns.items()}
        )
        for j in range(first, len(history.rounds))
    ]
