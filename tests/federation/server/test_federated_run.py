"""Complete federated runs in one process: exact, resumed, sites join and leave."""

import itertools
import json
from dataclasses import replace

import jax
import numpy as np
import pytest

import sagda
from sagda.algorithms import ALGORITHMS
from sagda.check import BadValue
from sagda.federation import verify
from sagda.federation.server.gathering import NoClients
from sagda.federation.site.folder import LEAVING, SiteFolder
from sagda.models.user_code import model_of
from sagda.runs.config import Config
from sagda.runs.parameters import method_of
from sagda.runs.results import read_results
from sagda.scoring.scorer import Scorer, scored
from support import (
    SITES,
    InProcessGrid,
    config_of,
    failed_reply,
    flat,
    lead,
    lost_reply,
    run_in,
    simulated,
    sites_of,
    spoiling,
)

pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")

from flwr.app.error import Error
from flwr.app.message import Message

pytestmark = pytest.mark.usefixtures("shared_programs")


TELLING = ("sagda-i", "sagda-ii", "momentum-local-sgda", "cd-mage-plus")


EVERY = [
    pytest.param(name, marks=() if name in TELLING else pytest.mark.slow)
    for name in sorted(ALGORITHMS)
]


@pytest.mark.parametrize("name", EVERY)
def test_every_algorithm_agrees_with_the_simulator(name, clients, tmp_path):
    sites = sites_of(clients, tmp_path)
    folder = run_in(tmp_path, sites, name)
    run = simulated(clients, name, 3)
    columns = read_results(folder).columns[name]
    record = verify.read_saved(folder)
    np.testing.assert_allclose(
        flat(record.state.variables.z), flat(run.carry.state.z), rtol=1e-10, atol=1e-12
    )
    for column in run.history.columns:
        if column not in ("seconds", "eval_bytes"):
            np.testing.assert_allclose(
                columns[column], run.history[column], rtol=1e-6, err_msg=column
            )
    for column in ("grad_phi_sq", "phi", "f", "bytes_down", "bytes_up", "samples"):
        np.testing.assert_allclose(
            columns[column], run.history[column], rtol=1e-10, atol=1e-14, err_msg=column
        )
    assert (columns["framing_bytes"][0, 1:] > 0).all()
    assert (columns["eval_bytes"][0] > 0).all()


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
    model_code = f"{tmp_path / 'nets.py'}:make"
    sites = [replace(site, model=model_code) for site in sites_of(clients, tmp_path)]
    folder = run_in(tmp_path, sites, name, model="nets.py:make", float64=False)
    record = verify.read_saved(folder)
    model = model_of("nets.py:make", clients.data.features.shape[1])
    method = method_of(Config(local_lr=0.05, local_steps=3), name)
    run = sagda.simulate(
        method, sagda.AUC.of(clients, model), clients, rounds=3, cohort=3,
        batch_size=2, seeds=4,
    )  # fmt: skip
    np.testing.assert_allclose(
        flat(record.state.variables.z), flat(run.carry.state.z), rtol=1e-4, atol=1e-6
    )
    columns = read_results(folder).columns[name]
    for column in ("phi", "grad_phi_sq", "auc_train"):
        np.testing.assert_allclose(
            columns[column][0], run.history[column][0], rtol=1e-4, err_msg=column
        )
    rows = {site.name: site for site in sites}
    assert verify.same_state(verify.replay(record, rows), record.state)
    file = tmp_path / "site-1.npz"
    scores = Scorer.load(sites[1].state, model=model_code).predict(file, label="label")
    x = jax.tree.map(lambda a: a[0], run.z).x
    alike = scored(record.plan.problem, x, clients.data.features)
    np.testing.assert_allclose(scores, alike[4:8], rtol=1e-4, atol=1e-6)


def test_decay_and_clipping_go_with_robust_losses(clients, tmp_path):
    sites = sites_of(clients, tmp_path)
    options = {"problem": "dro", "weight_decay": 0.1, "clip": 1.0}
    folder = run_in(tmp_path, sites, table="share_losses = true", **options)
    assert np.isfinite(read_results(folder).columns["sagda-i"]["phi"]).all()


