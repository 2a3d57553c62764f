"""What a site stores, and what it refuses to run or to send."""

import json
from dataclasses import replace

import pytest

from sagda.check import BadValue
from sagda.federation.protocol.wire import Refused
from sagda.federation.server import federated_run as conducting
from sagda.federation.server.gathering import NoClients
from sagda.federation.site.folder import MODEL
from support import (
    run_in,
    sites_of,
)

pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")


pytestmark = pytest.mark.usefixtures("shared_programs")


def test_sites_are_left_with_the_model(clients, tmp_path):
    sites = sites_of(clients, tmp_path)
    run_in(tmp_path, sites, rounds=1)
    from safetensors.numpy import load_file

    model = load_file(sites[0].state / MODEL)
    assert set(model) == {"x/model", "x/c_1", "x/c_2", "y"}
    farewell = json.loads((sites[0].state / "farewell.json").read_text())
    assert farewell == {"run": "run1", "round": 1, "reason": "done"}


NETS = """
import torch

def make(features):
    return torch.nn.Sequential(
        torch.nn.Linear(features, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
    )
"""


def test_a_module_that_cannot_do_ends_a_federation_at_once(clients, tmp_path):
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'sagda[torch]'")
    text = NETS.replace("torch.nn.Tanh()", "torch.nn.BatchNorm1d(5)")
    (tmp_path / "norms.py").write_text(text)
    model_code = f"{tmp_path / 'norms.py'}:make"
    sites = [replace(site, model=model_code) for site in sites_of(clients, tmp_path)]
    with pytest.raises(BadValue, match="BatchNorm1d '1' changes 'running_mean'"):
        run_in(tmp_path, sites, model="norms.py:make", float64=False)


def test_a_site_runs_no_model_that_it_was_not_told_of(clients, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'sagda[torch]'")
    monkeypatch.setattr(conducting, "RETRY", 0.0)
    (tmp_path / "nets.py").write_text(NETS)
    sites = sites_of(clients, tmp_path)
    with pytest.raises(NoClients, match="fewer than 2 sites answered"):
        run_in(tmp_path, sites, model="nets.py:make", table="wait = 0.5")
    log = (tmp_path / "run" / "server" / "audit.jsonl").read_text()
    assert "Refused at the site" in log


def test_a_site_of_few_rows_keeps_its_moments(clients, tmp_path):
    (site, *_) = sites_of(clients, tmp_path)
    assert site.introduction().mean == ()
    with pytest.raises(Refused, match="at least 10 rows"):
        site.introduction(moments=True)
