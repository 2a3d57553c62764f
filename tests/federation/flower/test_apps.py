"""Federations through Flower's own messages and apps, in this process."""

import itertools
import json

import jax
import numpy as np
import pandas
import pytest
from sklearn.metrics import roc_auc_score

import sagda
from sagda.algorithms import ALGORITHMS
from sagda.check import BadValue
from sagda.commands import main as cli
from sagda.data.recipe import Scaling, scaled
from sagda.federation.protocol.letters import Introduce, Introduction, Letter
from sagda.federation.protocol.wire import Refused
from sagda.federation.server import federated_run as conducting
from sagda.federation.server import verify as replays
from sagda.federation.server.federated_run import NoClients, rows_of
from sagda.federation.server.store import ServerStore
from sagda.federation.site.folder import LEAVING, MODEL, SiteFolder
from sagda.models.user_code import model_of
from sagda.runs.config import Config
from sagda.runs.experiment import method_of
from sagda.runs.results import read_results
from sagda.scoring.calibration import calibrated
from sagda.scoring.scorer import Scorer, scored
from support import (
    SITES,
    InProcessGrid,
    config_of,
    flat,
    lead,
    run_in,
    sites_of,
    uneven_table,
)

flwr = pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")

import httpx  # noqa: E402
from flwr.app import ArrayRecord, RecordDict  # noqa: E402
from flwr.app.error import Error  # noqa: E402
from flwr.app.message import Message  # noqa: E402
from flwr.proto.message_pb2 import ObjectTree  # noqa: E402

from sagda.federation.flower import apps, grid, messages  # noqa: E402
from sagda.federation.flower import retry as flower_again  # noqa: E402

pytestmark = pytest.mark.usefixtures("shared_programs")


def simulated(clients, name, rounds):
    method = method_of(Config(local_lr=0.05, local_steps=3), name)
    return sagda.simulate(
        method, sagda.AUC.of(clients), clients, rounds=rounds, cohort=3, batch_size=2,
        seeds=4, float64=True, layout="batched/1",
    )  # fmt: skip


TELLING = ("sagda-i", "sagda-ii", "momentum-local-sgda", "cd-mage-plus")
EVERY = [
    pytest.param(name, marks=() if name in TELLING else pytest.mark.slow)
    for name in sorted(ALGORITHMS)
]


@pytest.mark.parametrize("name", EVERY)
def test_every_algorithm_agrees_with_the_simulator(name, clients, tmp_path):
    desks = sites_of(clients, tmp_path)
    folder = run_in(tmp_path, desks, name)
    run = simulated(clients, name, 3)
    found = read_results(folder).columns[name]
    kept = replays.read_kept(folder)
    np.testing.assert_allclose(
        flat(kept.book.state.z), flat(run.carry.state.z), rtol=1e-10, atol=1e-12
    )
    for column in run.history.columns:
        if column not in ("seconds", "eval_bytes"):
            np.testing.assert_allclose(
                found[column], run.history[column], rtol=1e-6, err_msg=column
            )
    for column in ("grad_phi_sq", "phi", "f", "bytes_down", "bytes_up", "samples"):
        np.testing.assert_allclose(
            found[column], run.history[column], rtol=1e-10, atol=1e-14, err_msg=column
        )
    assert (found["framing_bytes"][0, 1:] > 0).all()
    assert (found["eval_bytes"][0] > 0).all()