def crash_after(monkeypatch, count):
    """End the server's process in the middle of the durable write number `count`."""
    from sagda import durable

    whole, left = durable.write, itertools.count(count, -1)

    def write(path, content):
        if path.parent.name == "server" and next(left) == 0:
            raise KeyboardInterrupt
        return whole(path, content)

    monkeypatch.setattr(durable, "write", write)


LATER = [pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 9, 12, 17)]


@pytest.mark.parametrize("count", [0, 5, 13, *LATER])
def test_a_server_that_was_killed_resumes_bit_for_bit(
    count, clients, tmp_path, monkeypatch
):
    sites = sites_of(clients, tmp_path)
    (tmp_path / "whole").mkdir()
    whole = run_in(tmp_path / "whole", sites_of(clients, tmp_path / "whole"))
    with monkeypatch.context() as patched:
        crash_after(patched, count)
        with pytest.raises(KeyboardInterrupt):
            run_in(tmp_path, sites)
    folder = run_in(tmp_path, sites)
    a, b = verify.read_saved(whole).state, verify.read_saved(folder).state
    assert a.round == b.round == 3
    np.testing.assert_array_equal(flat(a.variables), flat(b.variables))
    for name in a.members:
        np.testing.assert_array_equal(
            flat(a.members[name].memory), flat(b.members[name].memory)
        )
    assert (whole / "model.safetensors").read_bytes() == (
        folder / "model.safetensors"
    ).read_bytes()
    records = verify.read_saved(folder).records
    rounds = [r["row"]["round"] for r in records if "row" in r]
    assert rounds == [0, 1, 2, 3]


def test_a_reset_sets_all_variates_back(clients, tmp_path, monkeypatch):
    sites = sites_of(clients, tmp_path)
    run_in(tmp_path, sites, rounds=2)
    folder = tmp_path / "run"
    longer = (folder / "config.toml").read_text().replace("rounds = 2", "rounds = 4")
    (folder / "config.toml").write_text(longer)
    (folder / "server" / "reset").touch()
    lead(folder, InProcessGrid(sites))
    assert not (folder / "server" / "reset").exists()
    record = verify.read_saved(folder)
    assert (record.state.round, record.state.epoch) == (4, 1)
    state = verify.replay(record, {site.name: site for site in sites})
    assert verify.same_state(record.state, state)


def test_another_configuration_is_refused(clients, tmp_path):
    sites = sites_of(clients, tmp_path)
    run_in(tmp_path, sites, rounds=1)
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace("local_lr = 0.05", "local_lr = 0.1"))
    with pytest.raises(BadValue, match="which differs in local_lr"):
        lead(tmp_path / "run", InProcessGrid(sites))


def test_too_few_answers_end_the_server_with_everything_kept(clients, tmp_path):
    sites = sites_of(clients, tmp_path)
    grid = InProcessGrid(sites)
    spoiling(grid, 102, 10**9, lost_reply)
    table = "timeout = 0.05\nwait = 0.5\nmin_clients = 5"
    with pytest.raises(NoClients, match="fewer than 5 sites answered"):
        run_in(tmp_path, sites, grid=grid, table=table, cohort=5)
    status = json.loads((tmp_path / "run" / "server" / "status.json").read_text())
    assert status["code"] == 4
    assert "resumes the run" in status["sentence"]
    assert verify.read_saved(tmp_path / "run").state.round == 0


def test_a_measurement_that_nobody_answered_is_asked_again(clients, tmp_path):
    sites = sites_of(clients, tmp_path)
    grid = InProcessGrid(sites)
    asked = itertools.count()

    def spoil(node, message, reply):
        """Lose the first eight answers of sites, apart from introductions."""
        hello = message.metadata.message_type == "query.hello"
        error = Error(0, "silent")
        return reply if hello or next(asked) >= 8 else Message(error, reply_to=message)

    grid.spoil = spoil
    folder = run_in(tmp_path, sites, grid=grid, eval_every=3)
    columns = read_results(folder).columns["sagda-i"]
    assert columns["round"].ravel().tolist() == [0, 3]
    assert columns["evaluated"].ravel().tolist() == [SITES] * 2
    assert columns["lost_rounds"].ravel().tolist() == [1, 1]


