"""The ClientApp: which part of an error a failing site sends to the server."""

from dataclasses import replace

import pytest

from sagda.federation.protocol.letters import Introduce, Letter
from support import (
    InProcessGrid,
    sites_of,
)

pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")

from flwr.app.message import Message

from sagda.federation.flower import messages

pytestmark = pytest.mark.usefixtures("shared_programs")


def test_what_goes_wrong_at_a_site_stays_there(clients, tmp_path):
    """Flower would send the text of an exception, which can quote a row."""
    sites = sites_of(clients, tmp_path)
    secret = tmp_path / "secret.csv"
    secret.write_text("age,label\nthirty-secret,1\n")
    grid = InProcessGrid([*sites, replace(sites[0], name="bad", data=str(secret))])
    message = Message(messages.records_of(Letter(Introduce("any"))), 105, "query.hello")
    (key,) = grid.push_messages([message])
    (reply,) = grid.pull_messages([key])
    letter = messages.UnreadLetter.of(reply.content).read()
    assert letter.note == ("site", "BadValue at the site.")
