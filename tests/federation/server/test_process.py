"""The results of a federated run: a model with which server and sites can score."""

import json
from dataclasses import replace

import jax
import numpy as np
import pandas
import pytest
from sklearn.metrics import roc_auc_score

from sagda.commands.main import main
from sagda.data.recipe import Scaling, scaled
from sagda.federation import verify
from sagda.federation.server.store import Manifest
from sagda.scoring.calibration import calibrated
from sagda.scoring.scorer import Scorer, scored
from support import (
    SITES,
    flat,
    run_in,
    simulated,
    sites_of,
    uneven_table,
)

pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")


pytestmark = pytest.mark.usefixtures("shared_programs")


def test_sites_standardise_from_sums_and_both_ends_can_score(tmp_path):
    clients = uneven_table([12] * SITES)
    wild = (7 * clients.data.features + 3).astype(np.float32)
    clients = clients._replace(data=clients.data._replace(features=wild))
    sites = sites_of(clients, tmp_path)
    folder = run_in(tmp_path, sites, standardise=True)
    record = verify.read_saved(folder)
    scaling = Scaling.of(clients)
    np.testing.assert_allclose(record.terms.mean, scaling.mean, rtol=1e-8)
    np.testing.assert_allclose(record.terms.scale, scaling.scale, rtol=1e-8)
    seen = clients._replace(data=scaled(clients.data, scaling))
    run = simulated(seen, "sagda-i", 3)
    assert np.allclose(
        flat(record.state.variables.z), flat(run.carry.state.z), rtol=1e-6
    )
    manifest = Manifest.read(folder / "server")
    assert not manifest.introductions["site-0"].mean
    rows = {site.name: site for site in sites}
    assert verify.same_state(verify.replay(record, rows), record.state)
    server, site = Scorer.load(folder), Scorer.load(sites[1].state)
    file = tmp_path / "site-1.npz"
    np.testing.assert_array_equal(
        server.predict(file, label="label"), site.predict(file, label="label")
    )
    x = jax.tree.map(lambda a: a[0], run.z).x
    alike = scored(record.plan.problem, x, seen.data.features)
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
    sites = sites_of(clients, tmp_path)
    for i, site in enumerate(sites):
        frame[12 * i : 12 * (i + 1)].to_csv(tmp_path / f"{i}.csv", index=False)
        sites[i] = replace(site, data=str(tmp_path / f"{i}.csv"))
    folder = run_in(tmp_path, sites)
    card = (folder / "MODEL_CARD.md").read_text()
    assert "the files of the sites" in card
    assert "This was a federation: the rows stayed at their sites" in card
    # A site finds columns by name, the server by position. Both ignore the label.
    moved = tmp_path / "moved.csv"
    frame[["label", "d", "b", "a", "c"]].to_csv(moved, index=False)
    frame.to_csv(tmp_path / "all.csv", index=False)
    scores = Scorer.load(sites[1].state).predict(moved)
    np.testing.assert_allclose(
        Scorer.load(folder).predict(tmp_path / "all.csv"), scores, rtol=1e-12
    )
    for place in (folder, sites[1].state):
        arguments = ["evaluate", str(place), str(tmp_path / "all.csv"), "--json"]
        assert main(arguments) == 0
        evaluation = json.loads(capsys.readouterr().out)
        auc = roc_auc_score(clients.data.label, scores)
        assert evaluation["auc"]["value"] == pytest.approx(auc)
    assert f"{auc:.4f} [" in (folder / "MODEL_CARD.md").read_text()
