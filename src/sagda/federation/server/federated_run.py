"""A federated run from its first round to the farewell: who takes part, and when.

`FederatedRun` admits and removes members, asks for rounds and evaluations, and waits.
How a round is computed is in `server.rounds`; how a run starts, in `server.gathering`.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np

from sagda.algorithms.costs import cost
from sagda.data.datasets import load
from sagda.data.federation import Table
from sagda.data.recipe import scaled
from sagda.federation.events import Event, Notify
from sagda.federation.plan import on_host
from sagda.federation.protocol.letters import Bye, Introduction, Letter
from sagda.federation.server.evaluation import calibration_of, evaluate
from sagda.federation.server.gathering import POLL, NoClients, SettledRun, unfit
from sagda.federation.server.rounds import FederatedRounds
from sagda.federation.terms import Options
from sagda.federation.transport import Transport
from sagda.problems.metrics import auc
from sagda.runs.config import Config
from sagda.scoring.scorer import scored

RETRY = 3.0  # seconds between attempts at a round that failed
LONG = 10  # rounds without an answer after which a warning names the site
PARTING = 30.0  # seconds for a farewell: nothing depends on its answers
GRACE = 30.0  # seconds for members to come back after a restart of the server


class FederatedRun:
    """Leads a settled run to its last round.

    Args:
        config: the run's configuration, with one algorithm.
        options: the table `[federation]`.
        settled: terms, state and store: from `gathering.begin` or `gathering.resume`.
        transport: carries the letters.
        test: rows that the server itself scores at each evaluation.
        notify: is called with every event.
    """

    def __init__(
        self,
        config: Config,
        options: Options,
        settled: SettledRun,
        transport: Transport,
        test: Table | None,
        notify: Notify,
    ):
        self.config, self.options, self.transport = config, options, transport
        self.terms, self.store, self.test = settled.terms, settled.store, test
        self.notify = notify
        self.present = set(settled.present)  # sites introduced since this start
        self.leaving = list(settled.leaving)
        plan = settled.store.plan
        z, size = plan.start(), plan.batch_size
        self.costs = cost(plan.algorithm, z, batch_size=size)
        self.opening = cost(plan.algorithm, z, batch_size=size, opening=True)
        introductions = self.store.introductions
        self.rounds = FederatedRounds(
            plan,
            settled.state,
            transport,
            self.store.save,
            terms=self.terms.text,
            rows={name: site.rows for name, site in introductions.items()},
            clock=int(time.time()),
            options=options,
            notify=notify,
        )

    def run(self, reset: Path) -> None:
        """Run all rounds. Every commit is durable, so that a later run resumes there.

        `reset`: if this file exists, reset all variates first and remove it.
        """
        rounds = self.rounds
        self.wait_for_members()
        if self.leaving:
            self.farewell(self.leaving, "left")
        if reset.exists():
            rounds.reset()
            reset.unlink()
            self.notify(Event.RESET, epoch=rounds.state.epoch)
        last = time.monotonic()
        while True:
            # Before the opening exchange there is no point to evaluate.
            opened = rounds.state.opened or not rounds.algorithm.opening
            if opened:
                self.measure()
            if opened and rounds.state.round >= self.config.rounds:
                break
            self.admit()
            if rounds.attempt():
                last = time.monotonic()
                self.dismiss()
            elif time.monotonic() - last > self.options.wait:
                raise NoClients(
                    f"fewer than {self.options.min_clients} sites answered for "
                    f"{self.options.wait:g} seconds, in round {rounds.state.round}"
                )
            else:
                time.sleep(RETRY)
        self.farewell(list(rounds.state.members), "done")
        self.notify(Event.DONE, round=rounds.state.round)

    # Who takes part.

    def wait_for_members(self) -> None:
        """After a restart, wait up to `GRACE` seconds for members to come back."""
        started = time.monotonic()
        while time.monotonic() - started < GRACE:
            self.admit()
            members = self.rounds.state.members
            if set(members) <= self.present:
                return
            names = sorted(self.present)
            self.notify(Event.WAITING, names=names, sites=len(members))
            time.sleep(POLL)

    def admit(self) -> None:
        """Let new sites join, let members leave, and remove barred members."""
        for name in self.transport.barred(list(self.rounds.state.members)):
            self.remove(name, "was removed by the coordinator")
        for site in self.transport.arrivals():
            self.present.add(site.name)
            member = site.name in self.rounds.state.members
            if site.leaving:
                if member:
                    self.remove(site.name, "left")
                self.farewell([site.name], "left")
            elif not member:
                self.join(site)

    def join(self, site: Introduction) -> None:
        """Make a site a member, unless it does not fit the terms."""
        width, most = self.terms.features, self.terms.problem.most_rows
        if why := unfit(site, width, self.options.max_rows, most):
            text = f"{site.name} {why}"
            self.notify(Event.REFUSED, name=site.name, code="census", text=text)
            return
        self.store.introduce(site)  # written by the commit that makes it a member
        self.rounds.join(site.name, site.rows)
        self.notify(Event.JOINED, name=site.name)

    def remove(self, name: str, why: str) -> None:
        """R13: remove a member together with its variate."""
        self.rounds.remove(name)
        self.notify(Event.LEFT, name=name, why=why)

    def dismiss(self) -> None:
        """Remove members after `max_absence` rounds without an answer.

        Without `max_absence`, only warn: a silent member's variate still counts in V.
        """
        limit = self.options.max_absence
        for name in self.rounds.protocol.absent(limit or LONG):
            if limit is None:
                self.notify(Event.ABSENT, name=name)
            elif len(self.rounds.state.members) > 1:
                self.remove(name, "was silent for too long and is removed")

    def farewell(self, names: list[str], reason: str) -> None:
        """Send sites the model, and tell them that the run is over for them."""
        rounds = self.rounds
        state = rounds.state
        note = Bye(
            run=state.run,
            config=state.config,
            round=state.round,
            reason=reason,
            model=rounds.specs.point.pack(on_host(state.variables.z)),
            calibration=self.store.calibration(),
        )
        letters = dict.fromkeys(names, Letter(note, 0, rounds.terms))
        # Nothing depends on the answers, but an exchange ends only once they are read.
        for _ in rounds.exchange(letters, min(self.options.timeout, PARTING)):
            pass

    # Evaluation.

    def measure(self) -> None:
        """Commit a row of the history, if one is due in this round and missing."""
        rounds = self.rounds
        t, every = rounds.state.round, self.config.eval_every
        if t % every and t != self.config.rounds:
            return
        if any(row["round"] == t for row in self.store.rows()):
            return
        columns, counts = evaluate(rounds, self.options.share_losses)
        if not columns:
            return
        if self.test is not None:
            columns |= {"auc_test": self.test_auc(self.test)}
        row = rounds.traffic.columns(t, self.costs, self.opening) | columns
        record: dict[str, Any] = {"row": row}
        # Only the last model is calibrated, on the rows of all sites that answered.
        known = [site for site in counts if site is not None]
        if t == self.config.rounds and len(known) == len(counts):
            record["calibration"] = calibration_of(known)
        rounds.note(record)
        self.notify(Event.MEASURED, row=row)

    def test_auc(self, test: Table) -> float:
        """The AUC over the server's own test rows."""
        problem, z = self.rounds.plan.problem, self.rounds.state.variables.z
        scaling = self.terms.scaling
        rows = test if scaling is None else scaled(test, scaling)
        if problem.uses_torch:
            scores = scored(problem, z.x, np.asarray(rows.features))
        else:
            scores = np.asarray(problem.score(z.x, rows))
        return auc(scores, np.asarray(test.label))


def rows_to_score(options: Options) -> Table | None:
    """The rows of the file that `test` names in the table `[federation]`."""
    if options.test is None:
        return None
    if options.test == "a9a":
        return load("a9a").test
    data = load(options.test, label=options.label, positive=options.positive)
    return Table(data.train.features, data.train.label)
