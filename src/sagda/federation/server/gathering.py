"""The start of a federated run: settle the terms with the first sites, or resume.

`begin` starts a new run and `resume` continues a stored one. Both return a
`SettledRun`, with which `server.federated_run` runs the rounds. Sites that connect
later are admitted in `server.federated_run`.
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

POLL = 0.25  # seconds between calls of the transport for new sites


class NoClients(Exception):
    """Raised if too few sites were connected for too long. The files stay valid."""


class SettledRun(NamedTuple):
    """A run whose terms are fixed, with its state and its files."""

    terms: Terms
    state: ServerState
    store: ServerStore
    # Sites that introduced themselves since this start of the server.
    present: frozenset[str] = frozenset()
    # Sites that asked to leave before round 0.
    leaving: tuple[str, ...] = ()


def gathered(
    config: Config, options: Options, transport: Transport, notify: Notify
) -> tuple[dict[str, Introduction], set[str]]:
    """Wait for `options.sites` suitable sites, and return their introductions by name.

    The second result has the names of sites that asked to leave. Raises `NoClients` if
    too few sites are connected after `options.wait` seconds.
    """
    introductions: dict[str, Introduction] = {}
    leaving: set[str] = set()
    started = time.monotonic()
    while len(introductions) < options.sites:
        for site in transport.arrivals(moments=bool(config.standardise)):
            # All sites must have the features of the first one, or of the options.
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
                    f"only {len(names)} of {options.sites} sites connected within "
                    f"{options.wait:g} seconds"
                )
            time.sleep(POLL)
    return introductions, leaving


def without_moments(config: Config, site: Introduction) -> str | None:
    """Return why the features of a site cannot be standardised; None if they can.

    Also returns None if the configuration does not standardise features.
    """
    if config.standardise and site.features > WIDEST:
        return f"has {site.features} features; `standardise` takes up to {WIDEST}"
    if config.standardise and not site.mean:
        return "did not send mean and squares of each feature, for `standardise`"
    return None


def unfit(
    site: Introduction, width: int, max_rows: int, most: int | None = None
) -> str | None:
    """Return why a site cannot take part in a run; None if it can.

    Args:
        site: the introduction of the site.
        width: the number of features of the run.
        max_rows: the largest number of rows of a site in the options.
        most: the largest number of rows of a site that the problem allows, if limited.
    """
    if site.features != width:
        return f"has {site.features} features; the run needs {width}"
    if site.rows > max_rows:
        return f"has {site.rows} rows; `max_rows` allows {max_rows}"
    if most is not None and site.rows > most:
        return f"has {site.rows} rows; the problem allows up to {most} per site"
    return None


def begin(
    folder: Path,
    name: str,
    config: Config,
    options: Options,
    transport: Transport,
    notify: Notify,
) -> SettledRun:
    """Wait for enough sites, and return a new run called `name`."""
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
    """Return the run in a server's folder, with the state of its last commit.

    Raises `BadValue` if `config` is not the configuration of that run.
    """
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
    """Return the keys with different values, except `rounds`: runs may be extended."""
    a, b = then.model_dump(), now.model_dump()
    return [key for key in a if a[key] != b[key] and key != "rounds"]
