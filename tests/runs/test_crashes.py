"""Runs that survive: kills at any moment, at any file operation, and full disks."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import sagda
from sagda import durable
from sagda.check import BadValue
from sagda.runs.checkpoint import SCHEMA
from sagda.runs.execution import packed, unpacked

JOB = [
    *(
        "--problem",
        "quadratic",
        "--clients",
        "8",
        "--samples",
        "4",
        "--batch-size",
        "2",
    ),
    *("--rounds", "1500", "--eval-every", "10", "--cohort", "3", "--dropout", "0.1"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A place for the command's compiled programs."""
    return tmp_path_factory.mktemp("home")


def start(home: Path, *arguments, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "sagda.commands.main", *map(str, arguments)]
    environment = os.environ | {"XDG_CACHE_HOME": str(home), "HOME": str(home)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes | options)


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def unbroken(home, tmp_path_factory):
    """The model of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("unbroken") / "r"
    code, _, err = finish(start(home, "run", *JOB, "--out", folder))
    assert code == 0, err
    return sha256(folder / "model.safetensors")


def kill_until_done(home: Path, folder: Path, kills: int, seed: int) -> int:
    """SIGKILL at random moments, then let it finish; how many kills hit a live run."""
    rng, hits = random.Random(seed), 0
    for _ in range(kills):
        options = ["--out", folder, "--checkpoint-seconds", 0]
        process = start(home, "run", *JOB, *options)
        # Until there is something to lose, then for a random while.
        deadline = time.monotonic() + 60
        before = manifest_of(folder)
        while process.poll() is None and time.monotonic() < deadline:
            if manifest_of(folder) != before:
                break
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.4))
        hits += process.poll() is None
        process.kill()
        finish(process)
    code, _, err = finish(start(home, "resume", folder))
    assert code == 0, err
    return hits


def manifest_of(folder: Path) -> bytes:
    path = folder / "checkpoint" / "manifest.json"
    return path.read_bytes() if path.exists() else b""


def test_killed_at_random_moments_a_run_ends_as_if_unbroken(home, unbroken, tmp_path):
    hits = kill_until_done(home, tmp_path / "r", kills=3, seed=1)
    assert hits >= 2
    assert sha256(tmp_path / "r" / "model.safetensors") == unbroken


@pytest.mark.slow
def test_killed_fifty_times_a_run_ends_as_if_unbroken(home, unbroken, tmp_path):
    hits = 0
    for i in range(10):
        folder = tmp_path / f"r{i}"
        hits += kill_until_done(home, folder, kills=5, seed=100 + i)
        assert sha256(folder / "model.safetensors") == unbroken
    assert hits >= 30


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_asked_to_stop_a_run_keeps_its_state(home, unbroken, tmp_path, number, code):
    folder = tmp_path / "r"
    process = start(home, "run", *JOB, "--out", folder, "--checkpoint-seconds", 0)
    while not manifest_of(folder) and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(number)
    returned, out, err = finish(process)
    assert returned == code, err
    assert f"resume with: sagda resume {folder}" in err
    assert out == ""
    if number == signal.SIGTERM:
        returned, _, err = finish(start(home, "resume", folder))
        assert returned == 0, err
        assert sha256(folder / "model.safetensors") == unbroken


CRASHES = '''
import os, signal, sys
from pathlib import Path
import numpy as np
from sagda import durable
from sagda.runs.checkpoint import Checkpoints
from sagda.simulator.recorder import Tallies
from sagda.simulator.rounds import Carry, Tally
from sagda.simulator.run import Run
from sagda.simulator.history import History

def run_at(t):
    counts = np.full((1, 1), t)
    tally = Tally(counts, counts, counts, np.array([t]))
    carry = Carry((np.full((1, 3), float(t)),), (), np.zeros(1), np.full(1, -1))
    history = History((0,), {"round": np.arange(t + 1)[None]})
    return Run(history, carry, t, Tallies(tally, tally, float(t)), 0.0)

def save_and_die(folder, fatal):
    """Save round 2 over round 1 and be killed after that many operations."""
    checkpoints = Checkpoints(folder, "digest", "data")
    checkpoints.load()
    done = 0
    def counted(name):
        original = getattr(os, name)
        def operation(*args, **kwargs):
            nonlocal done
            result = original(*args, **kwargs)
            done += 1
            if done == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        setattr(os, name, operation)
    for name in ("open", "write", "fsync", "close", "rename", "unlink"):
        counted(name)
    checkpoints.save("fsgda", run_at(2))

base = Path(sys.argv[1])
seen, fatal = [], 0
while True:
    fatal += 1
    folder = base / str(fatal)
    folder.mkdir()
    first = Checkpoints(folder, "digest", "data")
    first.folder.mkdir()
    pid = os.fork()
    if pid == 0:
        first.save("fsgda", run_at(1))
        save_and_die(folder, fatal)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    stored = Checkpoints(folder, "digest", "data").load()
    t = int(stored.runs["fsgda"]["round"])
    assert t in (1, 2)
    assert stored.runs["fsgda"]["carry/state/0"].tolist() == [[float(t)] * 3]
    seen.append(t)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0 and t == 2
        break
print(len(seen), "".join(map(str, seen)))
'''


def test_killed_after_every_file_operation_a_checkpoint_is_old_or_new(tmp_path):
    script = tmp_path / "crashes.py"
    script.write_text(CRASHES)
    folder = tmp_path / "folders"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    count, seen = done.stdout.split()
    assert int(count) > 12
    assert "21" not in seen  # once the new one is there it stays
    assert seen.startswith("1")


@pytest.fixture(scope="module")
def stopped(home, tmp_path_factory):
    """A folder with a checkpoint, stopped on the way."""
    folder = tmp_path_factory.mktemp("stopped") / "r"
    process = start(home, "run", *JOB, "--out", folder, "--checkpoint-seconds", 0)
    while not manifest_of(folder) and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 143
    return folder


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "a truncated file": ("*.safetensors", truncate, "is damaged: its sha256"),
    "a flipped bit": ("*.safetensors", flip, "is damaged: its sha256"),
    "a missing file": ("*.safetensors", Path.unlink, "is missing"),
    "a truncated manifest": ("manifest.json", truncate, "must be the manifest"),
    "a foreign manifest": (
        "manifest.json",
        lambda p: p.write_text("[]"),
        "must be the manifest of a checkpoint",
    ),
    "another configuration": (
        "manifest.json",
        lambda p: p.write_text(
            p.read_text().replace('config_sha256": "', 'config_sha256": "0')
        ),
        "was written for another configuration",
    ),
    "other data": (
        "manifest.json",
        lambda p: p.write_text(
            p.read_text().replace('data_sha256": "', 'data_sha256": "0')
        ),
        "was written for other data",
    ),
    "a path out of the folder": (
        "manifest.json",
        lambda p: p.write_text(p.read_text().replace('"file": "', '"file": "../')),
        "must be the manifest of a checkpoint",
    ),
    "a later version": (
        "manifest.json",
        lambda p: p.write_text(
            p.read_text().replace(f'"schema": {SCHEMA}', '"schema": 99')
        ),
        f"`schema` must be {SCHEMA} for this version, got 99; delete",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_checkpoints_are_refused_by_name(stopped, tmp_path, name, capsys):
    from sagda.commands.main import main

    pattern, damage, message = DAMAGES[name]
    folder = tmp_path / "r"
    shutil.copytree(stopped, folder)
    (path,) = (folder / "checkpoint").glob(pattern)
    damage(path)
    assert main(["resume", str(folder)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert str(path) in err
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_another_environment_is_told(stopped, tmp_path, capsys):
    from sagda.commands.main import main

    folder = tmp_path / "r"
    shutil.copytree(stopped, folder)
    path = folder / "checkpoint" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["environment"]["jax"] = "0.1.0"
    path.write_text(json.dumps(manifest))
    assert main(["resume", str(folder)]) == 0
    err = capsys.readouterr().err
    assert "those of an uninterrupted run: jax 0.1.0 -> " in err


@pytest.mark.slow
def test_a_checkpoint_of_an_older_version_goes_on(stopped, unbroken, tmp_path, capsys):
    """Its arrays do not tell the run's setting."""
    from sagda.commands.main import main

    folder = tmp_path / "r"
    shutil.copytree(stopped, folder)
    (path,) = (folder / "checkpoint").glob("*.safetensors")
    arrays = safetensors.numpy.load_file(path)
    setting = json.loads(arrays.pop("setting").tobytes())
    assert setting["cohort"] == "3"
    digest = durable.write(path, safetensors.numpy.save(arrays))
    manifest = json.loads((path.parent / "manifest.json").read_text())
    for entry in manifest["algorithms"].values():
        entry["sha256"] = digest
    durable.write(path.parent / "manifest.json", json.dumps(manifest))
    assert main(["resume", str(folder)]) == 0
    capsys.readouterr()
    assert sha256(folder / "model.safetensors") == unbroken


