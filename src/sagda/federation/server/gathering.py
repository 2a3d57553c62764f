"""The start of a federated run: settle the terms with the first sites, or resume.

Either way the result is a `SettledRun`, from which `server.federated_run` runs rounds.
Sites that come later are admitted there.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sagda.check import BadValue
from sagda.federation.events import Event, Notify, nobody
from sagda.federation.plan import Plan
from sagda.federation.protocol.letters import Introduction
from sagda.federation.protocol.server import ServerState
from sagda.federation.server.rounds import first_state
from sagda.federation.server.store import Manifest, ServerStore
from sagda.federation.terms import WIDEST, Options, Terms
from sagda.federation.transport import Transport
from sagda.runs.config import Config

POLL = 0.25  # seconds between questions to the transport


class NoClients(Exception):
    """Too few sites were connected for too long; all committed rounds are kept."""


class SettledRun(NamedTuple):
    """A run whose terms are fixed, with its state and its store."""

    terms: Terms
    plan: Plan
    state: ServerState
    store: ServerStore
    present: frozenset[str] = frozenset()  # sites introduced since this start
    leaving: tuple[str, ...] = ()  # sites that wanted to leave before the start


class Gathering:
    """The sites that introduce themselves before a run begins.

    Args:
        config: the run's configuration.
        options: the table `[federation]`.
        transport: asks sites for their introductions.
        notify: is called with every event.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        config: Config,
        options: Options,
        transport: Transport,
        notify: Notify = nobody,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.config, self.options, self.transport = config, options, transport
        self.notify, self.sleep = notify, sleep
        self.introductions: dict[str, Introduction] = {}
        self.leaving: set[str] = set()

    def wait(self) -> None:
        """Wait for enough sites; raises `NoClients` after `wait` seconds."""
        started, wanted = time.monotonic(), self.options.sites
        moments = bool(self.config.standardise)
        while len(self.introductions) < wanted:
            for site in self.transport.arrivals(moments=moments):
                self.add(site)
            names = sorted(self.introductions)
            self.notify(Event.WAITING, names=names, sites=wanted)
            if time.monotonic() - started > self.options.wait:
                raise NoClients(
                    f"{len(names)} of {wanted} sites connected within "
                    f"{self.options.wait:g} seconds"
                )
            if len(names) < wanted:
                self.sleep(POLL)

    def add(self, site: Introduction) -> None:
        """Count a site in, or refuse it. The first site decides the number of features.

        One unsuitable site must not stop the run for the others.
        """
        widths = (known.features for known in self.introductions.values())
        width = self.options.features or next(widths, site.features)
        if site.leaving:
            self.introductions.pop(site.name, None)
            self.leaving.add(site.name)
        elif why := self.unfit(site, width):
            text = f"{site.name} {why}"
            self.notify(Event.REFUSED, name=site.name, code="census", text=text)
        else:
            self.introductions[site.name] = site

    def unfit(self, site: Introduction, width: int) -> str | None:
        """Why a site cannot take part from the start, if so."""
        if site.features != width:
            return f"has {site.features} features, the others {width}"
        if site.rows > self.options.max_rows:
            return f"has {site.rows} rows, above `max_rows`"
        if self.config.standardise and width > WIDEST:
            return f"has {width} features; `standardise` takes up to {WIDEST}"
        if self.config.standardise and not site.mean:
            return "did not send the moments that `standardise` needs"
        return None


def begin(folder: Path, gathering: Gathering, name: str) -> SettledRun:
    """A new run called `name`, once enough sites are connected."""
    gathering.wait()
    introductions = gathering.introductions
    terms = Terms.settle(gathering.config, list(introductions.values()))
    plan = terms.plan(name)
    store = ServerStore(folder, plan, terms.text)
    for site in introductions.values():
        store.introduce(site)
    return SettledRun(
        terms=terms,
        plan=plan,
        state=first_state(plan, introductions),
        store=store,
        present=frozenset(introductions),
        leaving=tuple(sorted(gathering.leaving)),
    )


def resume(folder: Path, config: Config) -> SettledRun:
    """The run that a server's folder holds, at its last commit."""
    manifest = Manifest.read(folder)
    terms = Terms.read(manifest.terms)
    if changed := differences(terms.config, config):
        raise BadValue(
            f"{folder} holds a run of another configuration, which differs in "
            f"{', '.join(changed)}; choose another folder with --out."
        )
    plan = terms.plan(manifest.run)
    store = ServerStore(folder, plan, manifest.terms)
    return SettledRun(terms=terms, plan=plan, state=store.load(manifest), store=store)


def differences(then: Config, now: Config) -> list[str]:
    """The keys that differ, except `rounds`: a run may be made longer."""
    a, b = then.model_dump(), now.model_dump()
    return [key for key in a if a[key] != b[key] and key != "rounds"]
