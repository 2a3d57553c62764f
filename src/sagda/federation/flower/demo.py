"""`sagda federation-demo`: a server and its sites as real processes on this machine.

It runs the commands that a user would type, with keys and TLS, and watches the
processes. For a federation inside one process, see `tests/support.py`.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from sagda import network
from sagda.data.datasets import load
from sagda.data.partition import partition
from sagda.federation.flower.processes import Process
from sagda.federation.flower.superlink import RunEnd, Show
from sagda.federation.server.process import SERVER
from sagda.federation.server.status import read_status
from sagda.federation.trust.authority import Keys
from sagda.federation.trust.site_keys import make_site

SETTINGS: dict[str, Any] = {
    "problem": "auc",
    "eval_every": 2,
    "local_steps": 20,
    "batch_size": 50,
    "local_lr": 0.1,
    "server_lr": 1.0,
}
ROWS = 1000  # per site
DAYS = 30  # for which the keys are valid
PATIENCE = 40.0  # seconds to end: each process first ends the ones that it started


def prepare(folder: Path, algorithm: str, sites: int, rounds: int) -> dict[str, Path]:
    """Write the server's configuration, and a file of rows for each site.

    Returns the files of rows by site name. The rows come from the data set a9a. Sites
    differ in their share of positive labels.
    """
    federation = partition(
        load("a9a").train, "dirichlet", clients=sites, samples=ROWS, alpha=2.0, seed=0
    )
    data, home = federation.data, folder / "sites"
    files = {f"site-{i}": home / f"site-{i}" / "rows.npz" for i in range(sites)}
    for start, size, file in zip(
        federation.start, federation.size, files.values(), strict=True
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = slice(start, start + size)
        np.savez(file, features=data.features[rows], label=data.label[rows])
    config = SETTINGS | {"algorithms": [algorithm], "rounds": rounds}
    config["federation"] = {"sites": sites, "test": "a9a"}
    (home / "federation.toml").write_text(tomli_w.dumps(config))
    return files


def demo(
    folder: Path,
    files: dict[str, Path],
    show: Show,
    stop: Callable[[], bool],
    site_options: Sequence[str] = (),
) -> RunEnd:
    """Start a server and its sites, and wait for the server or a failing site to end.

    Returns how the run ended. The sentence in it is the last line that the ended
    process wrote to its log.

    Args:
        folder: the run folder, with the files that `prepare` wrote.
        files: the file of rows of each site, by site name.
        show: called with the server's status four times a second.
        stop: called equally often; the demonstration stops when it returns True.
        site_options: further options of every `sagda join`.
    """
    port, home = network.free_port(), folder / "sites"
    keys = Keys(home / "keys")
    keys.init([], DAYS)
    for name in files:
        _, public = make_site(home / name, name, DAYS)
        keys.admit(public, False)
    sagda = [sys.executable, "-m", "sagda.commands.main"]
    with contextlib.ExitStack() as stack:

        def start(place: Path, command: str, *arguments: str) -> Process:
            # The stack stops the sites first and then the server, as a user would.
            log = place / f"{command}.log"
            process = Process([*sagda, command, *arguments], place / "flower", log)
            stack.callback(process.stop, PATIENCE)
            return process

        server = start(
            home,
            "serve",
            str(home / "federation.toml"),
            *("--out", str(folder), "--port", str(port), "--keys", str(keys.folder)),
        )
        sites = [
            start(
                home / name,
                "join",
                *("--server", f"127.0.0.1:{port}", "--data", str(file)),
                *("--name", name, "--state", str(home / name), *site_options),
                *("--key", str(home / name / f"{name}.key"), "--ca", str(keys.ca)),
            )
            for name, file in files.items()
        ]
        # The result is the server's exit code. Only a site that fails ends it earlier.
        ended = server
        while ended.code is None and not stop():
            show(read_status(folder / SERVER))
            time.sleep(0.25)
            ended = next((site for site in sites if site.code), server)
        show(read_status(folder / SERVER))
        return RunEnd(ended.code, ended.last_lines(1))
