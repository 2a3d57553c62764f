"""Contestants: processes whose times per round are measured in turn.

A contestant runs for a short time, a *bout*. Then the next contestant runs. So a slow
hour of the machine affects all contestants equally.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

import machine
from children import Child, Failed

BOUT = 0.35  # seconds of one bout


@dataclass
class Contestant:
    """A program that is measured: its command, its process and its times."""

    name: str
    command: list[str]
    extra: dict[str, str] = field(default_factory=dict)  # environment variables
    variant: str = ""
    rounds: int | None = None  # per bout; None: the number that fills BOUT
    ready: dict = field(default_factory=dict)  # the first answer of the process
    times: list[float] = field(default_factory=list)  # seconds per round, by bout
    # By bout: the number of cores that other programs used before it.
    load: list[float] = field(default_factory=list)
    failure: str = ""  # why the contestant is excluded
    child: Child | None = None

    @property
    def title(self) -> str:
        return f"{self.name}, threads: {self.variant}" if self.variant else self.name

    def attempt(self, step: Callable) -> None:
        """Call `step(self)`. If it fails, exclude this contestant only."""
        if self.failure:
            return
        try:
            step(self)
        except Failed as failed:
            self.failure = str(failed)
            self.stop()

    def start(self) -> None:
        self.child = Child(self.command, self.extra)

    def await_ready(self) -> None:
        assert self.child
        self.ready = self.child.answer()

    def warm_up(self) -> None:
        """Find the number of rounds that take the time of a bout."""
        assert self.child
        if self.rounds is None:
            rounds, seconds = 2, self.child.seconds(2)
            while rounds * seconds < BOUT / 3:
                rounds *= 4
                seconds = self.child.seconds(rounds)
            self.rounds = max(2, math.ceil(BOUT / seconds))

    def bout(self) -> None:
        """Measure the time per round once."""
        assert self.child
        assert self.rounds
        self.load.append(machine.others())
        self.times.append(self.child.seconds(self.rounds))

    def stop(self) -> None:
        if self.child:
            self.child.stop()
            self.child = None

    def result(self) -> dict:
        """Return the median, smallest and largest time per round, and other facts."""
        return {
            "name": self.name,
            "variant": self.variant,
            "ms": 1e3 * statistics.median(self.times),
            "low_ms": 1e3 * min(self.times),
            "high_ms": 1e3 * max(self.times),
            "rounds": self.rounds,
            "bouts": len(self.times),
            "disturbed": sum(load > machine.DISTURBED for load in self.load),
            "layout": self.ready.get("layout"),
        }


def hold(contestants: list[Contestant], repeats: int) -> None:
    """Start all contestants, run `repeats` bouts of each in turn, and stop them."""
    # Slow contestants start last, so that they do not wait long for their first bout.
    slow = [one for one in contestants if one.rounds is not None]
    quick = [one for one in contestants if one.rounds is None]
    try:
        for some in (quick, slow):
            for one in some:
                one.attempt(Contestant.start)
            for one in some:
                one.attempt(Contestant.await_ready)
        for one in contestants:
            one.attempt(Contestant.warm_up)
        for _ in range(repeats):
            for one in contestants:
                one.attempt(Contestant.bout)
    finally:
        for one in contestants:
            one.stop()
