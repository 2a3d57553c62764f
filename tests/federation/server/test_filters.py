"""Sites that lie: their effect, and that V is the sum of all control variates."""

import jax
import numpy as np
import pytest

import sagda
from sagda.federation import filters
from sagda.federation.plan import Plan
from sagda.federation.protocol.messages import Reply
from sagda.federation.server.evaluation import evaluate
from sagda.federation.server.rounds import FederatedRounds, first_state
from sagda.federation.server.store import total_of
from sagda.federation.terms import Options
from support import InProcess

SITES, LIARS = 10, ("site-3", "site-7")
NAMES = [f"site-{i}" for i in range(SITES)]

LIES = {
    "nan": lambda a: np.full_like(a, np.nan),
    "1e6": lambda a: a * np.asarray(1e6, a.dtype),
    "flipped": lambda a: -a,
    "constant": lambda a: np.full_like(a, 0.05),
}


def split(samples):
    rows = sagda.load("a9a").train
    return sagda.partition(rows, "iid", clients=SITES, samples=samples, seed=0)


@pytest.fixture(scope="module")
def clients():
    """A small part of a9a, split over ten sites."""
    return split(1000)


def lying(lie=None, silent=()):
    """Return a function that falsifies or drops the answers of some sites."""

    def false(part):
        array = np.frombuffer(part.data, part.dtype).reshape(part.shape)
        return LIES[lie](array).tobytes() if array.dtype.kind == "f" else part.data

    def spoil(name, answer):
        if answer is None or name in silent:
            return None
        note = answer.note
        if lie is None or name not in LIARS or not isinstance(note, Reply):
            return answer
        payload = {
            key: part._replace(data=false(part)) for key, part in note.payload.items()
        }
        return answer._replace(note=note._replace(payload=payload))

    return spoil


def trained(clients, lie, seed=0, name="sagda-i", rounds=5, silent=(), **options):
    """Return the server after some rounds. V is checked after each round."""
    method = sagda.algorithm(name, local_lr=0.05, server_lr=1.0, local_steps=5)
    problem = sagda.AUC.of(clients)
    plan = Plan(method, problem, "run", "digest", seed, None, SITES, clients.width)
    server = FederatedRounds(
        plan, first_state(plan, NAMES), InProcess(plan, clients, lying(lie, silent)),
        lambda state, records: None, options=Options(min_clients=2, **options),
    )  # fmt: skip
    while server.state.round < rounds:
        assert server.attempt()
        check_total(server, lie)
    return server


def check_total(server, lie):
    """Check that the algorithm uses V / M, and each v_i is the one of its site."""
    field = server.algorithm.mean
    if field is None:
        return
    total = total_of(server.state.members, server.first)
    mean = getattr(server.variables, field)
    for v, used in zip(jax.tree.leaves(total), jax.tree.leaves(mean), strict=True):
        np.testing.assert_array_equal((v / SITES).astype(used.dtype), used)
    for name, member in server.state.members.items():
        cache = server.transport.sites[name].protocol.cache
        if name in LIARS and lie is not None:
            continue
        if member.version is not None:
            held = cache.pending
            same = held is not None and held.version == member.version
            own = held.memory if same else cache.memory
            for a, b in zip(
                jax.tree.leaves(own), jax.tree.leaves(member.memory), strict=True
            ):
                np.testing.assert_array_equal(a, b)


def error(server):
    """Return ||grad Phi||^2 over the true rows of all sites."""
    return evaluate(server)[0]["grad_phi_sq"]


def refused(server):
    return server.traffic.refused


@pytest.mark.parametrize("lie", ["nan", "1e6"])
def test_what_is_not_finite_or_far_too_long_never_matters(lie, clients):
    """The result is bit-for-bit the same as if the liars were silent."""
    found = trained(clients, lie, filter="norm")
    absent = trained(clients, None, filter="none", silent=LIARS)
    for a, b in zip(
        jax.tree.leaves(found.variables), jax.tree.leaves(absent.variables), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    code = "nonfinite" if lie == "nan" else "filtered"
    assert refused(found) == {code: 2 * found.state.round}
    assert all(found.state.members[name].version is None for name in LIARS)


@pytest.mark.parametrize("lie", list(LIES))
@pytest.mark.parametrize("name", ["sagda-i", "sagda-ii"])
def test_multi_krum_leaves_liars_out_and_v_exact(name, lie, clients):
    server = trained(clients, lie, name=name, filter="multi-krum", faulty=2)
    assert sum(refused(server).values()) >= 2 * server.state.round
    assert all(server.state.members[name].version is None for name in LIARS)


def test_without_a_filter_a_long_answer_does_matter(clients):
    """A check of the tests above: without a filter, the same lie does harm."""
    honest, spoilt = (trained(clients, lie, filter="none") for lie in (None, "1e6"))
    assert not error(spoilt) < 1e3 * error(honest)


def test_an_absolute_bound_is_kept(clients):
    server = trained(clients, "1e6", filter="none", bound=100.0)
    assert refused(server) == {"norm": 2 * server.state.round}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_multi_krum_training_ends_near_the_honest_run(seed):
    """The error is less than doubled, whatever two of ten sites send."""
    clients = split(3200)
    honest = error(trained(clients, None, seed, rounds=100))
    for lie in LIES:
        found = trained(clients, lie, seed, rounds=100, filter="multi-krum", faulty=2)
        ratio = error(found) / honest
        print(f"seed {seed}, {lie}: {ratio:.2f}")
        assert ratio < 2.0, (lie, ratio)


# The filters themselves.


def test_the_middle_length_decides(clients):
    vectors = {name: np.full(4, 1.0) for name in NAMES}
    vectors["site-9"] = np.full(4, 29.0)
    assert filters.too_long(vectors, 30.0) == []
    vectors["site-9"] = np.full(4, 31.0)
    assert filters.too_long(vectors, 30.0) == ["site-9"]
    pair = {"a": np.ones(2), "b": np.full(2, 1e6)}
    assert filters.too_long(pair, 30.0) == ["b"]
    assert filters.too_long({"a": np.ones(2)}, 30.0) == []
    assert filters.too_long({"a": np.zeros(2), "b": np.ones(2)}, 30.0) == []


def test_multi_krum_by_hand():
    """Of five points on a line, the distant one has the largest score."""
    places = {"a": 0.0, "b": 1.0, "c": 2.0, "d": 3.0, "e": 9.0}
    vectors = {name: np.array([at]) for name, at in places.items()}
    # A score is the sum of squared distances to the n - f - 2 = 2 nearest points.
    scores = {"a": 1 + 4, "b": 1 + 1, "c": 1 + 1, "d": 1 + 4, "e": 36 + 49}
    assert filters.multi_krum(vectors, 1) == [max(scores, key=lambda n: scores[n])]


def test_every_array_counts_alike():
    """A lie in an array of small numbers is found next to an array of large numbers."""
    rng = np.random.default_rng(0)
    replies = {name: [100 * rng.normal(size=8), np.full(3, 1e-3)] for name in NAMES}
    replies["site-4"][1] = np.full(3, -5e-2)
    assert filters.multi_krum(filters.evened(replies), 1) == ["site-4"]
