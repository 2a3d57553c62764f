"""Sites behind Flower's grid that fail, or send malformed or false answers."""

import json

import pytest

from sagda.federation import verify
from sagda.federation.protocol.letters import Introduction
from support import (
    InProcessGrid,
    failed_reply,
    lost_reply,
    run_in,
    sites_of,
    spoiling,
)

pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")

from flwr.app import ArrayRecord, RecordDict
from flwr.app.message import Message

from sagda.federation.flower import grid

pytestmark = pytest.mark.usefixtures("shared_programs")


def twice(grid):
    """Return a change that repeats the site's first answer in every later round."""
    replies = []

    def change(message, reply):
        replies.append(reply)
        if len(replies) == 1:
            return reply
        return Message(replies[0].content, reply_to=message)

    return change


def without_note(message, reply):
    return Message(RecordDict(), reply_to=message)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (without_note, "format"),
        (failed_reply, "error"),
        (lost_reply, "late"),
        ("twice", "ticket"),
    ],
)
def test_a_client_that_fails_is_refused_and_the_round_continues(
    change, code, clients, tmp_path
):
    sites = sites_of(clients, tmp_path)
    grid = InProcessGrid(sites)
    change = twice(grid) if change == "twice" else change
    spoiling(grid, 102, 2, change)
    table = "timeout = 0.3"
    folder = run_in(tmp_path, sites, grid=grid, table=table, cohort=5, rounds=4)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["federation"]["refused"][code] >= 1
    record = verify.read_saved(folder)
    assert record.state.round == 4
    assert all(f.holds for f in verify.verify(record, {d.name: d.state for d in sites}))
    state = verify.replay(record, {site.name: site for site in sites})
    assert verify.same_state(record.state, state)


def hostile(clients, tmp_path, note=None, **records):
    """Run a federation in which site-2 changes its answers or adds records."""
    sites = sites_of(clients, tmp_path)
    grid = InProcessGrid(sites)

    def change(node, message, reply):
        if node != 102 or message.metadata.message_type.startswith("query"):
            return reply
        content = reply.content
        if note is not None:
            text = json.loads(content["note"]["text"])
            text["note"] |= note
            content["note"]["text"] = json.dumps(text)
        for name, record in records.items():
            content[name] = record
        return reply

    grid.spoil = change
    folder = run_in(tmp_path, sites, grid=grid, cohort=5)
    record = verify.read_saved(folder)
    assert record.state.round == 3
    assert all(f.holds for f in verify.verify(record, {d.name: d.state for d in sites}))
    summary = json.loads((folder / "summary.json").read_text())
    return record, summary["federation"]["refused"]


@pytest.mark.parametrize("field", ["version", "code", "name", "base", "ticket"])
def test_a_record_under_another_fields_name_is_nothing(field, clients, tmp_path):
    hostile(clients, tmp_path, **{field: ArrayRecord()})


def test_a_version_of_another_ticket_is_refused(clients, tmp_path):
    """The table could hold that version already, and its file would not be replaced."""
    record, refused = hostile(clients, tmp_path, note={"version": [[1, 1], 7]})
    assert refused["version"] == 3
    assert record.state.members["site-2"].memory is None


def test_a_message_that_flower_cannot_open_is_one_refusal(clients, tmp_path):
    sites = sites_of(clients, tmp_path)
    grid = InProcessGrid(sites)
    whole = grid.pull_messages

    def pull(keys):
        arrived = whole(keys)
        for message in arrived:
            kind = message.metadata.message_type
            if message.metadata.src_node_id == 102 and kind.startswith("train"):
                raise KeyError("a child is missing")
        return arrived

    grid.pull_messages = pull
    folder = run_in(tmp_path, sites, grid=grid, cohort=5)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["federation"]["refused"] == {"format": 3}


def test_moments_that_no_rows_have_are_refused():
    good = Introduction("a", 20, 3, 2, False, (0.5, 1.0), (3.0, 4.0))
    assert grid.flaw_in(good) is None
    for bad in (
        good._replace(mean=(0.5,)),
        good._replace(squares=(3.0, -1.0)),
        good._replace(mean=(float("nan"), 1.0)),
        good._replace(mean=()),
    ):
        assert "moments that no rows can have" in (grid.flaw_in(bad) or ("", ""))[1]
