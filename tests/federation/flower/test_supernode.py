"""A site's node is restarted when it ends, and stopped when the server ends the run."""

import json
import tomllib
from types import SimpleNamespace

import numpy as np
import pytest

from sagda.check import BadValue
from sagda.federation.flower import supernode
from sagda.federation.flower.processes import UNGUARDED
from sagda.federation.flower.supernode import Farewell, Gone, join, node_options
from sagda.federation.site.folder import FAREWELL, SiteFolder


@pytest.fixture
def site(tmp_path):
    file = tmp_path / 'ro"ws.npz'
    np.savez(file, features=np.ones((2, 3), np.float32), label=np.array([0.0, 1.0]))
    return SiteFolder.of({"data": str(file), "state": str(tmp_path), "name": "a"})


def test_settings_reach_the_node_as_they_are(site):
    options = node_options(site, "127.0.0.1:8000")
    path = options[options.index("--node-config") + 1]
    with open(path, "rb") as file:
        settings = tomllib.load(file)
    assert settings == site.settings
    assert '"' in settings["data"]
    assert SiteFolder.of(settings) == site


def test_a_node_that_ended_is_restarted_until_the_farewell(site, monkeypatch):
    nodes, sentences = [], []

    def start_node(site, server, ca):
        # The first node ends at once. The second one receives the farewell.
        if nodes:
            word = {"run": "r", "round": 7, "reason": "done"}
            (site.state / FAREWELL).write_text(json.dumps(word))
        nodes.append(
            SimpleNamespace(
                code=None if nodes else 1,
                stop=lambda: None,
                last_lines=lambda count: "killed",
            )
        )
        return nodes[-1]

    monkeypatch.setattr(supernode, "start_node", start_node)
    monkeypatch.setattr(supernode, "RESTART", 0.0)
    monkeypatch.setattr(supernode.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(supernode.network, "listens", lambda host, port: True)
    farewell = join(site, "127.0.0.1:8000", say=sentences.append)
    assert farewell == Farewell("r", 7, "done")
    assert len(nodes) == 2
    assert sentences[1] == "the node ended (killed); restarting it"


def test_a_node_without_its_guards_is_not_restarted(site, monkeypatch):
    node = SimpleNamespace(
        code=UNGUARDED, stop=lambda: None, last_lines=lambda count: "sagda needs a part"
    )
    monkeypatch.setattr(supernode, "start_node", lambda *arguments: node)
    monkeypatch.setattr(supernode.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(supernode.network, "listens", lambda host, port: True)
    with pytest.raises(BadValue, match=r"^sagda needs a part$"):
        join(site, "127.0.0.1:8000")


def test_a_site_gives_up_without_a_server(site, monkeypatch):
    monkeypatch.setattr(supernode.network, "listens", lambda host, port: False)
    with pytest.raises(Gone, match=r"no server at 127\.0\.0\.1:8000 for 0\.1 s"):
        join(site, "127.0.0.1:8000", patience=0.1)


def test_a_site_stops_when_it_is_asked_to(site):
    assert join(site, "127.0.0.1:8000", stop=lambda: True) is None
