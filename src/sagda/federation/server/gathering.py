"""The start of a federated run: settle the terms with the first sites, or resume.

Either way the result is a `SettledRun`, from which `server.federated_run` runs rounds.
Sites that come later are admitted there.
"""

import time
from pathlib import Path
from typing import NamedTuple

from sagda.check import BadValue
from sagda.federation.events import Event, Notify
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
    state: ServerState
    store: ServerStore
    present: frozenset[str] = frozenset()  # sites introduced since this start
    leaving: tuple[str, ...] = ()  # sites that wanted to leave before the start


def gathered(
    config: Config, options: Options, transport: Transport, notify: Notify
) -> tuple[dict[str, Introduction], set[str]]:
    """The first sites by name, and the names of sites that wanted to leave instead.

    Raises `NoClients` if too few sites are connected after `options.wait` seconds.
    """
    introductions: dict[str, Introduction] = {}
    leaving: set[str] = set()
    started = time.monotonic()
    while len(introductions) < options.sites:
        for site in transport.arrivals(moments=bool(config.standardise)):
            # The first site decides the number of features, unless the options do.
            first = next(iter(introductions.values()), site)
            width = options.features or first.features
            if site.leaving:
                introductions.pop(site.name, None)
                leaving.add(site.name)
            elif why := unfit(site, width, options.max_rows) or without_moments(
                config, site
            ):
                # One unsuitable site must not stop the run for the others.
                text = f"{site.name} {why}"
                notify(Event.REFUSED, name=site.name, code="census", text=text)
            else:
                introductions[site.name] = site
        names = sorted(introductions)
        notify(Event.WAITING, names=names, sites=options.sites)
        if len(names) < options.sites:
            if time.monotonic() - started > options.wait:
                raise NoClients(
                    f"{len(names)} of {options.sites} sites connected within "
                    f"{options.wait:g} seconds"
                )
            time.sleep(POLL)
    return introductions, leaving


def without_moments(config: Config, site: Introduction) -> str | None:
    """Why the features of a site cannot be standardised, if they must and cannot."""
    if config.standardise and site.features > WIDEST:
        return f"has {site.features} features; `standardise` takes up to {WIDEST}"
    if config.standardise and not site.mean:
        return "did not send the moments that `standardise` needs"
    return None


def unfit(
    site: Introduction, width: int, max_rows: int, most: int | None = None
) -> str | None:
    """Why a site cannot take part at any time, if so; `most`: rows that a y allows."""
    if site.features != width:
        return f"has {site.features} features, the others {width}"
    if site.rows > max_rows:
        return f"has {site.rows} rows, above `max_rows`"
    if most is not None and site.rows > most:
        return f"has {site.rows} rows; the run takes up to {most} per site"
    return None


def begin(
    folder: Path,
    name: str,
    config: Config,
    options: Options,
    transport: Transport,
    notify: Notify,
) -> SettledRun:
    """A new run called `name`, once enough sites are connected."""
    introductions, leaving = gathered(config, options, transport, notify)
    terms = Terms.settle(config, list(introductions.values()))
    plan = terms.plan(name)
    store = ServerStore(folder, plan, terms.text)
    for site in introductions.values():
        store.introduce(site)
    return SettledRun(
        terms=terms,
        state=first_state(plan, introductions),
        store=store,
        present=frozenset(introductions),
        leaving=tuple(sorted(leaving)),
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
    store = ServerStore(folder, terms.plan(manifest.state.run), manifest.terms)
    return SettledRun(terms=terms, state=store.load(manifest), store=store)


def differences(then: Config, now: Config) -> list[str]:
    """The keys that differ, except `rounds`: a run may be made longer."""
    a, b = then.model_dump(), now.model_dump()
    return [key for key in a if a[key] != b[key] and key != "rounds"]
