"""Runs with sealed answers: what is refused, and what the audit log proves."""

import shutil
import stat
from dataclasses import replace

import pytest

from sagda.federation import verify
from sagda.federation.trust import site_keys as identity
from sagda.federation.trust.authority import Keys
from support import SITES, InProcessGrid, config_of, lead, read_audit, run_in, sites_of

pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture
def signed(clients, tmp_path):
    """Sites with keys, and the keys of a server that has admitted them."""
    keys = Keys(tmp_path / "keys")
    keys.init([], 30)
    sites = []
    for site in sites_of(clients, tmp_path):
        secret, public = identity.make_site(tmp_path, site.name, 30)
        keys.admit(public, False)
        sites.append(replace(site, key=str(secret)))
    return sites, keys


def run_signed(folder, sites, keys, spoil=None, **options):
    grid = InProcessGrid(sites)
    if spoil is not None:
        grid.spoil = spoil
    register = identity.Register(keys.sites)
    config = config_of(folder, cohort=SITES, rounds=2, **options)
    lead(folder / "run", grid, register, config)
    return read_audit(folder / "run" / "server")


def test_answers_are_sealed_and_the_audit_log_can_prove_them(signed, tmp_path):
    sites, keys = signed
    lines = run_signed(tmp_path, sites, keys)
    told = [line for line in lines if line["what"] == "accepted"]
    phases = [line["phase"] for line in told]
    assert phases.count("hello") == SITES
    assert phases.count("local") == 2 * SITES
    register = identity.Register(keys.sites)
    for line in told:
        who = register.who(line["seal"], bytes.fromhex(line["mark"]))
        assert who == line["name"]
    assert all(line["what"] != "refused" for line in lines)
    assert stat.S_IMODE((tmp_path / "run/server/audit.jsonl").stat().st_mode) == 0o600


LIAR = 102


def local(message):
    return message.metadata.message_type.startswith("train")


def tampered(node, message, reply):
    """Change one bit of an answer, as an attacker on the network could."""
    if node == LIAR and local(message):
        record = reply.content["payload"]
        array = next(iter(record.values()))
        array.data = bytes([array.data[0] ^ 1]) + array.data[1:]
    return reply


def unsigned(node, message, reply):
    if node == LIAR and local(message):
        reply.content["note"]["seal"] = ""
    return reply


class Replayed:
    """Repeats the first answer, whose seal is valid only for an earlier letter."""

    def __init__(self):
        self.first = None

    def __call__(self, node, message, reply):
        if node == LIAR and local(message):
            self.first = self.first or reply.content
            reply._content = self.first
        return reply


@pytest.mark.parametrize(
    ("spoil", "code", "times"),
    [(tampered, "signature", 2), (unsigned, "unsigned", 2), (Replayed, "signature", 1)],
    ids=["tampered", "unsigned", "replayed"],
)
def test_a_false_answer_is_refused_and_named(spoil, code, times, signed, tmp_path):
    sites, keys = signed
    spoil = spoil() if isinstance(spoil, type) else spoil
    lines = run_signed(tmp_path, sites, keys, spoil)
    found = [line for line in lines if line["what"] == "refused"]
    assert [(line["name"], line["code"]) for line in found] == [
        ("site-2", code)
    ] * times
    assert all(line["mark"] for line in found)
    assert all(bool(line["seal"]) == (code != "unsigned") for line in found)
    saved = verify.read_saved(tmp_path / "run")
    assert saved.state.round == 2
    assert all(finding.holds for finding in verify.verify(saved, {}))


def test_a_key_opens_one_name_only(signed, tmp_path):
    sites, keys = signed
    thief = replace(sites[2], name="site-1", state=tmp_path / "thief")
    sites = [*sites[:2], thief, *sites[3:]]
    config = config_of(tmp_path, cohort=4, rounds=1)
    config.write_text(config.read_text().replace(f"sites = {SITES}", "sites = 4"))
    grid = InProcessGrid(sites)
    register = identity.Register(keys.sites)
    lead(tmp_path / "run", grid, register, config)
    lines = read_audit(tmp_path / "run" / "server")
    named = {line["code"] for line in lines if line["what"] == "refused"}
    assert named == {"name"}
    assert "site-2" not in verify.read_saved(tmp_path / "run").state.members


def test_what_answers_nothing_is_dropped(signed, tmp_path):
    """Flower lets a node send unrequested messages under the name of any node."""
    from flwr.app import Message

    sites, keys = signed
    grid = InProcessGrid(sites)
    pull = grid.pull_messages

    def injected(ids):
        found = list(pull(ids))
        strays = []
        for message in found:
            other = Message(message.content, 1, "train")
            other.metadata.__dict__["_reply_to_message_id"] = ""
            strays += [other, other]
        return [*strays, *found]

    grid.pull_messages = injected
    register = identity.Register(keys.sites)
    config = config_of(tmp_path, cohort=SITES, rounds=2)
    lead(tmp_path / "run", grid, register, config)
    assert verify.read_saved(tmp_path / "run").state.round == 2
    lines = read_audit(tmp_path / "run" / "server")
    assert all(line["what"] != "refused" for line in lines)


def test_a_site_answers_nobody_who_would_use_it_alone(clients, tmp_path):
    sites = sites_of(clients, tmp_path)
    sites = [replace(site, least=3) for site in sites[:1]] + sites[1:]
    folder = run_in(tmp_path, sites, table="min_clients = 2", cohort=SITES, rounds=2)
    lines = read_audit(folder / "server")
    refused = [line for line in lines if line["what"] == "refused"]
    assert {(line["name"], line["code"]) for line in refused} == {("site-0", "alone")}
    assert verify.read_saved(folder).state.members["site-0"].version is None


def test_an_old_backup_of_the_server_goes_on_exactly(signed, tmp_path):
    sites, keys = signed
    run_signed(tmp_path, sites, keys)
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    grid = InProcessGrid(sites)
    register = identity.Register(keys.sites)

    def longer(rounds):
        path = tmp_path / "run" / "config.toml"
        path.write_text(path.read_text().replace("rounds = 2", f"rounds = {rounds}"))
        lead(tmp_path / "run", grid, register)
        return verify.read_saved(tmp_path / "run")

    first = longer(4)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "backup").rename(tmp_path / "run")
    again = longer(4)
    assert again.state.round == 4
    assert verify.same_state(first.state, again.state)
    states = {site.name: site.state for site in sites}
    assert all(finding.holds for finding in verify.verify(again, states))


def test_a_site_whose_key_was_removed_goes_with_its_variate(signed, tmp_path):
    sites, keys = signed
    run_signed(tmp_path, sites, keys)
    keys.remove("site-4")
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace("rounds = 2", "rounds = 3"))
    grid = InProcessGrid(sites)
    register = identity.Register(keys.sites)
    lead(tmp_path / "run", grid, register)
    saved = verify.read_saved(tmp_path / "run")
    assert sorted(saved.state.members) == [site.name for site in sites[:4]]
    assert all(finding.holds for finding in verify.verify(saved, {}))
    lines = read_audit(tmp_path / "run" / "server")
    assert any(line["what"] == "left" and line["name"] == "site-4" for line in lines)
    strange = [line for line in lines if line.get("code") == "stranger"]
    assert strange
    assert verify.same_state(
        saved.state, verify.replay(saved, {site.name: site for site in sites})
    )
