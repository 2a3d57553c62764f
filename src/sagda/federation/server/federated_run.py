"""A federated run from its first round to the farewell: who takes part, and when.

`FederatedRun` admits and removes members, and starts rounds and evaluations. Rounds are
computed in `server.rounds`. A run starts in `server.gathering`.
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

RETRY = 3.0  # seconds between two attempts at a round
LONG = 10  # rounds in a row without an answer, after which a warning names the site
PARTING = 30.0  # time limit of a farewell in seconds: nothing depends on its answers
GRACE = 30.0  # seconds for members to connect again after a restart of the server


class FederatedRun:
    """Runs a settled run until its last round is committed.

    Args:
        config: the configuration of the run, with one algorithm.
        options: the table `[federation]` of the server's file.
        settled: the result of `gathering.begin` or `gathering.resume`.
        transport: carries the letters.
        test: test rows, which the server scores at each evaluation. None: no test.
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
        # Sites that introduced themselves since this start of the server.
        self.present = set(settled.present)
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
        """Run all rounds, then send the farewell.

        If the server is killed, a new one resumes from the last commit. If the file
        `reset` exists, all control variates are reset first, and the file is removed.
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
            # An algorithm with an opening exchange is evaluated only after it.
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
        """Wait up to `GRACE` seconds until all members have introduced themselves.

        After a restart of the server, sites need some time to connect again.
        """
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
        """Add new sites, remove members that leave, and remove barred members."""
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
        """Make a site a member, or refuse it if its rows do not fit the terms."""
        width, most = self.terms.features, self.terms.problem.most_rows
        if why := unfit(site, width, self.options.max_rows, most):
            text = f"{site.name} {why}"
            self.notify(Event.REFUSED, name=site.name, code="census", text=text)
            return
        self.store.introduce(site)  # the commit in the next line writes it
        self.rounds.join(site.name, site.rows)
        self.notify(Event.JOINED, name=site.name)

    def remove(self, name: str, why: str) -> None:
        """Remove a member and its v_i, and notify the listener of the reason `why`."""
        self.rounds.remove(name)
        self.notify(Event.LEFT, name=name, why=why)

    def dismiss(self) -> None:
        """Remove each member with `max_absence` rounds in a row without an answer.

        Without `max_absence`, warn after `LONG` rounds only. The control variate of an
        absent member stays in V, the sum of all v_i.
        """
        limit = self.options.max_absence
        for name in self.rounds.protocol.absent(limit or LONG):
            if limit is None:
                self.notify(Event.ABSENT, name=name)
            elif len(self.rounds.state.members) > 1:
                self.remove(name, f"was removed after {limit} rounds without an answer")

    def farewell(self, names: list[str], reason: str) -> None:
        """Send sites the farewell: the model, and the end of their part in the run.

        Args:
            names: the sites.
            reason: "done" at the end of the run, "left" for sites that leave.
        """
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
        # The answers are not used, but the exchange runs only while they are read.
        for _ in rounds.send(letters, min(self.options.timeout, PARTING)):
            pass

    # Evaluation.

    def measure(self) -> None:
        """Evaluate the present point and commit a row of the history, if one is due.

        Nothing is done if the history has a row for this round, or if no site answers.
        """
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
        # Only the scores of the last model are calibrated, and only if all answers have
        # counts by score.
        known = [site for site in counts if site is not None]
        if t == self.config.rounds and len(known) == len(counts):
            record["calibration"] = calibration_of(known)
        rounds.note(record)
        self.notify(Event.MEASURED, row=row)

    def test_auc(self, test: Table) -> float:
        """Return the AUC of the present model over the test rows of the server."""
        problem, z = self.rounds.plan.problem, self.rounds.state.variables.z
        scaling = self.terms.scaling
        rows = test if scaling is None else scaled(test, scaling)
        if problem.uses_torch:
            scores = scored(problem, z.x, np.asarray(rows.features))
        else:
            scores = np.asarray(problem.score(z.x, rows))
        return auc(scores, np.asarray(test.label))


def rows_to_score(options: Options) -> Table | None:
    """Read the test rows that the option `test` names. None: there is no test."""
    if options.test is None:
        return None
    if options.test == "a9a":
        return load("a9a").test
    data = load(options.test, label=options.label, positive=options.positive)
    return Table(data.train.features, data.train.label)
