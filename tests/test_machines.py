"""Several processes as one run: same history, same bits after a death, clear ends."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import sagda
from sagda import cli
from sagda.core import Point

CACHE = Path(__file__).parents[1] / ".pytest_cache" / "machines"
JOB = [
    *("--problem", "quadratic", "--clients", "6", "--samples", "4"),
    *("--batch-size", "2", "--cohort", "3", "--dropout", "0.1", "--float64"),
    *("--eval-every", "10", "--layout", "mapped/2:clients"),
]
LONG = [*JOB, "--rounds", "100000"]
JOB += ["--rounds", "200"]


def free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return line.getsockname()[1]


def started(*command) -> subprocess.Popen:
    environment = os.environ | {
        "XDG_CACHE_HOME": str(CACHE),
        "JAX_NUM_CPU_DEVICES": "1",
        # Of compiled programs JAX keeps those of process 0 only.
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, *map(str, command)]
    return subprocess.Popen(command, env=environment, **pipes)


def command(*arguments) -> subprocess.Popen:
    return started("-m", "sagda.cli", *arguments)


def by_hand(port: int, *arguments) -> list[subprocess.Popen]:
    """The same command for each of two machines."""
    place = ["--coordinator", f"127.0.0.1:{port}", "--processes", 2, "--process"]
    return [command(*arguments, *place, i) for i in range(2)]


def finish(process: subprocess.Popen, seconds: float = 120) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def children(process: subprocess.Popen) -> list[int]:
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(word) for word in path.read_text().split()]


def wait_for_checkpoint(folder: Path, process: subprocess.Popen) -> None:
    while not (folder / "checkpoint" / "manifest.json").exists():
        assert process.poll() is None, finish(process)
        time.sleep(0.02)


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def model(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


CASES = {
    # Some clients take part: every process holds all memories.
    "some": {"cohort": 3, "dropout": 0.2, "layout": "mapped/2:clients"},
    # All take part: each process holds the memories of its own.
    "all": {"layout": "batched/2:clients"},
    "runs": {"cohort": 3, "seeds": (0, 1, 2), "layout": "mapped/2:runs"},
}
PROGRAM = """
import sys
import jax, numpy as np
from sagda import machines
sys.path.insert(0, sys.argv[1])
sys.path.insert(0, sys.argv[1] + "/../src")
from sagda.devices import use_cores
use_cores()
machines.connect("127.0.0.1:" + sys.argv[2], 2, int(sys.argv[3]), 60)
jax.config.update("jax_compilation_cache_dir", sys.argv[5])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
from test_machines import CASES, simulated
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
    # Drawn starts, in single precision, would differ with how XLA optimises.
    common["start"] = Point(np.linspace(-1, 1, 10), np.linspace(1, 2, 5))
    method = sagda.sagda_i(local_steps=2)
    return sagda.simulate(method, problem, clients, **common | options)


@pytest.mark.slow
def test_two_processes_give_the_history_of_one(tmp_path):
    """And go on from half-way to the same bits."""
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
    folder = tmp_path_factory.mktemp("unbroken") / "r"
    code, out, err = finish(command("launch", "--", "run", *JOB, "--out", folder))
    assert code == 0, err
    assert f"run folder: {folder}" in out
    assert "Gloo" not in out
    return model(folder)


@pytest.mark.slow
def test_a_death_is_reported_and_the_run_goes_on_to_the_same_bits(unbroken, tmp_path):
    folder = tmp_path / "r"
    job = ["run", *JOB, "--out", folder, "--checkpoint-seconds", 0]
    process = command("launch", "--processes", 2, "--", *job)
    wait_for_checkpoint(folder, process)
    workers = children(process)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    killed = time.monotonic()
    code, out, err = finish(process, 60)
    assert time.monotonic() - killed < 60
    assert (code, out) == (1, "")
    assert err.startswith("sagda: process 1 died (SIGKILL) and the others were ended")
    assert f"the newest checkpoint in {folder} has sagda-i at round " in err
    again = f"sagda launch --processes 2 -- resume {folder}"
    assert err.endswith(f"; go on with: {again}\n")
    wait_until_gone(workers)
    code, _, err = finish(command(*again.split()[1:]))
    assert (code, err) == (0, "")
    assert model(folder) == unbroken


