"""The process of the server: a federated run in a run folder, from start to results.

A finished federation has the same files as a simulated run (`docs/folder.md`), and the
server's folder `server`. The loop over the rounds is in `server.federated_run`.
"""

import contextlib
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from sagda import durable
from sagda.check import BadKind, BadValue
from sagda.core import Point
from sagda.federation.events import Event
from sagda.federation.protocol.letters import Introduction
from sagda.federation.server.audit import Audit
from sagda.federation.server.federated_run import FederatedRun, rows_to_score
from sagda.federation.server.gathering import NoClients, begin, resume
from sagda.federation.server.rounds import finite
from sagda.federation.server.status import StatusFile
from sagda.federation.server.store import holds_run
from sagda.federation.terms import read_settings, write_settings
from sagda.federation.transport import Connect
from sagda.runs import folder as run_folder
from sagda.runs.output import summary_of, write_run
from sagda.simulator.devices import keep_programs
from sagda.simulator.history import History

SERVER = "server"  # the name of the server's folder in a run folder
RESET = "reset"  # a file in the server's folder: if it exists, all v_i are reset once
NOBODY = 4  # the exit code if too few sites were connected


class FederatedOutcome(NamedTuple):
    """The result of a federated run, in the form that writes a simulated run."""

    history: History
    z: Point  # the last point (x, y), with an axis of one seed in front
    layout: str = "federation"
    compile_seconds: float = 0.0

    @property
    def diverged(self) -> dict[int, int]:
        """Return the last round by seed if the last point is not finite, else {}."""
        last = int(self.history.rounds[-1])
        return {} if finite(self.z) else {self.history.seeds[0]: last}


def run_federation(
    folder: Path,
    connect: Connect,
    *,
    name: str,
    config: Path | None = None,
) -> None:
    """Run the federation in a run folder, from the start or from the last commit.

    Args:
        folder: the run folder. Its config.toml describes the run.
        connect: makes the transport.
        name: the name of a new run. A resumed run has its name in its files.
        config: the server's file, from which config.toml is written if it is missing.
    """
    path = folder / "config.toml"
    if not path.exists() and config is not None:
        claim(folder, config)
    settings, options = read_settings(path)
    home = durable.private(folder / SERVER)
    with contextlib.ExitStack() as stack:
        lock_patiently(stack, home)
        keep_programs(home / "programs")
        status = StatusFile(home, settings.rounds, options.sites)
        audit = Audit(home)

        def notify(event: Event, **details: Any) -> None:
            audit(event, **details)
            status(event, **details)

        try:
            test = rows_to_score(options)
            transport = connect(options.timeout, notify)
            settled = (
                resume(home, settings)
                if holds_run(home)
                else begin(home, name, settings, options, transport, notify)
            )
            run = FederatedRun(settings, options, settled, transport, test, notify)
            run.run(home / RESET)
            write_results(folder, run)
        except NoClients as error:
            status.end(NOBODY, f"{error}; the same command resumes the run.")
            raise
        except (BadValue, BadKind) as error:
            status.end(2, str(error))
            raise
        status.end(0)


def lock_patiently(
    stack: contextlib.ExitStack, folder: Path, seconds: float = 30.0
) -> None:
    """Lock a folder until `stack` is closed.

    If another process has the lock, wait up to `seconds`: a killed server may need some
    time to end. Raises `BadValue` if the folder is locked after that.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return stack.enter_context(durable.lock(folder))
        except BadValue:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def claim(folder: Path, config: Path) -> None:
    """Make `folder` the run folder of the federation that the file `config` describes.

    Raises `BadValue` if the folder holds another run or other files.
    """
    text = write_settings(*read_settings(config))
    folder.mkdir(parents=True, exist_ok=True)
    run_folder.claim(folder, text, known=(SERVER, "sites"))


def write_results(folder: Path, run: FederatedRun) -> None:
    """Write history, model, recipe, summary and model card, as for a simulated run."""
    rows, seed = run.store.rows(), run.config.seed
    if not rows:
        return
    # Shape [1, rows], for one seed. A value that a row does not have is NaN.
    columns = {
        key: np.array([[row.get(key, float("nan")) for row in rows]])
        for key in dict.fromkeys(key for row in rows for key in row)
    }
    state, name = run.rounds.state, run.config.algorithms[0]
    # Files of simulated runs have an axis of seeds, so one of length 1 is added.
    z = jax.tree.map(lambda a: np.asarray(a)[None], state.variables.z)
    runs = {name: FederatedOutcome(History((seed,), columns), z)}
    recipe = run.terms.recipe("label", 1, run.store.calibration())
    methods = {name: run.rounds.plan.method}
    split = split_of(run.store.introductions, list(state.members))
    summary = summary_of(runs, state.round, split, methods)
    traffic = run.rounds.traffic
    summary["federation"] = {
        "run": state.run,
        "incarnation": state.incarnation,
        "epoch": state.epoch,
        "members": len(state.members),
        "refused": traffic.refused,
        "abandoned": traffic.lost,
        "framing_bytes": traffic.framing,
    }
    write_run(folder, runs, recipe=recipe, summary=summary)


def split_of(
    introductions: dict[str, Introduction], names: list[str]
) -> dict[str, Any]:
    """Return how the rows are split over the members, for the summary.

    Args:
        introductions: the introductions of sites, by name.
        names: the members.
    """
    sites = [introductions[name] for name in sorted(names)]
    lines = "".join(f"{site.name} {site.rows} {site.positives}\n" for site in sites)
    return {
        "hash": durable.digest(lines.encode())[:16],
        "clients": len(sites),
        "names": sorted(names),
        "smallest": min(site.rows for site in sites),
        "largest": max(site.rows for site in sites),
        "labels": {
            "-1": [site.rows - site.positives for site in sites],
            "1": [site.positives for site in sites],
        },
    }
