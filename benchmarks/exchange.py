"""What an exchange over Flower costs, beside one of Flower's own that does nothing."""

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
from sagda.federation.flower import processes
from sagda.federation.site.folder import SiteFolder

APP = Path(__file__).with_name("exchange_app")


def measure_exchange(quick: bool, say: Callable) -> dict:
    """Two sites on this machine, a9a; the two kinds take turns in one run."""
    try:
        processes.need_flower()
    except ValueError as missing:
        raise Failed(str(missing)) from None
    wanted = 10 if quick else 30
    with tempfile.TemporaryDirectory() as place:
        times = run(Path(place), wanted, say)
    rows = []
    for name in ("empty", "ours"):
        found = times[name]
        error = statistics.stdev(found) / math.sqrt(len(found))
        rows.append(
            {
                "name": name,
                "count": len(found),
                "mean": statistics.mean(found),
                "error": error,
                "median": statistics.median(found),
            }
        )
    return {"rows": rows, "bytes": times["bytes"]}


def run(folder: Path, wanted: int, say: Callable) -> dict:
    port = network.free_port()
    home = folder / "flower"
    address = f"127.0.0.1:{port}"
    link = processes.Process(
        [
            processes.program("flower-superlink"),
            *("--insecure", "--host", "127.0.0.1", "--port", str(port)),
            "--disable-runtime-dependency-installation",
        ],
        home,
        folder / "link.log",
        BENCH_FOLDER=str(folder),
        BENCH_EXCHANGES=str(wanted),
    )
    started = [link]
    try:
        while not network.listens("127.0.0.1", port):
            time.sleep(0.1)
        started += [node(folder, i, address) for i in range(2)]
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\n'
            "insecure = true\n"
        )
        hand_in = [processes.program("flwr"), "run", str(APP), "here"]
        handed = processes.Process(hand_in, home, folder / "run.log")
        if handed.process.wait(60):
            raise Failed(handed.last_words(8))
        deadline, shown = time.monotonic() + 60 + 60 * wanted, 0
        while not (folder / "done").exists():
            if time.monotonic() > deadline or link.code is not None:
                raise Failed(link.last_words())
            if (folder / "times.json").exists():
                times = read(folder)
                if len(times["ours"]) > shown:
                    shown = len(times["ours"])
                    last = times["ours"][-1], times["empty"][-1]
                    say(
                        f"  {shown} of {wanted}: {last[0]:.1f} s, empty {last[1]:.1f} s"
                    )
            time.sleep(0.5)
        return read(folder)
    finally:
        for process in reversed(started):
            process.stop()


def read(folder: Path) -> dict:
    try:
        return json.loads((folder / "times.json").read_text())
    except ValueError:
        return {"ours": [], "empty": []}


def node(folder: Path, i: int, address: str) -> processes.Process:
    clients = sagda.partition(
        sagda.load("a9a").train, "iid", clients=2, samples=1000, seed=0
    )
    rows = slice(clients.start[i], clients.start[i] + clients.size[i])
    file, state = folder / f"site-{i}.npz", folder / f"site-{i}"
    data = clients.data
    np.savez(file, features=data.features[rows], label=data.label[rows])
    desk = SiteFolder.of({"data": str(file), "state": str(state)})
    desk.census()
    # Flower's own node: the one of `sagda join` would refuse an app that holds code.
    settings = " ".join(f"{k}={json.dumps(v)}" for k, v in desk.settings.items())
    command = [processes.program("flower-supernode"), "--insecure"]
    command += ["--superlink", address, "--node-config", settings]
    command += ["--host", "127.0.0.1", "--port", str(network.free_port())]
    return processes.Process(command, state / "flower", folder / f"site-{i}.log")