def saved(run: sagda.Run) -> dict[str, np.ndarray]:
    """A run's arrays, from a file."""
    return safetensors.numpy.load(safetensors.numpy.save(run.arrays()))


def test_saved_arrays_know_their_setting(quadratic):
    options = {"batch_size": 2, "cohort": 3, "seeds": (4,)}
    run = lambda **other: sagda.simulate(
        sagda.sagda_i(local_lr=0.01), *quadratic, **{"rounds": 3} | options | other
    )
    arrays = saved(run())
    for field, other in {"cohort": 2, "batch_size": 3, "seeds": (5,)}.items():
        with pytest.raises(BadValue, match=f"configuration, but its {field} was"):
            run(resume=arrays, **{field: other})
    again = saved(run(resume=arrays))
    sent = unpacked(packed({"sagda-i": arrays}))
    for other in (again, sent["sagda-i"]):
        assert other["setting"].tobytes() == arrays["setting"].tobytes()
    arrays.pop("setting")
    assert run(rounds=4, resume=arrays).round == 4
    with pytest.raises(BadValue, match="its history has no column 'drift'; use"):
        run(rounds=4, resume=arrays, metrics=["drift"])
    drift = saved(run(metrics=["drift"]))
    drift.pop("setting")
    with pytest.raises(BadValue, match="its history has the column 'drift'; use"):
        run(rounds=4, resume=drift)