@pytest.mark.slow
def test_started_by_hand_the_others_notice_a_death(tmp_path):
    folder = tmp_path / "r"
    job = ["run", *LONG, "--out", folder, "--checkpoint-seconds", 0]
    zero, one = by_hand(free_port(), *job)
    wait_for_checkpoint(folder, zero)
    workers = children(zero) + children(one)
    one.kill()
    code, _, err = finish(zero, 60)
    finish(one)
    assert code == 1
    assert err.startswith("sagda: process 0 lost the others; the newest checkpoint in")
    assert "go on with: the same command on every machine" in err
    wait_until_gone(workers)


@pytest.mark.slow
def test_asked_to_stop_all_processes_stop_and_keep_their_state(tmp_path):
    folder = tmp_path / "r"
    process = command("launch", "--", "run", *LONG, "--out", folder)
    while not (folder / "config.toml").exists():
        assert process.poll() is None, finish(process)
        time.sleep(0.02)
    workers = children(process)
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert (code, out) == (143, "")
    assert f"go on with: sagda launch --processes 2 -- resume {folder}" in err
    assert (folder / "checkpoint" / "manifest.json").exists()
    wait_until_gone(workers)


@pytest.mark.slow
def test_processes_that_differ_are_told_so(tmp_path):
    port, folder = free_port(), tmp_path / "r"
    place = ["--coordinator", f"127.0.0.1:{port}", "--processes", 2, "--process"]
    job = ["run", *JOB, "--out", folder]
    pair = [command(*job, "--split-seed", i, *place, i) for i in range(2)]
    for code, out, err in map(finish, pair):
        assert (code, out) == (2, "")
        assert "process 1 has another configuration than process 0" in err
        assert len(err.splitlines()) == 1
    assert not folder.exists()


def test_a_mistake_that_only_process_0_can_see_is_everyones(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    pair = by_hand(free_port(), "run", *JOB, "--out", tmp_path)
    for code, out, err in map(finish, pair):
        assert (code, out) == (2, "")
        assert f"{tmp_path} holds other files" in err
        assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_without_a_coordinator_a_process_gives_up(tmp_path):
    place = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", 2]
    place += ["--connect-seconds", 1, "--out", tmp_path / "r"]
    waiting = command("run", *JOB, *place, "--process", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place[1] = f"127.0.0.1:{taken.getsockname()[1]}"
        code, out, err = finish(command("run", *JOB, *place, "--process", 0))
    assert (code, out) == (2, "")
    assert "process 0 cannot listen at 127.0.0.1:" in err
    code, out, err = finish(waiting)
    assert (code, out) == (2, "")
    assert "process 1 did not meet the others at 127.0.0.1:" in err
    assert not (tmp_path / "r").exists()


HERE = "--coordinator 127.0.0.1:9"
MISTAKES = {
    f"run {HERE}": "--coordinator, --processes and --process must be given together",
    "run --process 0 --processes 2": "must be given together",
    f"compare {HERE} --processes 2": "must be given together",
    f"run {HERE} --processes 2 --process 2": "`process` must be between 0 and 1",
    f"run {HERE} --processes 2 --process -1": "`process` must be between 0 and 1",
    f"run {HERE} --processes 0 --process 0": "`processes` must be at least 1",
    f"resume r {HERE} --processes 2 --process 9": "`process` must be between 0 and 1",
    "run --coordinator here --processes 2 --process 0": "`coordinator` must look like",
    "run --coordinator a:0 --processes 2 --process 0": "`coordinator` must look like",
    f"run {HERE} --processes 2 --process 0 --connect-seconds 0": "`connect_seconds`",
    "launch": "`command` must be one of run, compare",
    "launch -- list": "`command` must be one of run, compare",
    "launch --processes 0 -- run": "`processes` must be at least 1",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_are_answered_in_one_sentence(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert MISTAKES[line] in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
