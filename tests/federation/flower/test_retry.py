"""Calls that are repeated after an error inside the SuperLink (status 5xx)."""

import itertools

import httpx
import numpy as np
import pytest

from sagda.runs.results import read_results
from support import (
    SITES,
    InProcessGrid,
    run_in,
    simulated,
    sites_of,
)

pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")

from flwr.app import RecordDict
from flwr.app.message import Message
from flwr.proto.message_pb2 import ObjectTree

from sagda.federation.flower import retry as flower_again

pytestmark = pytest.mark.usefixtures("shared_programs")


def failing(call, status, times):
    """Return `call`, whose first `times` calls fail with this HTTP status."""
    left = itertools.chain([status] * times, itertools.repeat(None))

    def answered(*args, **kwargs):
        if code := next(left):
            request = httpx.Request("POST", "https://superlink/v1/runtime")
            httpx.Response(code, request=request).raise_for_status()
        return call(*args, **kwargs)

    return answered


def test_a_superlink_whose_database_is_locked_is_asked_again(
    clients, tmp_path, monkeypatch
):
    monkeypatch.setattr(flower_again, "PAUSES", (0.0, 0.0))
    sites = sites_of(clients, tmp_path)
    grid = InProcessGrid(sites)
    grid.pull_messages = failing(grid.pull_messages, 500, 2)
    grid.get_node_ids = failing(grid.get_node_ids, 500, 2)
    results = read_results(run_in(tmp_path, sites, grid=grid))
    expected = simulated(clients, "sagda-i", 3).history["phi"]
    phi = results.columns["sagda-i"]["phi"]
    np.testing.assert_allclose(phi, expected, rtol=1e-9)
    assert results.columns["sagda-i"]["evaluated"][0, 0] == SITES
    # `again` gives up after some attempts, and at once if the request is wrong (4xx).
    for status, times in ((500, 3), (401, 1)):
        with pytest.raises(httpx.HTTPStatusError):
            flower_again.again(failing(list, status, times))()


def test_a_node_sends_an_answer_again(monkeypatch):
    from flwr.supernode import start_client_internal as internal

    from sagda.federation.flower import guards

    # `monkeypatch` restores the functions. The guards would affect later tests.
    for part in (guards.PULL_MESSAGE, guards.PUSH_MESSAGES):
        monkeypatch.setattr(internal, part.name, part.get())
    monkeypatch.setattr(flower_again, "PAUSES", (0.0,))
    guards.guard_node()
    sent, deleted = [], []

    class State:
        def get_messages_legacy(self, is_reply):
            return [Message(RecordDict(), dst_node_id=1, message_type="train")]

        def get_message_processing_duration(self, message_id):
            return 0.1

        def delete_messages(self, message_ids):
            deleted.append(message_ids)

    class Objects:
        def get_object_tree(self, message_id):
            return ObjectTree()

        def delete(self, *args):
            pass

    def send(message, tree, seconds):
        sent.append(message)
        return set(), "session"

    push = guards.PUSH_MESSAGES.get()
    push(
        state=State(), object_store=Objects(), send=failing(send, 500, 1),
        push_object=lambda *args: None,
    )  # fmt: skip
    assert len(sent) == len(deleted) == 1
