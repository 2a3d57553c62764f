"""The coordinator's keys, and the commands that manage them."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from sagda.check import BadValue
from sagda.federation.trust import site_keys as identity
from sagda.federation.trust.authority import Keys
from support import command


def test_a_key_that_cannot_be_renewed_or_replaced_stays(tmp_path):
    keys = Keys(tmp_path / "keys")
    keys.init([], 30)
    for name in ("a", "b"):
        _, public = identity.make_site(tmp_path, name, 30)
        keys.admit(public, False)
    (tmp_path / "keys" / "ca.key").rename(tmp_path / "safe")
    with pytest.raises(BadValue, match=r"ca\.key does not exist"):
        keys.renew(None, 30)
    assert keys.check()
    wrong = tmp_path / "wrong.pub"
    wrong.write_text((tmp_path / "b.pub").read_text().replace(" b ", " a "))
    with pytest.raises(BadValue, match="is already the key of b"):
        keys.admit(wrong, True)
    assert set(identity.Register(keys.sites).now()) == {"a", "b"}
    _, new = identity.make_site(tmp_path / "new", "a", 30)
    keys.admit(new, True)
    assert (tmp_path / "keys/old/a.pub.1").read_text() == (
        tmp_path / "a.pub"
    ).read_text()
    assert (keys.sites / "a.pub").read_text() == new.read_text()


def test_keys_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command("keys init --host fl.example.org --days 30", capsys=capsys)[0] == 0
    code, out, _ = command("keys site hospital-a --json", capsys=capsys)
    made = json.loads(out)
    assert code == 0
    code, out, _ = command("keys admit hospital-a.pub", capsys=capsys)
    assert made["fingerprint"] in out
    code, out, _ = command("keys show --json", capsys=capsys)
    shown = json.loads(out)
    assert shown["hosts"] == ["fl.example.org"]
    assert [site["name"] for site in shown["sites"]] == ["hospital-a"]
    before = (tmp_path / "keys/server.crt").read_bytes()
    assert command("keys renew --days 40", capsys=capsys)[0] == 0
    assert (tmp_path / "keys/old/server.crt.1").read_bytes() == before
    assert Keys(tmp_path / "keys").hosts == ["fl.example.org"]
    assert command("keys site hospital-a --folder new", capsys=capsys)[0] == 0
    code, _, error = command("keys admit new/hospital-a.pub", capsys=capsys)
    assert code == 2
    assert "holds another key of hospital-a; give --replace" in error
    assert command("keys admit new/hospital-a.pub --replace", capsys=capsys)[0] == 0
    assert command("keys remove hospital-a", capsys=capsys)[0] == 0
    code, _, error = command("serve none.toml", capsys=capsys)
    assert code == 2
    for name in ("ca.key", "server.key"):
        assert stat.S_IMODE((tmp_path / "keys" / name).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "hospital-a.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("keys init", "keys/ca.crt exists; keys are never overwritten"),
        ("keys init --keys k --host a/b", "`--host` must be a name or an address"),
        ("keys init --keys k --days 0", "`days` must be between 1 and 3650"),
        ("keys site a", "a.key exists; keys are never overwritten"),
        ("keys site a/b", "a site's name must be 1 to 64 letters"),
        ("keys admit none.pub", "none.pub does not exist"),
        ("keys admit keys/ca.crt", "must hold one line with an elliptic-curve"),
        ("keys admit a.key", "must hold one line with an elliptic-curve"),
        ("keys admit b.pub", "b.pub is already the key of a; each site needs its own"),
        ("keys remove nobody", "nobody.pub does not exist"),
        ("keys show --keys none", "none must hold the coordinator's keys, found none"),
        (
            "join --server 127.0.0.1:8 --data rows.csv --key open.key --ca keys/ca.crt",
            "open.key is secret, but others can read it (mode 644); run `chmod 600",
        ),
        (
            "join --server 127.0.0.1:8 --data rows.csv --key a.key --ca keys/ca.crt",
            "must be the key of rows, but a.key is the key of a",
        ),
        ("serve good.toml --keys k2", "k2/sites must hold the public key of at least"),
    ],
)
def test_a_mistake_with_keys_gets_one_sentence(
    line, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Keys(Path("keys")).init([], 30)
    Keys(Path("k2")).init([], 30)
    _, public = identity.make_site(Path(), "a", 30)
    Keys(Path("keys")).admit(public, False)
    Path("b.pub").write_text(public.read_text().replace(" a ", " b "))
    shutil.copy("a.key", "open.key")
    os.chmod("open.key", 0o644)
    Path("rows.csv").write_text("age,label\n30,1\n40,0\n")
    Path("good.toml").write_text('algorithms = ["sagda-i"]\n')
    code, _, error = command(line, capsys=capsys)
    assert code == 2, error
    assert said in error.replace(f"{tmp_path}/", "")
    assert len(error.splitlines()) == 1
