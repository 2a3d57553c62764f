"""The supervisor of a server's processes: when it restarts them, and gives up."""

import json
import time
from types import SimpleNamespace

import pytest

from sagda.check import BadValue
from sagda.federation.flower import superlink
from sagda.federation.flower.superlink import RunEnd, ServerSupervisor
from support import read_audit

DEAD = 2**22 + 1  # no process has this id


class Link:
    """A substitute for the SuperLink, which records the calls of its methods."""

    def __init__(self, folder):
        self.folder, self.calls = folder, []
        self.process = SimpleNamespace(code=None)
        self.reports = []  # the status that each next ServerApp will write
        (folder / "server").mkdir(parents=True)

    def enrol(self):
        self.calls.append("enrol")

    def run_app(self):
        self.calls.append("run")
        if self.reports:
            self.report(**self.reports.pop(0))
        return time.monotonic()

    def report(self, **values):
        values = {"pid": DEAD, "rounds": 9, "sites": 2} | values
        (self.folder / "server" / "status.json").write_text(json.dumps(values))

    def restart(self):
        self.calls.append("restart")
        self.process.code = None


@pytest.fixture
def link(tmp_path, monkeypatch):
    monkeypatch.setattr(superlink.time, "sleep", lambda seconds: None)
    return Link(tmp_path / "run")


def watched(link):
    return ServerSupervisor(link, None).watch(lambda status: None, lambda: False)


def test_a_server_that_dies_again_and_again_is_given_up(link):
    link.reports = [{"state": "running", "round": 0}] * 10
    end = watched(link)
    assert end.code == 1
    assert "the server's process ended 5 times without a new round; see" in end.sentence
    # The first report of round 0 counts as a new round. Then five starts bring none.
    assert link.calls.count("run") == 7


def test_a_new_round_makes_up_for_a_restart(link):
    rounds = [{"state": "running", "round": i} for i in range(9)]
    done = {"state": "done", "round": 9, "code": 0, "sentence": ""}
    link.reports = [*rounds, done]
    assert watched(link) == RunEnd(0, "")
    assert link.calls.count("run") == 10


def test_a_superlink_that_died_is_restarted_before_the_run(link):
    supervisor = ServerSupervisor(link, None)
    supervisor.check()
    link.calls.clear()
    link.process.code = -9
    supervisor.check()
    assert link.calls == ["restart", "enrol", "run"]


def test_a_key_that_is_not_taken_does_not_end_the_run(link):
    supervisor = ServerSupervisor(link, None)

    def enrol():
        raise BadValue("Flower did not accept the key of a site: it is odd")

    link.enrol = enrol
    assert supervisor.check() is None
    (line,) = read_audit(link.folder / "server")
    assert line["what"] == "trouble"
    assert "it is odd" in line["text"]


def test_a_failed_run_ends_with_its_sentence(link):
    link.reports = [{"state": "failed", "code": 4, "sentence": "too few"}]
    assert watched(link) == RunEnd(4, "too few")
