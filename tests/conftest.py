"""Strict numerical settings and shared fixtures for all tests."""

from pathlib import Path

import jax
import pytest

import sagda
from sagda.data.federation import Federation
from sagda.models.user_code import OWN
from support import ROOT, uneven_table

CACHE = ROOT / ".pytest_cache" / "jax"

sagda.use_cores(2)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Tests spend most of their time compiling. Test processes and later runs of the tests
# share the compiled programs.
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Every compiled program needs memory maps. Linux allows 65,530 of them per process.
MAPS = 20_000


@pytest.fixture(autouse=True, scope="module")
def room_for_programs():
    """Drop compiled programs before a test process runs out of memory maps."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_text().splitlines()) > MAPS:
        jax.clear_caches()


# Tests that start processes mostly wait. Started first, they wait while others compute.
LONG = ("test_real_processes", "test_deployment", "test_wheel", "test_open_network")


def pytest_collection_modifyitems(items):
    place = {name: i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))


@pytest.fixture(autouse=True)
def no_code_allowed():
    """Forget the code that a test has allowed, so that tests do not affect others."""
    yield
    OWN.clear()


@pytest.fixture(scope="session")
def uneven() -> Federation:
    return uneven_table([3, 5, 2, 4])


@pytest.fixture(scope="session")
def quadratic():
    """Return a problem and a federation: six unequal, noisy, non-convex clients."""
    return sagda.Quadratic.make(
        clients=6, samples=4, x_dim=3, y_dim=2, noise=0.5, nonconvex_clients=True
    )


@pytest.fixture(scope="session")
def a9a():
    """Return a9a, partitioned as in the paper, and its test rows."""
    data = sagda.load("a9a")
    clients = sagda.partition(data.train, "by-label", clients=100, samples=100)
    return clients, data.test
