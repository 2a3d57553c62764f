"""Child processes: how they are watched, and that all of them end."""

import importlib.metadata
import sys
import time

import pytest

from sagda import network
from sagda.check import BadValue
from sagda.federation.flower.processes import (
    FLOWER_VERSION,
    Process,
    lives,
    need_flower,
)

# A program that starts a child which ignores SIGTERM, and prints the child's id.
FAMILY = """
import signal, subprocess, sys, time
wait = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
print(subprocess.Popen([sys.executable, "-c", wait]).pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a Python program, which ends with the test."""
    processes = []

    def start(code):
        command = [sys.executable, "-c", code]
        processes.append(Process(command, tmp_path / "home", tmp_path / "log"))
        return processes[-1]

    yield start
    for process in processes:
        process.stop()


def test_a_process_ends_with_all_that_it_started(start, monkeypatch):
    monkeypatch.setattr("sagda.federation.flower.processes.PATIENCE", 1.0)
    process = start(FAMILY)
    while not process.output().strip():
        time.sleep(0.05)
    child = int(process.output())
    assert lives(process.pid)
    assert lives(child, "SIG_IGN")
    assert not lives(child, "another program")
    process.stop()
    assert process.code is not None
    deadline = time.monotonic() + 5
    while lives(child):  # until the init process has reaped it
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_process_that_ends_early_is_quoted(start):
    process = start("print('first'); print('no such option'); raise SystemExit(3)")
    port = network.free_port()
    with pytest.raises(BadValue, match="nginx did not start: first / no such option"):
        process.wait_for_port("nginx", "127.0.0.1", port, 20)
    assert process.finish(1) == 3


def test_a_process_that_takes_too_long_is_ended(start):
    process = start("import time; time.sleep(60)")
    assert process.finish(0.1) not in (None, 0)


def test_the_version_of_flower_is_the_one_that_is_declared():
    (line,) = [
        line
        for line in importlib.metadata.requires("sagda") or []
        if line.startswith("flwr")
    ]
    assert f">={FLOWER_VERSION}" in line
    need_flower()
