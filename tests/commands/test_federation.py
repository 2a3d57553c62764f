"""serve, join, federation-demo and verify: what they refuse, and in which words."""

import importlib.metadata
import json
import socket

import pytest

from sagda import network
from sagda.check import BadValue
from sagda.federation.protocol.letters import Introduction
from sagda.federation.server.gathering import unfit
from sagda.federation.server.process import claim
from sagda.federation.site.folder import SiteFolder
from sagda.federation.site.rows import signed
from sagda.federation.terms import Terms, read_settings, write_settings
from support import command

pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.toml").write_text('algorithms = ["sagda-i"]\n')
    (tmp_path / "rows.csv").write_text("age,label\n30,1\n40,0\n")
    return tmp_path


def mistake(capsys, *arguments):
    code, _, error = command(*arguments, capsys=capsys)
    assert code == 2, error
    assert len(error.splitlines()) == 1
    return error.strip().removeprefix("sagda: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('data = "a9a"', "`data` is for simulations"),
        (
            'algorithms = ["sagda-i", "fsgda"]',
            "must have one name in a federation, got sagda-i",
        ),
        ('problem = "quadratic"', "`problem` must be one of auc, dro"),
        ("[federation]\nsite = 3", "`federation key` must be one of"),
        ("[federation]\nsites = 0", "`federation.sites` must be at least 1"),
        ("[federation]\ntimeout = -1", "`federation.timeout` must be greater than 0"),
        ("federation = 3", "`federation` must be a TOML table"),
        ("local_lr = -1", "`local_lr` must be above zero"),
        ('[set.sagda-i]\nstart = "hot"', "`start` must be one of"),
    ],
)
def test_a_servers_file_is_checked_before_anything_starts(text, said, here, capsys):
    (here / "bad.toml").write_text(text)
    assert said in mistake(capsys, "serve", "bad.toml")
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("serve none.toml", "configuration none.toml does not exist"),
        ("serve good.toml --port 0", "`port` must be between 1 and 65535"),
        (
            "serve good.toml --host 0.0.0.0 --plaintext",
            "without --proxy, got --host 0.0.0.0",
        ),
        ("serve good.toml --proxy --plaintext", "--host 127.0.0.1 and --proxy; remove"),
        ("serve good.toml", "keys/ca.crt does not exist; `sagda keys init` makes"),
        (
            "join --server 10.0.0.1:8 --data rows.csv --plaintext",
            "a server on this machine, got --server 10.0.0.1:8",
        ),
        (
            "join --server 127.0.0.1:8 --data rows.csv --plaintext --ca good.toml",
            "`--plaintext` must be used without --key and --ca",
        ),
        (
            "join --server 127.0.0.1:8 --data rows.csv --key no --ca no",
            "`--key` must be a file, but no",
        ),
        (
            "join --server 127.0.0.1:8 --data rows.csv --plaintext --least 0",
            "`least` must be at least 1",
        ),
        ("join --server here --data rows.csv", "`--server` must be HOST:PORT"),
        ("join --server 10.0.0.1:8 --data rows.csv", "`--key` must be given, got none"),
        ("join --server 127.0.0.1:8 --data no.csv --plaintext", "does not exist"),
        (
            "join --server 127.0.0.1:8 --data rows.csv --plaintext --name a/b",
            "a site's name must be 1 to 64 letters",
        ),
        (
            "join --server 127.0.0.1:8 --data rows.csv --patience 0",
            "`--patience` must be above zero",
        ),
        ("federation-demo --sites 1", "`sites` must be between 2 and 20"),
        ("federation-demo --algorithm sgd", "`algorithm` must be one of"),
        ("federation-demo --out .", "holds other files"),
        ("verify .", "holds no federation"),
        ("verify . --sites .", "is not a site's folder"),
    ],
)
def test_a_mistake_gets_one_sentence(arguments, said, here, capsys):
    assert said in mistake(capsys, *arguments.split())


