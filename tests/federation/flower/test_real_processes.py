"""Federations of real processes, some of which are killed during a run."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import sagda
from sagda.federation.flower import processes
from sagda.federation.flower.demo import demo
from sagda.federation.server.status import read_status
from sagda.models.user_code import allow, model_of
from sagda.runs.config import Config
from sagda.runs.parameters import method_of
from sagda.runs.results import read_results

pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")
pytestmark = pytest.mark.slow

SAGDA = [sys.executable, "-m", "sagda.commands.main"]
RATES = {"local_lr": 0.1, "server_lr": 1.0, "local_steps": 5, "batch_size": 20}


def prepare(folder, sites, table="", **keys):
    """Split a9a over sites, and write the files of server and sites for `demo`."""
    data = sagda.load("a9a")
    clients = sagda.partition(data.train, "by-label", clients=sites, samples=500)
    home = folder / "sites"
    home.mkdir(parents=True)
    lines = [f"{key} = {json.dumps(value)}" for key, value in (RATES | keys).items()]
    text = "\n".join([*lines, "[federation]", f"sites = {sites}", table, ""])
    (home / "federation.toml").write_text(text)
    files = {}
    for i in range(sites):
        rows = slice(clients.start[i], clients.start[i] + clients.size[i])
        place = home / f"site-{i}"
        place.mkdir()
        files[place.name] = place / "rows.npz"
        np.savez(
            files[place.name],
            features=clients.data.features[rows],
            label=clients.data.label[rows],
        )
    return clients, files


def verified(folder):
    done = subprocess.run(
        [*SAGDA, "verify", str(folder), "--replay", "--json"],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout)


def of_this_run(folder):
    """Return the command lines that contain the folder's path, by process id."""
    lines = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(folder) in line and processes.lives(int(path.name)):
                lines[int(path.name)] = line
    return lines


def at_end(deadline):
    return lambda: time.monotonic() > deadline


@pytest.mark.parametrize("name", ["sagda-i", "sagda-ii", "fsgda"])
def test_real_processes_agree_with_the_simulator(name, tmp_path):
    folder = tmp_path / "run"
    keys = {"algorithms": [name], "cohort": 4, "rounds": 10, "eval_every": 5}
    clients, files = prepare(folder, 6, **keys)
    code, words = demo(folder, files, lambda s: None, at_end(time.monotonic() + 1500))
    assert code == 0, words
    run = sagda.simulate(
        method_of(Config(**RATES), name), sagda.AUC.of(clients), clients, rounds=10,
        cohort=4, batch_size=20, eval_every=5,
    )  # fmt: skip
    columns = read_results(folder).columns[name]
    for column in run.history.columns:
        if column not in ("seconds", "eval_bytes"):
            # The gap is a small difference of Phi and f, so its error scales with Phi.
            scale = np.abs(run.history["phi"]).max() if column == "gap" else 0.0
            np.testing.assert_allclose(
                columns[column], run.history[column], rtol=1e-5, atol=1e-5 * scale,
                err_msg=column,
            )  # fmt: skip
    for column in ("bytes_down", "bytes_up", "gradients", "samples"):
        np.testing.assert_array_equal(columns[column], run.history[column])
    assert not of_this_run(folder)


NETS = """
import torch

def make(features):
    return torch.nn.Sequential(
        torch.nn.Linear(features, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )
"""


def test_a_pytorch_model_trains_through_real_processes(tmp_path):
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'sagda[torch]'")
    folder = tmp_path / "run"
    keys = {"algorithms": ["sagda-i"], "rounds": 5, "model": "nets.py:make"}
    clients, files = prepare(folder, 4, **keys, cohort=3)
    (folder / "sites" / "nets.py").write_text(NETS)
    model_code = f"{folder / 'sites' / 'nets.py'}:make"
    until = at_end(time.monotonic() + 1500)
    code, words = demo(folder, files, lambda s: None, until, ["--model", model_code])
    assert code == 0, words
    allow(model_code)
    problem = sagda.AUC.of(clients, model_of("nets.py:make", 123))
    run = sagda.simulate(
        method_of(Config(**RATES), "sagda-i"), problem, clients, rounds=5, cohort=3,
        batch_size=20,
    )  # fmt: skip
    columns = read_results(folder).columns["sagda-i"]
    for column in ("phi", "f", "grad_phi_sq", "auc_train", "bytes_up", "bytes_down"):
        np.testing.assert_allclose(
            columns[column], run.history[column], rtol=1e-4, err_msg=column
        )
    model = safetensors.numpy.load_file(folder / "model.safetensors")
    for name, value in run.z.x.model.items():
        np.testing.assert_allclose(
            model[f"x/model/{name}"], value[0], rtol=1e-4, atol=1e-6
        )
    assert not of_this_run(folder)


class Killer(threading.Thread):
    """Kills a node, then the ServerApp, then the SuperLink, during a run."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder, self.killed = folder, []

    def find(self, word):
        pids = [p for p, line in of_this_run(self.folder).items() if word in line]
        return pids[0] if pids else None

    def run(self):
        server = self.folder / "server"
        plan = {
            2: lambda: self.find("federation.flower.node"),
            4: lambda: read_status(server).pid,
            6: lambda: self.find("flower-superlink"),
        }
        for at, find in plan.items():
            while (status := read_status(server)) is None or status.round < at:
                time.sleep(0.1)
            time.sleep(1.0)
            pid = find()
            os.kill(pid, signal.SIGKILL)
            self.killed.append(pid)
            time.sleep(5)


def test_killed_client_server_and_superlink_leave_everything_exact(tmp_path):
    folder = tmp_path / "run"
    _, files = prepare(
        folder, 3, "timeout = 40", algorithms=["sagda-i"], rounds=9, eval_every=3
    )
    killer = Killer(folder)
    killer.start()
    code, words = demo(folder, files, lambda s: None, at_end(time.monotonic() + 1500))
    assert code == 0, words
    assert len(killer.killed) == 3
    code, report = verified(folder)
    assert code == 0, report
    assert report["holds"]
    assert any("bit for bit" in finding["what"] for finding in report["findings"])
    manifest = json.loads((folder / "server" / "manifest.json").read_text())
    assert manifest["state"]["round"] == 9
    assert not of_this_run(folder)


def test_the_demonstration_leaves_a_folder_and_nothing_running(tmp_path):
    folder = tmp_path / "demo"
    done = subprocess.run(
        [*SAGDA, "federation-demo", "--rounds", "8", "--out", str(folder)],
        capture_output=True, text=True, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "all checks hold" in done.stdout
    for name in ("config.toml", "history.csv", "summary.json", "report.html"):
        assert (folder / name).is_file()
    columns = read_results(folder).columns["sagda-i"]
    assert columns["round"][0, -1] == 8
    assert columns["auc_test"][0, -1] > 0.85
    assert not of_this_run(folder)
