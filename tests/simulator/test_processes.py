"""Several processes as one run: same history, same bits after a death, clear ends."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import sagda
from sagda.commands import launch as launches
from sagda.commands import main as cli
from sagda.core import Point
from support import ROOT

CACHE = ROOT / ".pytest_cache" / "machines"
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
    return started("-m", "sagda.commands.main", *arguments)


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
from sagda.simulator import processes as machines
sys.path.insert(0, sys.argv[1])
sys.path.insert(0, sys.argv[1] + "/..")
sys.path.insert(0, sys.argv[1] + "/../../src")
from sagda.simulator.devices import use_cores
use_cores()
machines.connect("127.0.0.1:" + sys.argv[2], 2, int(sys.argv[3]), 60)
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


SLOW_DISK = """
import time
from sagda.runs.checkpoint import Checkpoints
save = Checkpoints.save
def slowly(self, *run):
    time.sleep(12)
    save(self, *run)
Checkpoints.save = slowly
"""


@pytest.mark.slow
def test_asked_to_stop_the_others_wait_for_the_checkpoint(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(SLOW_DISK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    folder = tmp_path / "r"
    job = ["run", *LONG, "--out", folder, "--checkpoint-seconds", 1000]
    process = command("launch", "--", *job)
    while not (folder / "config.toml").exists():
        assert process.poll() is None, finish(process)
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert (code, out) == (143, "")
    assert "stopped sagda-i at round" in err
    assert (folder / "checkpoint" / "manifest.json").exists()


STUB = """
import os, signal, socket, sys, time
from pathlib import Path
line = socket.socket(fileno=int(os.environ["SAGDA_LINK"].split()[0]))
def tell(text):
    line.sendall(text.encode() + b"\\n")
def leave(code, why=""):
    tell(f"leaving {code} {why}")
    os._exit(code)
def die(name):
    os.kill(os.getpid(), signal.Signals[name])
def busy():
    time.sleep(60)
def asked(*what):
    signal.signal(signal.SIGTERM, lambda *_: [step() for step in what])
    tell("connected")
    busy()
index, many = int(sys.argv[-1]), int(sys.argv[-3])
here = Path(sys.argv[0]).parent
(here / f"{index}.begun").touch()
while len(list(here.glob("*.begun"))) < many:
    time.sleep(0.01)
exec(sys.argv[3 + index])
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """Processes that compute nothing: each does what its word of the command says."""
    path = tmp_path / "stub"
    path.write_text(f"#!{sys.executable}\n{STUB}")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    monkeypatch.setattr(launches, "GRACE", 0.5)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")  # or `launch` would set it


def launched(*words: str) -> tuple[int, str]:
    """Exit code and sentence."""
    begun = time.monotonic()
    try:
        return launches.launch(list(words), len(words), debug=False), ""
    except launches.Ended as ended:
        return ended.code, str(ended).partition(" and the others")[0]
    finally:
        assert time.monotonic() - begun < 20


BUSY, LOST = "busy()", "leave(70)"
ABORTED, ENDED = "die('SIGABRT')", "os._exit(1)"
KILLED, CRASHED = "die('SIGKILL')", "die('SIGSEGV')"
SAID = "leave(3, 'the disk is full')"
SILENT = 1, "process 0 died (SIGKILL)"
DEATHS = {
    # What one does of its own comes before whom the watcher had to end.
    (BUSY, KILLED): (1, "process 1 died (SIGKILL)"),
    (BUSY, CRASHED): (1, "process 1 died (SIGSEGV)"),
    (BUSY, SAID): (3, "process 1: the disk is full"),
    (BUSY, LOST, KILLED): (1, "process 2 died (SIGKILL)"),
    (BUSY, ABORTED, SAID): (3, "process 2: the disk is full"),
    (SAID, BUSY): (3, ""),
    # Where all others only lost somebody, it is the one that hung.
    (BUSY, LOST): SILENT,
    (BUSY, ABORTED): SILENT,
    (BUSY, ENDED): SILENT,
    (BUSY, ABORTED, LOST): SILENT,
    (LOST, BUSY): (1, "process 1 died (SIGKILL)"),
    (BUSY, "tell('leaving 0 '); die('SIGABRT')"): SILENT,
    (BUSY, "tell('leaving 143 '); die('SIGABRT')"): SILENT,
    # Nobody was left to be ended.
    (LOST, CRASHED): (1, "process 1 died (SIGSEGV)"),
    (LOST, ABORTED): (1, "process 1 died (SIGABRT)"),
    (LOST, SAID): (3, "process 1: the disk is full"),
    (SAID, KILLED): (1, "process 1 died (SIGKILL)"),
    # One that is done waits for the others, and so does its watcher.
    ("time.sleep(1); leave(0)", "leave(0)"): (0, ""),
    ("time.sleep(1); leave(143)", "leave(143)"): (143, ""),
    ("time.sleep(1); leave(0)", "tell('leaving 0 '); die('SIGTERM')"): (0, ""),
}


