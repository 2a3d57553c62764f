"""Fixtures of federations that run in this process."""

import numpy as np
import pytest

from support import SITES, uneven_table


@pytest.fixture
def shared_programs(monkeypatch):
    """Use the compile cache of the other tests, and shorten all waiting times."""
    from sagda.federation.flower import apps, grid
    from sagda.federation.server import federated_run, process

    for module in (apps, process):
        monkeypatch.setattr(module, "keep_programs", lambda folder: None)
    monkeypatch.setattr(federated_run, "RETRY", 0.0)
    monkeypatch.setattr(federated_run, "GRACE", 2.0)
    monkeypatch.setattr(grid, "LISTING", 0.0)


@pytest.fixture(scope="session")
def clients():
    """Clients of equal size, so that the sites share their compiled programs."""
    clients = uneven_table([4] * SITES)
    # The sites' files store features in single precision.
    features = clients.data.features.astype(np.float32)
    return clients._replace(data=clients.data._replace(features=features))
