"""A federated run in its folder: the server's process from start to end."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors.numpy

from sagda import durable
from sagda.check import BadKind, BadValue
from sagda.core import Point
from sagda.federation.events import Event
from sagda.federation.protocol.letters import Introduction
from sagda.federation.server.audit import Audit
from sagda.federation.server.federated_run import (
    FederatedRun,
    NoClients,
    calibration_in,
    rows_of,
)
from sagda.federation.server.rounds import FederatedRounds
from sagda.federation.server.status import Status
from sagda.federation.server.store import ServerStore
from sagda.federation.terms import read_terms, write_terms
from sagda.federation.transport import Connect
from sagda.runs.card import write_card
from sagda.runs.folder import history_csv, summary_of
from sagda.runs.model_file import model_arrays
from sagda.scoring.scorer import RECIPE
from sagda.simulator.devices import keep_programs
from sagda.simulator.history import History

SERVER = "server"  # the server's own folder in a run's
RESET = "reset"  # a file in the server's folder: set all variates back, once
NOBODY = 4  # the exit code for too few clients


class FederatedOutcome(NamedTuple):
    """What a federated run leaves, in the shape that a simulated one has."""

    history: History
    z: Point  # with the one seed as a first axis
    layout: str = "federation"
    compile_seconds: float = 0.0

    @property
    def diverged(self) -> dict[int, int]:
        whole = all(np.isfinite(a).all() for a in jax.tree.leaves(self.z))
        last = int(self.history.rounds[-1])
        return {} if whole else {self.history.seeds[0]: last}


def run_federation(
    folder: Path,
    connect: Connect,
    *,
    name: str,
    config: Path | None = None,
) -> None:
    """Run what `folder/config.toml` says, going on from what is there.

    Args:
        folder: the run folder.
        connect: makes the transport.
        name: of the run, if it is a new one.
        config: the file to take where the folder has none yet.
    """
    path = folder / "config.toml"
    if not path.exists() and config is not None:
        claim(folder, config)
    chosen, options = read_terms(path)
    home = durable.private(folder / SERVER)
    with patient_lock(home):
        keep_programs(home / "programs")
        status = Status(home, chosen.rounds, options.sites)
        audit = Audit(home)

        def notify(event: Event, **details: Any) -> None:
            audit(event, **details)
            status(event, **details)

        try:
            conductor = FederatedRun(
                chosen,
                options,
                ServerStore(home),
                connect(options.timeout, notify),
                name=name,
                clock=int(time.time()),
                notify=notify,
            )
            server = conductor.run(home / RESET)
            write_results(folder, conductor, server)
        except NoClients as nobody:
            status.end(NOBODY, f"{nobody}; the same command goes on from there.")
            raise
        except (BadValue, BadKind) as mistake:
            status.end(2, str(mistake))
            raise
        status.end(0)


@contextlib.contextmanager
def patient_lock(folder: Path, seconds: float = 30.0) -> Iterator[None]:
    """The lock of a folder; a server that was killed may need a moment to be gone."""
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(durable.lock(folder))
                break
            except BadValue:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
        yield


def claim(folder: Path, config: Path) -> None:
    """Make `folder` this configuration's, or refuse it."""
    now = read_terms(config)
    path = folder / "config.toml"
    folder.mkdir(parents=True, exist_ok=True)
    if path.exists():
        then = read_terms(path)
        if then != now:
            pairs = zip(then, now, strict=True)
            told = [(a.model_dump(), b.model_dump()) for a, b in pairs]
            keys = [key for a, b in told for key in b if a[key] != b[key]]
            changed = ", ".join(keys)
            raise BadValue(
                f"{folder} holds a federation of another configuration, which differs "
                f"in {changed}; choose another folder with --out."
            )
        return
    known = (".lock", SERVER, "sites")
    if any(p.name not in known for p in folder.iterdir()):
        raise BadValue(f"{folder} holds other files; choose another folder with --out.")
    durable.write(path, write_terms(*now))


def write_results(
    folder: Path, conductor: FederatedRun, server: FederatedRounds
) -> None:
    """History, model, recipe, summary and model card, as a simulation leaves them."""
    rows, seed = rows_of(conductor.journal), conductor.config.seed
    if not rows:
        return
    columns = {
        key: np.array([[row.get(key, float("nan")) for row in rows]])
        for key in dict.fromkeys(key for row in rows for key in row)
    }
    z = jax.tree.map(lambda a: np.asarray(a)[None], server.book.state.z)
    name = conductor.config.algorithms[0]
    runs = {name: FederatedOutcome(History((seed,), columns), z)}
    durable.write(folder / "history.csv", history_csv(runs))
    model = safetensors.numpy.save(model_arrays(runs), {"schema": "1"})
    durable.write(folder / "model.safetensors", model)
    calibration = calibration_in(conductor.journal)
    recipe = conductor.terms.recipe("label", 1, calibration)
    durable.write(folder / RECIPE, durable.as_json(recipe))
    methods = {name: server.plan.method}
    split = split_of(conductor.census, list(server.book.members))
    summary = summary_of(runs, server.book.round, split, methods)
    summary["federation"] = facts(server)
    durable.write(folder / "summary.json", durable.as_json(summary))
    write_card(folder)


def split_of(census: dict[str, Introduction], names: list[str]) -> dict[str, Any]:
    """Who holds how much, as the sites said."""
    held = [census[name] for name in sorted(names)]
    positives = [site.positives for site in held]
    negatives = [site.rows - site.positives for site in held]
    said = "".join(f"{site.name} {site.rows} {site.positives}\n" for site in held)
    return {
        "hash": durable.digest(said.encode())[:16],
        "clients": len(held),
        "names": sorted(names),
        "smallest": min(site.rows for site in held),
        "largest": max(site.rows for site in held),
        "labels": {"-1": negatives, "1": positives},
    }


def facts(server: FederatedRounds) -> dict[str, Any]:
    book, ledger = server.book, server.ledger
    return {
        "run": book.run,
        "incarnation": book.incarnation,
        "epoch": book.epoch,
        "members": len(book.members),
        "refused": ledger.refused,
        "abandoned": ledger.lost,
        "framing_bytes": ledger.framing,
    }