@pytest.mark.parametrize("words", DEATHS, ids=" | ".join)
def test_the_one_that_began_it_is_named(words, stub):
    assert launched(*words) == DEATHS[words]


class Asked(launches.Watcher):
    """Asked to stop once all processes are connected."""

    times = 1

    def watch(self) -> None:
        threading.Thread(target=self.wish, daemon=True).start()
        super().watch()

    def wish(self) -> None:
        while not all("connected" in worker.notes for worker in self.workers):
            time.sleep(0.01)
        for _ in range(self.times):
            self.ask(signal.SIGTERM, None)


STOP = "asked(lambda: leave(143))"
SAVE = "asked(lambda: time.sleep(2), Path({!r}).touch, lambda: leave(143))"


def test_a_stop_gives_the_first_process_time_to_save(stub, tmp_path, monkeypatch):
    monkeypatch.setattr(launches, "Watcher", Asked)
    kept = tmp_path / "kept"
    # One that another's wish reached first does not know which signal it was.
    other = STOP.replace("143", "130")
    assert launched(SAVE.format(str(kept)), STOP, other) == (143, "")
    assert kept.exists()


DEATHS_IN_A_STOP = {
    (BUSY, KILLED): (143, "process 1 died (SIGKILL)"),
    (STOP, KILLED): (143, "process 1 died (SIGKILL)"),
    (BUSY, SAID): (143, "process 1: the disk is full"),
    (SAID, STOP): (143, ""),
    (BUSY, LOST): (143, ""),
    (BUSY, "tell('leaving 143 '); die('SIGABRT')"): (143, ""),
}


@pytest.mark.parametrize("words", DEATHS_IN_A_STOP, ids=" | ".join)
def test_a_death_in_a_stop_is_noticed(words, stub, monkeypatch):
    monkeypatch.setattr(launches, "Watcher", Asked)
    lines = [w if w == STOP else f"asked(lambda: exec({w!r}))" for w in words]
    assert launched(*lines) == DEATHS_IN_A_STOP[words]


def test_asked_twice_nobody_is_waited_for(stub, monkeypatch):
    monkeypatch.setattr(launches, "Watcher", Asked)
    monkeypatch.setattr(Asked, "times", 2)
    assert launched("asked(busy)", STOP) == (143, "")


LEAVING = """
import signal, socket, sys, time, types
from sagda.simulator.link import Link
ours, theirs = socket.socketpair()
link = Link(theirs, "")
def shutdown():
    print("waiting", flush=True)
    time.sleep(7)
    print("together", flush=True)
jax = types.SimpleNamespace(distributed=types.SimpleNamespace(shutdown=shutdown))
sys.modules["jax"] = jax
link.leave(int(sys.argv[1])) if len(sys.argv) > 1 else signal.raise_signal(2)
"""


@pytest.mark.slow
def test_one_that_stops_waits_for_the_others_and_one_that_fails_does_not():
    four = {code: started("-c", LEAVING, code) for code in (0, 2, 130, 143)}
    for code, process in four.items():
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        if code != 2:  # asked while it leaves
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
    ends = {code: finish(process) for code, process in four.items()}
    together = {code: (code, "together\n", "") for code in (0, 130, 143)}
    assert ends == together | {2: (2, "", "")}


def test_outside_a_run_ctrl_c_ends_a_process_at_once():
    """It must not look like a stop, for which all others would be waited for."""
    assert finish(started("-c", LEAVING)) == (-signal.SIGINT, "", "")


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
