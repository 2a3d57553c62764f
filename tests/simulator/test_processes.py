"""Check runs on several processes, also after one of them was killed."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import sagda
from sagda.commands.main import main
from sagda.core import Point
from sagda.network import free_port
from sagda.simulator import processes
from support import ROOT

CACHE = ROOT / ".pytest_cache" / "machines"
JOB = [
    *("--problem", "quadratic", "--clients", "6", "--samples", "4"),
    *("--batch-size", "2", "--cohort", "3", "--dropout", "0.1", "--float64"),
    *("--eval-every", "10", "--layout", "mapped/2:clients"),
]
LONG = [*JOB, "--rounds", "100000"]
JOB += ["--rounds", "200"]


def started(*command, **variables: str) -> subprocess.Popen:
    environment = (
        os.environ
        | variables
        | {
            "XDG_CACHE_HOME": str(CACHE),
            "JAX_NUM_CPU_DEVICES": "1",
            # JAX stores the compiled programs of process 0 only.
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
        }
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, *map(str, command)]
    return subprocess.Popen(command, env=environment, **pipes)


def command(*arguments, **variables: str) -> subprocess.Popen:
    return started("-m", "sagda.commands.main", *arguments, **variables)


def by_hand(port: int, *arguments) -> list[subprocess.Popen]:
    """Start a command for each of two machines, connected by `--host0`."""
    place = ["--host0", f"127.0.0.1:{port}", "--processes", 2, "--process"]
    return [command(*arguments, *place, i) for i in range(2)]


def by_slurm(port: int, *arguments) -> list[subprocess.Popen]:
    """Start two commands with the variables that `srun` sets for two tasks."""
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "127.0.0.1"}
    step |= {"SLURM_NTASKS": "2", "JAX_COORDINATOR_PORT": str(port)}
    return [
        command(*arguments, **step, SLURM_PROCID=str(i), SLURM_LOCALID=str(i))
        for i in range(2)
    ]


def finish(process: subprocess.Popen, seconds: float = 120) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def wait_for_checkpoint(folder: Path, process: subprocess.Popen) -> None:
    while not (folder / "checkpoint" / "manifest.json").exists():
        assert process.poll() is None, finish(process)
        time.sleep(0.02)


def model(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


CASES = {
    # If some clients take part, every process has the memories of all clients.
    "some": {"cohort": 3, "dropout": 0.2, "layout": "mapped/2:clients"},
    # If all take part, each process has the memories of its clients only.
    "all": {"layout": "batched/2:clients"},
    "runs": {"cohort": 3, "seeds": (0, 1, 2), "layout": "mapped/2:runs"},
}
PROGRAM = """
import sys
import jax, numpy as np
from sagda.simulator import processes as machines
sys.path.insert(0, sys.argv[1])
sys.path.insert(0, sys.argv[1] + "/..")
sys.path.insert(0, sys.argv[1] + "/../../src")
from sagda.simulator.devices import use_cores
use_cores()
address = "127.0.0.1:" + sys.argv[2], 2, int(sys.argv[3])
machines.connect(*address)
jax.config.update("jax_compilation_cache_dir", sys.argv[5])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
from test_processes import CASES, simulated
for name, case in CASES.items():
    run = simulated(**case)
    half = simulated(**case | {"rounds": 4})
    again = simulated(**case, resume=half.arrays())
    for a, b in zip(jax.tree.leaves(run.carry), jax.tree.leaves(again.carry)):
        np.testing.assert_array_equal(a, b)
    if machines.is_first():
        np.savez(f"{sys.argv[4]}/{name}.npz", layout=run.layout, **run.arrays())
