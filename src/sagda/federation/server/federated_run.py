"""`FederatedRun`: a federation's run from its first site to the farewell."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sagda.algorithms.costs import PhaseCost, cost
from sagda.check import BadValue
from sagda.data.datasets import load
from sagda.data.federation import Table
from sagda.data.recipe import scaled
from sagda.federation.events import Event, Notify, nobody
from sagda.federation.plan import Plan, Specs, on_host
from sagda.federation.protocol.letters import Bye, Introduction, Letter
from sagda.federation.protocol.server import ServerState
from sagda.federation.server.evaluation import evaluate
from sagda.federation.server.rounds import FederatedRounds, first_state
from sagda.federation.server.store import ServerStore, parts_of
from sagda.federation.site import measure as assess
from sagda.federation.terms import WIDEST, Options, Terms
from sagda.federation.transport import Transport
from sagda.problems.metrics import auc
from sagda.runs.config import Config
from sagda.scoring.scorer import scored

RETRY = 3.0  # seconds between attempts at a round that failed
LONG = 10  # rounds asked in vain after which a site is warned about
PARTING = 30.0  # seconds for a farewell: nothing depends on its answer
GRACE = 30.0  # seconds for members to come back to a server that was started again


class NoClients(Exception):
    """Too few sites were there for too long; what was done is kept."""


class FederatedRun:
    """Leads a run.

    Args:
        config: what is run, with one algorithm.
        options: how the federation goes about it.
        journal: the server's folder; a run that it holds goes on.
        transport: carries the letters.
        name: of the run, if it is a new one.
        clock: seconds since the epoch.
        notify: is called with every event.
        sleep: waits for some seconds.
    """

    def __init__(
        self,
        config: Config,
        options: Options,
        journal: ServerStore,
        transport: Transport,
        *,
        name: str,
        clock: int,
        notify: Notify = nobody,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.config, self.options, self.journal = config, options, journal
        self.transport, self.name, self.clock = transport, name, clock
        self.notify, self.sleep = notify, sleep
        self.census: dict[str, Introduction] = {}
        self.gone: set[str] = set()  # who wanted to leave before the beginning
        self.here: set[str] = set()  # who has introduced itself since this start
        self.test = rows_to_score(options)

    def run(self, reset: Path | None = None) -> FederatedRounds:
        """All rounds; every commit is durable, so that a later call goes on from it.

        `reset`: a file that asks, while it is there, to set all variates back first.
        """
        server = self.resumed() if self.journal.exists else self.begun()
        self.gather(server)
        if self.gone:
            self.farewell(server, sorted(self.gone), "left")
        if reset is not None and reset.exists():
            server.records.append({"reset": server.book.epoch + 1})
            server.server.reset()
            reset.unlink()
            self.notify(Event.RESET, epoch=server.book.epoch)
        last = time.monotonic()
        while True:
            opened = server.book.opened or not server.algorithm.opening
            if opened:
                self.measure(server)
            if opened and server.book.round >= self.config.rounds:
                break
            self.admit(server)
            if server.attempt():
                last = time.monotonic()
                self.dismiss(server)
            elif time.monotonic() - last > self.options.wait:
                raise NoClients(
                    f"fewer than {self.options.min_clients} sites answered for "
                    f"{self.options.wait:g} seconds, in round {server.book.round}"
                )
            else:
                self.sleep(RETRY)
        self.farewell(server, list(server.book.members), "done")
        self.notify(Event.DONE, round=server.book.round)
        return server

    # Beginning.

    def begun(self) -> FederatedRounds:
        """A new run, once enough sites are there."""
        started = time.monotonic()
        moments = bool(self.config.standardise)
        while len(self.census) < self.options.sites:
            for site in self.transport.arrivals(moments=moments):
                self.count(site)
            self.notify(
                Event.WAITING, names=sorted(self.census), sites=self.options.sites
            )
            if time.monotonic() - started > self.options.wait:
                raise NoClients(
                    f"{len(self.census)} of {self.options.sites} sites came within "
                    f"{self.options.wait:g} seconds"
                )
            if len(self.census) < self.options.sites:
                self.sleep(0.25)
        terms = Terms.settle(self.config, list(self.census.values()))
        self.census = {name: site.counts for name, site in self.census.items()}
        plan = terms.plan(self.name)
        book = first_state(plan, self.census)
        return self.coordinator(terms, plan, book)

    def count(self, site: Introduction) -> None:
        """A site that came before the beginning; the first one decides the width."""
        width = next((s.features for s in self.census.values()), site.features)
        width = self.options.features or width
        if site.leaving:
            self.census.pop(site.name, None)
            self.here.discard(site.name)
            self.gone.add(site.name)
        elif why := self.unfit(site, width):
            text = f"{site.name} {why}"
            self.notify(Event.REFUSED, name=site.name, code="census", text=text)
        else:
            self.census[site.name] = site
            self.here.add(site.name)

    def unfit(self, site: Introduction, width: int) -> str | None:
        """Why a site cannot be there from the beginning, if so."""
        if site.features != width:
            return f"has {site.features} features, the others {width}"
        if site.rows > self.options.max_rows:
            return f"says it has {site.rows} rows, above `max_rows`"
        if self.config.standardise and width > WIDEST:
            return f"has {width} features, `standardise` takes up to {WIDEST}"
        if self.config.standardise and not site.mean:
            return "did not tell the moments that `standardise` needs"
        return None

    def resumed(self) -> FederatedRounds:
        """Where the journal ends."""
        found = self.journal.manifest()
        terms = Terms.read(found["terms"])
        changed = differences(terms.config, self.config)
        if changed:
            raise BadValue(
                f"{self.journal.folder} holds a run of another configuration, which "
                f"differs in {', '.join(changed)}; choose another folder with --out."
            )
        self.census = {
            name: Introduction(*site) for name, site in found["census"].items()
        }
        plan = terms.plan(found["run"])
        self.describe(terms, plan, first_state(plan, []))
        return self.coordinator(terms, plan, self.journal.load(found))

    def describe(self, terms: Terms, plan: Plan, book: ServerState) -> Specs:
        specs = Specs.of(plan)
        with jax.enable_x64(plan.float64):
            first = on_host(plan.algorithm.memory(plan.start()))
        parts = parts_of(plan, book, specs, first)
        self.journal.describe(terms.text, self.stored_census, parts)
        return specs

    @property
    def stored_census(self) -> dict[str, Any]:
        return {name: list(site) for name, site in self.census.items()}

    def coordinator(
        self, terms: Terms, plan: Plan, book: ServerState
    ) -> FederatedRounds:
        self.describe(terms, plan, first_state(plan, []))
        self.terms = terms
        self.rows = {name: site.rows for name, site in self.census.items()}
        z, size = plan.start(), plan.batch_size
        self.costs: tuple[PhaseCost, ...] = cost(plan.algorithm, z, batch_size=size)
        self.opening = cost(plan.algorithm, z, batch_size=size, opening=True)
        options = self.options
        return FederatedRounds(
            plan,
            book,
            self.transport,
            self.journal.save,
            terms=terms.text,
            rows=self.rows,
            clock=self.clock,
            min_clients=options.min_clients,
            bound=options.bound,
            filter=options.filter,
            faulty=options.faulty,
            factor=options.norm_factor,
            notify=self.notify,
        )

    # Who is there.

    def gather(self, server: FederatedRounds) -> None:
        """After a restart members introduce themselves again; wait a while for that."""
        started = time.monotonic()
        while time.monotonic() - started < GRACE:
            self.admit(server)
            if set(server.book.members) <= self.here:
                return
            self.notify(
                Event.WAITING, names=sorted(self.here), sites=len(server.book.members)
            )
            self.sleep(0.25)

    def admit(self, server: FederatedRounds) -> None:
        """Sites that came since the last round join, or leave; the barred go."""
        for name in self.transport.barred(list(server.book.members)):
            server.records.append({"left": name})
            server.server.leave(name)
            self.notify(Event.LEFT, name=name, why="was removed by the coordinator")
        for site in self.transport.arrivals():
            name = site.name
            known = name in server.book.members
            self.here.add(name)
            if site.leaving:
                if known:
                    server.records.append({"left": name})
                    server.server.leave(name)
                    self.notify(Event.LEFT, name=name)
                self.farewell(server, [name], "left")
            elif not known:
                why = self.terms.fits(site)
                if site.rows > self.options.max_rows:
                    why = f"says it has {site.rows} rows, above `max_rows`"
                if why:
                    self.notify(
                        Event.REFUSED, name=name, code="census", text=f"{name} {why}"
                    )
                    continue
                self.census[name], self.rows[name] = site.counts, site.rows
                self.journal.facts["census"] = self.stored_census
                server.server.join(name)
                self.notify(Event.JOINED, name=name)

    def dismiss(self, server: FederatedRounds) -> None:
        """Sites that were silent too long go, with their memories, if so configured."""
        limit = self.options.max_absence
        for name in server.server.absent(limit or LONG):
            if limit is None:
                self.notify(Event.ABSENT, name=name)
            elif len(server.book.members) > 1:
                server.records.append({"left": name})
                server.server.leave(name)
                self.notify(
                    Event.LEFT, name=name, why="was silent too long and is removed"
                )

    def farewell(self, server: FederatedRounds, names: list[str], reason: str) -> None:
        """Tell sites that it is over for them; the model is theirs, too."""
        book = server.book
        model = server.specs.point.pack(on_host(book.state.z))
        told = book.run, book.config, book.round, reason, model
        bye = Letter(Bye(*told, calibration_in(self.journal)), 0, server.terms)
        seconds = min(self.options.timeout, PARTING)
        for _ in server.exchange(dict.fromkeys(names, bye), seconds):
            pass

    # Measuring.

    def measure(self, server: FederatedRounds) -> None:
        """A row of the history, where one is due and not there yet."""
        t, every = server.book.round, self.config.eval_every
        if t % every and t != self.config.rounds:
            return
        if any(row["round"] == t for row in rows_of(self.journal)):
            return
        seen, counts = evaluate(server, self.options.share_losses)
        if not seen:
            return
        if self.test is not None:
            seen |= self.tested(server)
        row = server.ledger.columns(t, self.costs, self.opening) | seen
        noted: dict[str, Any] = {"row": row}
        if t == self.config.rounds and None not in counts:
            noted["calibration"] = assess.calibration_of(counts)
        server.note(noted)
        self.notify(Event.MEASURED, row=row)

    def tested(self, server: FederatedRounds) -> dict[str, float]:
        """The test rows that the server has itself."""
        problem, z = server.plan.problem, server.book.state.z
        assert self.test is not None
        scaling, rows = self.terms.scaling, self.test
        if scaling is not None:
            rows = scaled(rows, scaling)
        if problem.uses_torch:
            scores = scored(problem, z.x, np.asarray(rows.features))
        else:
            scores = np.asarray(problem.score(z.x, rows))
        return {"auc_test": auc(scores, np.asarray(self.test.label))}


def rows_of(journal: ServerStore) -> list[dict[str, Any]]:
    """The rows of the history that were committed."""
    return [record["row"] for record in journal.records() if "row" in record]


def calibration_in(journal: ServerStore) -> list[float] | None:
    """Of the last model, if it was measured."""
    rows = [record for record in journal.records() if "row" in record]
    return rows[-1].get("calibration") if rows else None


def differences(then: Config, now: Config) -> list[str]:
    """The keys that differ; a run may be made longer."""
    a, b = then.model_dump(), now.model_dump()
    return [key for key in a if a[key] != b[key] and key != "rounds"]


def rows_to_score(options: Options) -> Table | None:
    if options.test is None:
        return None
    if options.test == "a9a":
        return load("a9a").test
    found = load(options.test, label=options.label, positive=options.positive)
    return Table(found.train.features, found.train.label)