def test_sites_join_and_leave_while_it_runs(clients, tmp_path, monkeypatch):
    sites = sites_of(clients, tmp_path)
    grid = InProcessGrid(sites[:4])
    late = iter([False] * 3)

    def ids(self):
        # The fifth site joins after some calls. Later, the first site asks to leave.
        if next(late, True) and 104 not in self.nodes:
            self.nodes[104] = sites[4]
        manifest = tmp_path / "run" / "server" / "manifest.json"
        state = json.loads(manifest.read_text())["state"] if manifest.exists() else {}
        if state.get("round") == 3:
            (sites[0].state / LEAVING).touch()
            self.nodes.pop(100, None)
            self.nodes[105] = sites[0]
        return list(self.nodes)

    monkeypatch.setattr(InProcessGrid, "get_node_ids", ids)
    config = config_of(tmp_path, rounds=6, cohort=4)
    text = config.read_text().replace(f"sites = {SITES}", "sites = 4")
    config.write_text(text)
    lead(tmp_path / "run", grid, config=config)
    record = verify.read_saved(tmp_path / "run")
    assert sorted(record.state.members) == ["site-1", "site-2", "site-3", "site-4"]
    assert {m.number for m in record.state.members.values()} == {1, 2, 3, 4}
    assert all(f.holds for f in verify.verify(record, {d.name: d.state for d in sites}))
    state = verify.replay(record, {site.name: site for site in sites})
    assert verify.same_state(record.state, state)
    farewell = json.loads((sites[0].state / "farewell.json").read_text())
    assert farewell["reason"] == "left"


def test_a_silent_site_is_removed_with_its_variate_if_so_configured(clients, tmp_path):
    sites = sites_of(clients, tmp_path)
    grid = InProcessGrid(sites)
    spoiling(grid, 102, 10**9, failed_reply)
    folder = run_in(
        tmp_path, sites, grid=grid, table="max_absence = 2", cohort=5, rounds=4
    )
    record = verify.read_saved(folder)
    assert "site-2" not in record.state.members
    assert len(record.state.members) == 4
    assert all(finding.holds for finding in verify.verify(record, {}))


@pytest.mark.slow
def test_who_is_not_drawn_is_not_absent(clients, tmp_path):
    sites = sites_of(clients, tmp_path)
    folder = run_in(
        tmp_path, sites, "fsgda", table="max_absence = 1", cohort=2, rounds=6
    )
    assert len(verify.read_saved(folder).state.members) == SITES


def test_the_only_member_may_leave(clients, tmp_path):
    sites = sites_of(clients, tmp_path)
    run_in(tmp_path, sites, rounds=1)
    folder = tmp_path / "run"
    longer = (folder / "config.toml").read_text().replace("rounds = 1", "rounds = 2")
    longer = longer.replace("timeout = 120.0", "timeout = 0.1")
    longer = longer.replace("wait = 600.0", "wait = 0.2")
    (folder / "config.toml").write_text(longer)
    for site in sites:
        (site.state / LEAVING).touch()
    grid = InProcessGrid(sites)
    with pytest.raises(NoClients):
        lead(folder, grid)
    record = verify.read_saved(folder)
    assert not record.state.members
    assert not list((folder / "server").glob("member-*"))
    assert all(finding.holds for finding in verify.verify(record, {}))


def test_a_site_of_another_width_does_not_stop_the_beginning(clients, tmp_path):
    sites = sites_of(clients, tmp_path)
    odd = tmp_path / "odd.npz"
    np.savez(odd, features=np.zeros((4, 9), np.float32), label=np.ones(4))
    other = SiteFolder.of({"data": str(odd), "state": str(tmp_path / "state-odd")})
    grid = InProcessGrid([sites[0], other, *sites[1:]])
    folder = run_in(tmp_path, sites, grid=grid, rounds=1)
    assert sorted(verify.read_saved(folder).state.members) == [d.name for d in sites]