def test_a_port_that_is_taken_is_named(here, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = mistake(capsys, "serve", "good.toml", "--plaintext", f"--port={port}")
    assert f"`--port`: this process cannot listen on port {port}" in said


def test_a_site_without_a_server_ends_with_code_4(here, capsys):
    port = network.free_port()
    line = f"join --server 127.0.0.1:{port} --data rows.csv --patience 0.5"
    line += " --plaintext --json"
    code, out, _ = command(line, capsys=capsys)
    out = json.loads(out)
    assert code == out["exit_code"] == 4
    assert f"no server at 127.0.0.1:{port} for 0.5 seconds" in out["error"]
    assert (here / "sagda-rows" / "site.json").exists()


def test_without_flower_the_extra_is_named(here, capsys, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    said = mistake(capsys, "serve", "good.toml")
    assert (
        said == "federations need flwr 1.41, found none; pip install 'sagda[flower]'."
    )


def test_another_version_of_flower_is_refused(here, capsys, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.42.0")
    said = mistake(capsys, "serve", "good.toml")
    assert said.startswith("federations need flwr 1.41, found 1.42.0; pip")


def test_a_servers_file_comes_back_as_it_was_written(here):
    (here / "all.toml").write_text(
        'problem = "dro"\nalgorithms = ["sagda-i"]\nlocal_lr = [0.1, 0.2]\ncohort = 3\n'
        '[set.sagda-i]\nstart = "warm"\n[set.dro]\nlambda_2 = 0.5\n'
        "[federation]\nsites = 4\nmin_clients = 2\nbound = 9.5\n"
    )
    config, options = read_settings(here / "all.toml")
    (here / "again.toml").write_text(write_settings(config, options))
    assert read_settings(here / "again.toml") == (config, options)
    claim(here / "run", here / "all.toml")
    claim(here / "run", here / "all.toml")
    other = (here / "all.toml").read_text().replace("cohort = 3", "cohort = 2")
    (here / "all.toml").write_text(other)
    with pytest.raises(BadValue, match="which differs in cohort; choose another"):
        claim(here / "run", here / "all.toml")


def test_terms_follow_from_all_sites_together(here):
    config, _ = read_settings(here / "good.toml")
    sites = [Introduction("a", 10, 1, 3), Introduction("b", 40, 20, 3)]
    terms = Terms.settle(config, sites)
    assert (terms.tau, terms.samples, terms.features) == (0.3, 40, 3)
    assert Terms.read(terms.text) == terms
    with pytest.raises(BadValue, match="the same number of features, got 3 and 4"):
        Terms.settle(config, [*sites, Introduction("c", 5, 1, 4)])
    with pytest.raises(BadValue, match="got only negative ones"):
        Terms.settle(config, [Introduction("a", 10, 0, 3)])
    assert unfit(Introduction("c", 50, 1, 3), width=3, max_rows=50) is None
    assert "has 4 features" in (unfit(Introduction("c", 5, 1, 4), 3, 50) or "")
    assert "`max_rows` allows 50" in (unfit(Introduction("c", 51, 1, 3), 3, 50) or "")
    assert "up to 9 per site" in (unfit(Introduction("c", 10, 1, 3), 3, 50, 9) or "")


def test_a_site_may_hold_one_class_only(here):
    (here / "one.csv").write_text("age,label\n30,no\n40,no\n")
    desk = SiteFolder.of({"data": "one.csv", "positive": "yes", "state": "state"})
    assert desk.introduction() == Introduction("one", 2, 0, 1)
    again = SiteFolder.in_folder(here / "state")
    assert again.introduction().rows == 2
    with pytest.raises(BadValue, match="name the positive class"):
        SiteFolder.of({"data": "one.csv", "state": "other"}).introduction()


def test_new_rows_are_read_again(here):
    desk = SiteFolder.of({"data": "rows.csv", "state": "state"})
    assert desk.introduction().rows == 2
    (here / "rows.csv").write_text("age,label\n30,1\n40,0\n50,0\n")
    assert desk.introduction().rows == 3
    assert len(list((here / "state").glob("rows-*"))) == 1


def test_labels_of_numbers_become_signs():
    import numpy as np

    from sagda.data.federation import Table

    table = Table(np.zeros((3, 1)), np.array([0.0, 1.0, 0.0]))
    assert signed(table, None).label.tolist() == [-1, 1, -1]
    assert signed(table, "0").label.tolist() == [1, -1, 1]
