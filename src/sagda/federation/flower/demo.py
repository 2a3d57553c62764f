"""`sagda federation-demo`: a server and its sites as real processes on this machine."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sagda import network
from sagda.data.datasets import load
from sagda.data.partition import partition
from sagda.federation.flower import processes
from sagda.federation.server.results import SERVER
from sagda.federation.server.status import read_status
from sagda.federation.trust.authority import Keys
from sagda.federation.trust.site_keys import make_site

CONFIG = """problem = "auc"
algorithms = ["{algorithm}"]
rounds = {rounds}
eval_every = 2
local_steps = 20
batch_size = 50
local_lr = 0.1
server_lr = 1.0

[federation]
sites = {sites}
test = "a9a"
"""
ROWS = 1000  # of each site
DAYS = 30  # for which the keys are good
PATIENCE = 40.0  # seconds: each of these has processes of its own to end


def prepare(folder: Path, algorithm: str, sites: int, rounds: int) -> dict[str, Path]:
    """The server's file, and each site's own rows of a9a: unlike one another."""
    federation = partition(
        load("a9a").train, "dirichlet", clients=sites, samples=ROWS, alpha=2.0, seed=0
    )
    folder.mkdir(parents=True, exist_ok=True)
    text = CONFIG.format(algorithm=algorithm, sites=sites, rounds=rounds)
    home = folder / "sites"
    home.mkdir(exist_ok=True)
    (home / "federation.toml").write_text(text)
    files = {}
    for i in range(sites):
        name = f"site-{i}"
        (home / name).mkdir(exist_ok=True)
        files[name] = home / name / "rows.npz"
        rows = slice(federation.start[i], federation.start[i] + federation.size[i])
        data = federation.data
        np.savez(files[name], features=data.features[rows], label=data.label[rows])
    return files


def demo(
    folder: Path,
    files: dict[str, Path],
    show: Callable[[dict[str, Any]], None],
    stop: Callable[[], bool],
    more: Sequence[str] = (),
) -> tuple[int | None, str]:
    """Everything started, watched and ended; the server's exit code and last words.

    `more`: what every site is told beside where things are.
    """
    port = network.free_port()
    keys = Keys(folder / "sites" / "keys")
    keys.init([], DAYS)
    for name in files:
        _, public = make_site(folder / "sites" / name, name, DAYS)
        keys.admit(public, False)
    command = [sys.executable, "-m", "sagda.commands.main"]
    config = folder / "sites" / "federation.toml"
    started: list[processes.Process] = []

    def start(name: str, *arguments: str) -> processes.Process:
        home = folder / "sites" / (name if name in files else "")
        log = home / f"{'join' if name in files else 'serve'}.log"
        process = processes.Process([*command, *arguments], home / "flower", log)
        started.append(process)
        return process

    try:
        to = ["--out", str(folder), "--port", str(port), "--keys", str(keys.folder)]
        server = start("server", "serve", str(config), *to)
        for name, file in files.items():
            arguments = ["--data", str(file), "--name", name, *more]
            state = folder / "sites" / name
            arguments += ["--key", str(state / f"{name}.key"), "--ca", str(keys.ca)]
            at = f"127.0.0.1:{port}"
            start(name, "join", "--server", at, *arguments, "--state", str(state))
        while server.code is None and not stop():
            show(read_status(folder / SERVER))
            for process in started[1:]:
                if process.code:
                    return process.code, process.last_words(1)
            time.sleep(0.25)
        show(read_status(folder / SERVER))
        return server.code, server.last_words(1)
    finally:
        for process in reversed(started):
            process.stop(PATIENCE)