"""


def simulated(**options):
    problem, clients = sagda.Quadratic.make(clients=6, samples=4, noise=0.5)
    common = {"rounds": 8, "batch_size": 2, "eval_every": 3, "float64": True}
    # Random starts in single precision would depend on the optimisations of XLA.
    common["start"] = Point(np.linspace(-1, 1, 10), np.linspace(1, 2, 5))
    method = sagda.sagda_i(local_steps=2)
    return sagda.simulate(method, problem, clients, **common | options)


@pytest.mark.slow
def test_two_processes_give_the_history_of_one(tmp_path):
    """A run that is resumed half-way is bit-for-bit the same."""
    port = free_port()
    here = str(Path(__file__).parent)
    programs = CACHE / "sagda" / "programs"
    pair = [started("-c", PROGRAM, here, port, i, tmp_path, programs) for i in (0, 1)]
    ends = [finish(process) for process in pair]
    assert [code for code, _, _ in ends] == [0, 0], ends
    for name, case in CASES.items():
        alone = simulated(**case | {"layout": "mapped/1"}).arrays()
        with np.load(tmp_path / f"{name}.npz") as file:
            both = dict(file)
        assert str(both.pop("layout")).startswith(("mapped/2", "chunk-3/2"))
        assert both.keys() == alone.keys()
        for key, array in alone.items():
            if "seconds" not in key:
                np.testing.assert_allclose(both[key], array, 1e-9, 1e-12, err_msg=key)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Return the model of an uninterrupted run of two processes, started by `srun`."""
    folder = tmp_path_factory.mktemp("unbroken") / "r"
    pair = by_slurm(free_port(), "run", *JOB, "--out", folder, "--json")
    (code, out, err), (other, silent, _) = map(finish, pair)
    assert (code, other, silent) == (0, 0, ""), err
    assert json.loads(out)["folder"] == str(folder)
    return model(folder)


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(unbroken, tmp_path):
    folder = tmp_path / "r"
    job = ["run", *JOB, "--out", folder, "--checkpoint-seconds", 0]
    zero, one = by_hand(free_port(), *job)
    wait_for_checkpoint(folder, zero)
    one.kill()
    finish(one)
    code, _, _ = finish(zero, 60)
    assert code != 0
    (code, _, err), _ = map(finish, by_hand(free_port(), "resume", folder))
    assert code == 0, err
    assert model(folder) == unbroken


@pytest.mark.slow
def test_a_request_to_stop_one_process_stops_all_after_a_checkpoint(tmp_path):
    folder = tmp_path / "r"
    zero, one = by_hand(free_port(), "run", *LONG, "--out", folder)
    while not (folder / "config.toml").exists():
        assert zero.poll() is None, finish(zero)
        time.sleep(0.02)
    time.sleep(2)  # wait until the process handles signals
    one.send_signal(signal.SIGTERM)
    (code, out, err), (other, _, _) = map(finish, (zero, one))
    assert (code, other, out) == (143, 143, "")
    assert f"resume with: sagda resume {folder}" in err
    assert (folder / "checkpoint" / "manifest.json").exists()


@pytest.mark.slow
def test_processes_of_different_runs_are_refused(tmp_path):
    folder = tmp_path / "r"
    place = ["--host0", f"127.0.0.1:{free_port()}", "--processes", 2, "--process"]
    job = ["run", *JOB, "--out", folder]
    pair = [command(*job, "--split-seed", i, *place, i) for i in range(2)]
    for code, out, err in map(finish, pair):
        assert (code, out) == (2, "")
        assert "the configuration of process 1 differs from that of process 0" in err
    assert not folder.exists()


@pytest.mark.slow
def test_an_error_that_only_process_0_can_see_ends_all(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    pair = by_hand(free_port(), "run", *JOB, "--out", tmp_path)
    for code, out, err in map(finish, pair):
        assert (code, out) == (2, "")
        assert f"{tmp_path} holds other files" in err


def test_only_processes_of_one_step_count():
    assert processes.launched({}) == 1
    # A batch script of SLURM, before `srun` starts the tasks of a step.
    assert processes.launched({"SLURM_NTASKS": "4"}) == 1
    step = {"SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "node[1-2]"}
    assert processes.launched(step) == 4
    assert processes.launched({"OMPI_COMM_WORLD_SIZE": "3"}) == 3


def test_a_process_that_runs_alone_never_connects(monkeypatch):
    monkeypatch.setattr("jax.distributed.initialize", None)
    processes.connect()
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    processes.connect(processes=1)


TOGETHER = "--host0, --processes and --process must be given together"
HERE = "--host0 127.0.0.1:9"
MISTAKES = {
    f"run {HERE}": TOGETHER,
    "run --process 0 --processes 2": TOGETHER,
    f"compare {HERE} --processes 2": TOGETHER,
    f"run {HERE} --processes 2 --process 2": "`process` must be between 0 and 1",
    f"run {HERE} --processes 2 --process -1": "`process` must be between 0 and 1",
    f"run {HERE} --processes 0 --process 0": "`processes` must be at least 1",
    "run --processes 0": "`processes` must be at least 1",
    f"resume r {HERE} --processes 2 --process 9": "`process` must be between 0 and 1",
    "run --host0 here --processes 2 --process 0": "`--host0` must be HOST:PORT",
    "run --host0 a:0 --processes 2 --process 0": "`--host0` must be HOST:PORT",
    f"run {HERE} --processes 2 --process 1": "could not reach process 0 at 127.0.0.1:9",
    "run --host0 198.51.100.1:9 --processes 2 --process 0": "cannot listen on port 9",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_wrong_flags_are_answered_in_one_sentence(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(processes, "PATIENCE", 0.5)
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert MISTAKES[line] in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