def test_a_run_can_be_verified_and_computed_anew(clients, tmp_path):
    desks = sites_of(clients, tmp_path)
    folder = run_in(tmp_path, desks)
    kept = replays.read_kept(folder)
    findings = replays.verify(kept, {desk.name: desk.state for desk in desks})
    assert len(findings) == 3 + SITES
    assert all(finding.holds for finding in findings)
    book = replays.replay(kept, {desk.name: desk for desk in desks})
    assert replays.same_state(kept.book, book)
    z = book.state.z
    assert not replays.same_state(
        kept.book, book._replace(state=book.state._replace(z=2.0 * z))
    )
    # A table that was changed by hand is found out, file by file.
    file = next((folder / "server").glob("member-site-0-*"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(BadValue, match="is damaged: its sha256"):
        replays.read_kept(folder)


def test_sites_are_left_with_the_model(clients, tmp_path):
    desks = sites_of(clients, tmp_path)
    run_in(tmp_path, desks, rounds=1)
    from safetensors.numpy import load_file

    model = load_file(desks[0].state / MODEL)
    assert set(model) == {"x/model", "x/c_1", "x/c_2", "y"}
    said = json.loads((desks[0].state / "farewell.json").read_text())
    assert said == {"run": "run1", "round": 1, "reason": "done"}


def crash_after(monkeypatch, count):
    """The server's process ends in the middle of its count-th durable write."""
    from sagda import durable

    whole, left = durable.write, itertools.count(count, -1)

    def write(path, content):
        if path.parent.name == "server" and next(left) == 0:
            raise KeyboardInterrupt
        return whole(path, content)

    monkeypatch.setattr(durable, "write", write)


LATER = [pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 9, 12, 17)]


@pytest.mark.parametrize("count", [0, 5, 13, *LATER])
def test_a_server_that_was_killed_goes_on_bit_for_bit(
    count, clients, tmp_path, monkeypatch
):
    desks = sites_of(clients, tmp_path)
    (tmp_path / "whole").mkdir()
    whole = run_in(tmp_path / "whole", sites_of(clients, tmp_path / "whole"))
    with monkeypatch.context() as patched:
        crash_after(patched, count)
        with pytest.raises(KeyboardInterrupt):
            run_in(tmp_path, desks)
    folder = run_in(tmp_path, desks)
    a, b = replays.read_kept(whole).book, replays.read_kept(folder).book
    assert a.round == b.round == 3
    np.testing.assert_array_equal(flat(a.state), flat(b.state))
    for name in a.members:
        np.testing.assert_array_equal(
            flat(a.members[name].memory), flat(b.members[name].memory)
        )
    assert (whole / "model.safetensors").read_bytes() == (
        folder / "model.safetensors"
    ).read_bytes()
    rounds = [row["round"] for row in rows_of(ServerStore(folder / "server"))]
    assert rounds == [0, 1, 2, 3]


def spoiling(grid, node, times, change):
    """Change so many of a node's training replies."""
    left = [times]

    def spoil(at, message, reply):
        training = message.metadata.message_type.startswith("train")
        if at != node or not training or not left[0]:
            return reply
        left[0] -= 1
        return change(message, reply)

    grid.spoil = spoil
    return grid


def twice(grid):
    """Its first answer comes again in the next round."""
    kept = []

    def change(message, reply):
        kept.append(reply)
        if len(kept) == 1:
            return reply
        return Message(kept[0].content, reply_to=message)

    return change


def without_note(message, reply):
    return Message(RecordDict(), reply_to=message)


def error(message, reply):
    return Message(Error(2, "it raised"), reply_to=message)


def lost(message, reply):
    return None


@pytest.mark.parametrize(
    ("change", "code"),
    [(without_note, "format"), (error, "error"), (lost, "late"), ("twice", "ticket")],
)
def test_a_client_that_fails_is_refused_and_the_round_goes_on(
    change, code, clients, tmp_path
):
    desks = sites_of(clients, tmp_path)
    grid = InProcessGrid(desks)
    change = twice(grid) if change == "twice" else change
    spoiling(grid, 102, 2, change)
    table = "timeout = 0.3"
    folder = run_in(tmp_path, desks, grid=grid, table=table, cohort=5, rounds=4)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["federation"]["refused"][code] >= 1
    kept = replays.read_kept(folder)
    assert kept.book.round == 4
    assert all(f.holds for f in replays.verify(kept, {d.name: d.state for d in desks}))
    book = replays.replay(kept, {desk.name: desk for desk in desks})
    assert replays.same_state(kept.book, book)


def test_too_few_answers_end_the_server_with_everything_kept(clients, tmp_path):
    desks = sites_of(clients, tmp_path)
    grid = InProcessGrid(desks)
    spoiling(grid, 102, 10**9, lost)
    table = "timeout = 0.05\nwait = 0.5\nmin_clients = 5"
    with pytest.raises(NoClients, match="fewer than 5 sites answered"):
        run_in(tmp_path, desks, grid=grid, table=table, cohort=5)
    status = json.loads((tmp_path / "run" / "server" / "status.json").read_text())
    assert status["code"] == 4
    assert "goes on from there" in status["sentence"]
    assert replays.read_kept(tmp_path / "run").book.round == 0


def test_sites_join_and_leave_while_it_runs(clients, tmp_path, monkeypatch):
    desks = sites_of(clients, tmp_path)
    grid = InProcessGrid(desks[:4])
    late = iter([False] * 3)

    def ids(self):
        # The fifth comes after a while; the first wants to go after that.
        if next(late, True) and 104 not in self.nodes:
            self.nodes[104] = desks[4]
        kept = tmp_path / "run" / "server" / "manifest.json"
        if kept.exists() and json.loads(kept.read_text())["round"] == 3:
            (desks[0].state / LEAVING).touch()
            self.nodes.pop(100, None)
            self.nodes[105] = desks[0]
        return list(self.nodes)

    monkeypatch.setattr(InProcessGrid, "get_node_ids", ids)
    config = config_of(tmp_path, rounds=6, cohort=4)
    text = config.read_text().replace(f"sites = {SITES}", "sites = 4")
    config.write_text(text)
    lead(tmp_path / "run", grid, config=config)
    kept = replays.read_kept(tmp_path / "run")
    assert sorted(kept.book.members) == ["site-1", "site-2", "site-3", "site-4"]
    assert {m.number for m in kept.book.members.values()} == {1, 2, 3, 4}
    assert all(f.holds for f in replays.verify(kept, {d.name: d.state for d in desks}))
    book = replays.replay(kept, {desk.name: desk for desk in desks})
    assert replays.same_state(kept.book, book)
    said = json.loads((desks[0].state / "farewell.json").read_text())
    assert said["reason"] == "left"


def test_a_silent_site_is_removed_with_its_variate_if_so_configured(clients, tmp_path):
    desks = sites_of(clients, tmp_path)
    grid = InProcessGrid(desks)
    spoiling(grid, 102, 10**9, error)
    folder = run_in(
        tmp_path, desks, grid=grid, table="max_absence = 2", cohort=5, rounds=4
    )
    kept = replays.read_kept(folder)
    assert "site-2" not in kept.book.members
    assert len(kept.book.members) == 4
    assert all(finding.holds for finding in replays.verify(kept, {}))


def failing(call, status, times):
    """`call`, whose first answers are a SuperLink's failures."""
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
    desks = sites_of(clients, tmp_path)
    grid = InProcessGrid(desks)
    grid.pull_messages = failing(grid.pull_messages, 500, 2)
    grid.get_node_ids = failing(grid.get_node_ids, 500, 2)
    found = read_results(run_in(tmp_path, desks, grid=grid))
    expected = simulated(clients, "sagda-i", 3).history["phi"]
    phi = found.columns["sagda-i"]["phi"]
    np.testing.assert_allclose(phi, expected, rtol=1e-9)
    assert found.columns["sagda-i"]["evaluated"][0, 0] == SITES
    # Not forever, and not where the failure is ours: the run is over, or not known.
    for status, times in ((500, 3), (401, 1)):
        with pytest.raises(httpx.HTTPStatusError):
            flower_again.again(failing(list, status, times))()


def test_a_node_sends_an_answer_again(monkeypatch):
    from flwr.supernode import start_client_internal as internal

    from sagda.federation.flower import guards

    # Put back afterwards, since the guard stays for as long as its process lives.
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


def test_a_measurement_that_nobody_answered_is_asked_again(clients, tmp_path):
    desks = sites_of(clients, tmp_path)
    grid = InProcessGrid(desks)
    asked = itertools.count()

    def spoil(node, message, reply):
        """All are silent at first, but for their introductions."""
        hello = message.metadata.message_type == "query.hello"
        error = Error(0, "silent")
        return reply if hello or next(asked) >= 8 else Message(error, reply_to=message)

    grid.spoil = spoil
    folder = run_in(tmp_path, desks, grid=grid, eval_every=3)
    found = read_results(folder).columns["sagda-i"]
    assert found["round"].ravel().tolist() == [0, 3]
    assert found["evaluated"].ravel().tolist() == [SITES] * 2
    assert found["lost_rounds"].ravel().tolist() == [1, 1]


def test_a_reset_sets_all_variates_back(clients, tmp_path, monkeypatch):
    desks = sites_of(clients, tmp_path)
    run_in(tmp_path, desks, rounds=2)
    folder = tmp_path / "run"
    longer = (folder / "config.toml").read_text().replace("rounds = 2", "rounds = 4")
    (folder / "config.toml").write_text(longer)
    (folder / "server" / "reset").touch()
    lead(folder, InProcessGrid(desks))
    assert not (folder / "server" / "reset").exists()
    kept = replays.read_kept(folder)
    assert (kept.book.round, kept.book.epoch) == (4, 1)
    book = replays.replay(kept, {desk.name: desk for desk in desks})
    assert replays.same_state(kept.book, book)


def hostile(clients, tmp_path, note=None, **records):
    """A run in which site-2 changes the text or adds records to all its answers."""
    desks = sites_of(clients, tmp_path)
    grid = InProcessGrid(desks)

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
    folder = run_in(tmp_path, desks, grid=grid, cohort=5)
    kept = replays.read_kept(folder)
    assert kept.book.round == 3
    assert all(f.holds for f in replays.verify(kept, {d.name: d.state for d in desks}))
    summary = json.loads((folder / "summary.json").read_text())
    return kept, summary["federation"]["refused"]


@pytest.mark.parametrize("field", ["version", "code", "name", "base", "ticket"])
def test_a_record_under_another_fields_name_is_nothing(field, clients, tmp_path):
    hostile(clients, tmp_path, **{field: ArrayRecord()})


def test_a_version_of_another_ticket_is_refused(clients, tmp_path):
    """It could be the one that the table has, whose file would then stay as it is."""
    kept, refused = hostile(clients, tmp_path, note={"version": [[1, 1], 7]})
    assert refused["version"] == 3
    assert kept.book.members["site-2"].memory is None


def test_a_message_that_flower_cannot_open_is_one_refusal(clients, tmp_path):
    desks = sites_of(clients, tmp_path)
    grid = InProcessGrid(desks)
    whole = grid.pull_messages

    def pull(keys):
        found = whole(keys)
        for message in found:
            kind = message.metadata.message_type
            if message.metadata.src_node_id == 102 and kind.startswith("train"):
                raise KeyError("a child is missing")
        return found

    grid.pull_messages = pull
    folder = run_in(tmp_path, desks, grid=grid, cohort=5)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["federation"]["refused"] == {"format": 3}


def test_the_only_member_may_leave(clients, tmp_path):
    desks = sites_of(clients, tmp_path)
    run_in(tmp_path, desks, rounds=1)
    folder = tmp_path / "run"
    longer = (folder / "config.toml").read_text().replace("rounds = 1", "rounds = 2")
    longer = longer.replace("timeout = 120.0", "timeout = 0.1")
    longer = longer.replace("wait = 600.0", "wait = 0.2")
    (folder / "config.toml").write_text(longer)
    for desk in desks:
        (desk.state / LEAVING).touch()
    grid = InProcessGrid(desks)
    with pytest.raises(NoClients):
        lead(folder, grid)
    kept = replays.read_kept(folder)
    assert not kept.book.members
    assert not list((folder / "server").glob("member-*"))
    assert all(finding.holds for finding in replays.verify(kept, {}))


def test_sites_standardise_from_sums_and_both_ends_can_score(tmp_path):
    clients = uneven_table([12] * SITES)
    wild = (7 * clients.data.features + 3).astype(np.float32)
    clients = clients._replace(data=clients.data._replace(features=wild))
    desks = sites_of(clients, tmp_path)
    folder = run_in(tmp_path, desks, standardise=True)
    kept = replays.read_kept(folder)
    scaling = Scaling.of(clients)
    np.testing.assert_allclose(kept.terms.mean, scaling.mean, rtol=1e-8)
    np.testing.assert_allclose(kept.terms.scale, scaling.scale, rtol=1e-8)
    seen = clients._replace(data=scaled(clients.data, scaling))
    run = simulated(seen, "sagda-i", 3)
    assert np.allclose(flat(kept.book.state.z), flat(run.carry.state.z), rtol=1e-6)
    assert "[]" in json.dumps(
        ServerStore(folder / "server").manifest()["census"]["site-0"]
    )
    rows = {desk.name: desk for desk in desks}
    assert replays.same_state(replays.replay(kept, rows), kept.book)
    server, site = Scorer.load(folder), Scorer.load(desks[1].state)
    file = tmp_path / "site-1.npz"
    np.testing.assert_array_equal(
        server.predict(file, label="label"), site.predict(file, label="label")
    )
    x = jax.tree.map(lambda a: a[0], run.z).x
    alike = scored(kept.plan.problem, x, seen.data.features)
    np.testing.assert_allclose(
        site.predict(file, label="label"), alike[12:24], rtol=1e-5, atol=1e-6
    )
    assert server.calibration == site.calibration
    parts = [(alike, clients.data.label > 0)]
    np.testing.assert_allclose(server.calibration, calibrated(parts), rtol=1e-3)


def test_a_federations_models_can_be_judged(tmp_path, capsys):
    clients = uneven_table([12] * SITES)
    columns = dict(zip("abcd", clients.data.features.T, strict=True))
    frame = pandas.DataFrame(columns | {"label": clients.data.label})
    desks = sites_of(clients, tmp_path)
    for i, desk in enumerate(desks):
        frame[12 * i : 12 * (i + 1)].to_csv(tmp_path / f"{i}.csv", index=False)
        desks[i] = desk._replace(data=str(tmp_path / f"{i}.csv"))
    folder = run_in(tmp_path, desks)
    card = (folder / "MODEL_CARD.md").read_text()
    assert "every site's own" in card
    assert "A federation: rows stayed at their sites" in card
    # A site knows its columns by name, the server by place; neither scores the label.
    moved = tmp_path / "moved.csv"
    frame[["label", "d", "b", "a", "c"]].to_csv(moved, index=False)
    frame.to_csv(tmp_path / "all.csv", index=False)
    scores = Scorer.load(desks[1].state).predict(moved)
    np.testing.assert_allclose(
        Scorer.load(folder).predict(tmp_path / "all.csv"), scores, rtol=1e-12
    )
    for place in (folder, desks[1].state):
        arguments = ["evaluate", str(place), str(tmp_path / "all.csv"), "--json"]
        assert cli.main(arguments) == 0
        told = json.loads(capsys.readouterr().out)
        auc = roc_auc_score(clients.data.label, scores)
        assert told["auc"]["value"] == pytest.approx(auc)
    assert f"{auc:.4f} [" in (folder / "MODEL_CARD.md").read_text()


NETS = """
import torch

def make(features):
    return torch.nn.Sequential(
        torch.nn.Linear(features, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
    )
"""


@pytest.mark.parametrize("name", ["sagda-i", "sagda-ii"])
def test_a_pytorch_model_agrees_with_the_simulator(name, clients, tmp_path):
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'sagda[torch]'")
    (tmp_path / "nets.py").write_text(NETS)
    own = f"{tmp_path / 'nets.py'}:make"
    desks = [d._replace(model=own) for d in sites_of(clients, tmp_path)]
    folder = run_in(tmp_path, desks, name, model="nets.py:make", float64=False)
    kept = replays.read_kept(folder)
    model = model_of("nets.py:make", clients.data.features.shape[1])
    method = method_of(Config(local_lr=0.05, local_steps=3), name)
    run = sagda.simulate(
        method, sagda.AUC.of(clients, model), clients, rounds=3, cohort=3,
        batch_size=2, seeds=4,
    )  # fmt: skip
    np.testing.assert_allclose(
        flat(kept.book.state.z), flat(run.carry.state.z), rtol=1e-4, atol=1e-6
    )
    found = read_results(folder).columns[name]
    for column in ("phi", "grad_phi_sq", "auc_train"):
        np.testing.assert_allclose(
            found[column][0], run.history[column][0], rtol=1e-4, err_msg=column
        )
    rows = {desk.name: desk for desk in desks}
    assert replays.same_state(replays.replay(kept, rows), kept.book)
    file = tmp_path / "site-1.npz"
    scores = Scorer.load(desks[1].state, model=own).predict(file, label="label")
    x = jax.tree.map(lambda a: a[0], run.z).x
    alike = scored(kept.plan.problem, x, clients.data.features)
    np.testing.assert_allclose(scores, alike[4:8], rtol=1e-4, atol=1e-6)


def test_a_module_that_cannot_do_ends_a_federation_at_once(clients, tmp_path):
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'sagda[torch]'")
    text = NETS.replace("torch.nn.Tanh()", "torch.nn.BatchNorm1d(5)")
    (tmp_path / "norms.py").write_text(text)
    own = f"{tmp_path / 'norms.py'}:make"
    desks = [d._replace(model=own) for d in sites_of(clients, tmp_path)]
    with pytest.raises(BadValue, match="BatchNorm1d '1' changes 'running_mean'"):
        run_in(tmp_path, desks, model="norms.py:make", float64=False)


def test_decay_and_clipping_go_with_robust_losses(clients, tmp_path):
    desks = sites_of(clients, tmp_path)
    own = {"problem": "dro", "weight_decay": 0.1, "clip": 1.0}
    folder = run_in(tmp_path, desks, table="share_losses = true", **own)
    assert np.isfinite(read_results(folder).columns["sagda-i"]["phi"]).all()


def test_a_site_runs_no_model_that_it_was_not_told_of(clients, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'sagda[torch]'")
    monkeypatch.setattr(conducting, "RETRY", 0.0)
    (tmp_path / "nets.py").write_text(NETS)
    desks = sites_of(clients, tmp_path)
    with pytest.raises(NoClients, match="fewer than 2 sites answered"):
        run_in(tmp_path, desks, model="nets.py:make", table="wait = 0.5")
    told = (tmp_path / "run" / "server" / "audit.jsonl").read_text()
    assert "Refused at the site" in told


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


def test_a_site_of_few_rows_keeps_its_moments(clients, tmp_path):
    (desk, *_) = sites_of(clients, tmp_path)
    assert desk.census().mean == ()
    with pytest.raises(Refused, match="10 rows at least"):
        desk.census(moments=True)


@pytest.mark.slow
def test_who_is_not_drawn_is_not_absent(clients, tmp_path):
    desks = sites_of(clients, tmp_path)
    folder = run_in(
        tmp_path, desks, "fsgda", table="max_absence = 1", cohort=2, rounds=6
    )
    assert len(replays.read_kept(folder).book.members) == SITES


def test_a_site_of_another_width_does_not_stop_the_beginning(clients, tmp_path):
    desks = sites_of(clients, tmp_path)
    odd = tmp_path / "odd.npz"
    np.savez(odd, features=np.zeros((4, 9), np.float32), label=np.ones(4))
    other = SiteFolder.of({"data": str(odd), "state": str(tmp_path / "state-odd")})
    grid = InProcessGrid([desks[0], other, *desks[1:]])
    folder = run_in(tmp_path, desks, grid=grid, rounds=1)
    assert sorted(replays.read_kept(folder).book.members) == [d.name for d in desks]


def test_another_configuration_is_refused(clients, tmp_path):
    desks = sites_of(clients, tmp_path)
    run_in(tmp_path, desks, rounds=1)
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace("local_lr = 0.05", "local_lr = 0.1"))
    with pytest.raises(BadValue, match="which differs in local_lr"):
        lead(tmp_path / "run", InProcessGrid(desks))


def test_what_goes_wrong_at_a_site_stays_there(clients, tmp_path):
    """Flower would send an exception's text, which may quote a row."""
    desks = sites_of(clients, tmp_path)
    secret = tmp_path / "secret.csv"
    secret.write_text("age,label\nthirty-secret,1\n")
    grid = InProcessGrid([*desks, desks[0]._replace(name="bad", data=str(secret))])
    message = Message(messages.records_of(Letter(Introduce("any"))), 105, "query.hello")
    (key,) = grid.push_messages([message])
    (reply,) = grid.pull_messages([key])
    letter = messages.UnreadLetter.of(reply.content).read()
    assert letter.note == ("site", "BadValue at the site.")


def test_every_phase_of_every_algorithm_has_a_handler():
    names = apps.phase_names()
    assert {"local", "collect"} <= set(names)
    assert all(name.isidentifier() for name in names)