def test_rates_that_are_functions_are_resumed_from_a_file(quadratic):
    """A function lies elsewhere in every process."""
    steps = lambda: sagda.fsgda(local_lr=lambda t: 0.01 / (t + 1))
    options = {"batch_size": 2, "cohort": 3}
    arrays = saved(sagda.simulate(steps(), *quadratic, rounds=2, **options))
    assert b" at 0x" not in arrays["setting"].tobytes()
    again = sagda.simulate(steps(), *quadratic, rounds=3, resume=arrays, **options)
    assert again.round == 3


@pytest.mark.slow
def test_a_second_writer_is_refused(home, tmp_path, capsys):
    from sagda.commands.main import main

    folder = tmp_path / "r"
    folder.mkdir()
    with durable.lock(folder):
        code, _, err = finish(start(home, "run", *JOB, "--out", folder))
        assert code == 2
        assert f"process {os.getpid()} is writing to" in err
    assert not (folder / "config.toml").exists()
    quick = ["--problem", "quadratic", "--rounds", "2", "--out", str(folder)]
    assert main(["run", *quick]) == 0
    capsys.readouterr()


def can_mount(folder: Path) -> bool:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    return subprocess.run(mount, capture_output=True).returncode == 0


@pytest.mark.slow
def test_a_full_disk_keeps_the_previous_checkpoint(home, unbroken, tmp_path):
    """On a file system of 64 kB, the growing history does not fit for long."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if not can_mount(disk):
        pytest.skip("mounting a small file system needs root")
    try:
        folder = disk / "r"
        code, _, err = finish(
            start(home, "run", *JOB, "--out", folder, "--checkpoint-seconds", 0)
        )
        assert code == 3, err
        assert "sagda: the disk is full" in err
        assert "files that were written before are complete" in err
        assert manifest_of(folder)
        room = ["mount", "-o", "remount,size=64m", str(disk)]
        subprocess.run(room, check=True, capture_output=True)
        code, _, err = finish(start(home, "resume", folder))
        assert code == 0, err
        assert sha256(folder / "model.safetensors") == unbroken
    finally:
        subprocess.run(["umount", str(disk)], check=True, capture_output=True)
