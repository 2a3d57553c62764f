"""Keys of sites, the register of admitted sites, and single seals."""

import datetime

import pytest

from sagda.federation.protocol.wire import Refused
from sagda.federation.trust import site_keys as identity
from sagda.federation.trust.authority import Keys


def test_seals_of_strangers_and_past_their_day_are_refused(tmp_path, monkeypatch):
    keys = Keys(tmp_path / "keys")
    keys.init([], 30)
    secret, public = identity.make_site(tmp_path, "a", 3)
    stranger, _ = identity.make_site(tmp_path, "b", 3)
    keys.admit(public, False)
    register = identity.Register(keys.sites)
    seal = identity.Signer.read(secret).seal(b"mark")
    assert register.who(seal, b"mark") == "a"

    def code(seal, mark=b"mark"):
        with pytest.raises(Refused) as refused:
            register.who(seal, mark)
        return refused.value.refusal.code

    assert code(identity.Signer.read(stranger).seal(b"mark")) == "stranger"
    assert code(seal, b"other") == "signature"
    assert code("") == "unsigned"
    assert code(seal.split()[0] + " !!") == "signature"
    later = identity.today() + datetime.timedelta(days=4)
    monkeypatch.setattr(identity, "today", lambda: later)
    assert code(seal) == "expired"


def test_a_register_passes_over_what_is_no_key(tmp_path):
    keys = Keys(tmp_path / "keys")
    keys.init([], 30)
    _, public = identity.make_site(tmp_path, "a", 30)
    keys.admit(public, False)
    (keys.sites / "half.pub").write_text("")
    (keys.sites / "other.pub").write_text(public.read_text())
    register = identity.Register(keys.sites)
    assert list(register.now()) == ["a"]
    keys.sites.rename(tmp_path / "elsewhere")
    assert list(register.now()) == ["a"]  # a missing folder does not count as empty
