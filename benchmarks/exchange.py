"""The time of an exchange over Flower, with sagda and with an empty message.

The difference is what sagda adds to Flower. `exchange_app` is the program that runs.
"""

import contextlib
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from children import Failed

import sagda
from sagda import network
from sagda.federation.flower.processes import Process, need_flower, program
from sagda.federation.flower.superlink import CONNECTION, write_connection
from sagda.federation.flower.supernode import node_options
from sagda.federation.site.folder import SiteFolder

APP = Path(__file__).with_name("exchange_app")


def measure_exchange(quick: bool, say: Callable) -> dict:
    """Measure exchanges between a server and two sites, all on this machine.

    Exchanges of sagda on rows of a9a alternate with empty exchanges in one run.
    """
    try:
        need_flower()
    except ValueError as missing:
        raise Failed(str(missing)) from None
    wanted = 10 if quick else 30
    with tempfile.TemporaryDirectory() as folder:
        times = run(Path(folder), wanted, say)
    rows = []
    for name in ("empty", "ours"):
        seconds = times[name]
        error = statistics.stdev(seconds) / math.sqrt(len(seconds))
        rows.append(
            {
                "name": name,
                "count": len(seconds),
                "mean": statistics.mean(seconds),
                "error": error,
                "median": statistics.median(seconds),
            }
        )
    return {"rows": rows, "bytes": times["bytes"]}


def run(folder: Path, wanted: int, say: Callable) -> dict:
    """Run the app of the benchmark to its end. Return the times that it wrote."""
    port, home = network.free_port(), folder / "flower"
    with contextlib.ExitStack() as stack:
        link = Process(
            [
                program("flower-superlink"),
                *("--insecure", "--host", "127.0.0.1", "--port", str(port)),
                "--disable-runtime-dependency-installation",
            ],
            home,
            folder / "link.log",
            BENCH_FOLDER=str(folder),
            BENCH_EXCHANGES=str(wanted),
        )
        stack.callback(link.stop)
        link.wait_for_port("Flower's SuperLink", "127.0.0.1", port, 60)
        for i in range(2):
            stack.callback(node(folder, i, f"127.0.0.1:{port}").stop)
        write_connection(home, f"127.0.0.1:{port}", None)
        command = [program("flwr"), "run", str(APP), CONNECTION]
        submission = Process(command, home, folder / "run.log")
        if submission.finish(60):
            raise Failed(submission.last_lines(8))
        deadline, shown = time.monotonic() + 60 + 60 * wanted, 0
        while not (folder / "done").exists():
            if time.monotonic() > deadline or link.code is not None:
                raise Failed(link.last_lines())
            if (folder / "times.json").exists():
                times = read(folder)
                if len(times["ours"]) > shown:
                    shown = len(times["ours"])
                    ours, empty = times["ours"][-1], times["empty"][-1]
                    say(f"  {shown} of {wanted}: {ours:.1f} s, empty {empty:.1f} s")
            time.sleep(0.5)
        return read(folder)


def read(folder: Path) -> dict:
    try:
        return json.loads((folder / "times.json").read_text())
    except ValueError:
        return {"ours": [], "empty": []}


def node(folder: Path, i: int, address: str) -> Process:
    """Start a node of Flower for a site. The node of `sagda join` refuses this app."""
    clients = sagda.partition(
        sagda.load("a9a").train, "iid", clients=2, samples=1000, seed=0
    )
    rows = slice(clients.start[i], clients.start[i] + clients.size[i])
    file, state = folder / f"site-{i}.npz", folder / f"site-{i}"
    data = clients.data
    np.savez(file, features=data.features[rows], label=data.label[rows])
    site = SiteFolder.of({"data": str(file), "state": str(state)})
    site.introduction()
    command = [program("flower-supernode"), "--insecure", *node_options(site, address)]
    return Process(command, state / "flower", folder / f"site-{i}.log")
