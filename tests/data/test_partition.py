"""Partitions: every row at most once, sizes as asked, equal seeds, equal splits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sagda
from sagda import PARTITIONS, Table
from sagda.data.partition import apportion


@st.composite
def tables(draw):
    """Small tables of two or three classes, each with two rows or more."""
    counts = draw(st.lists(st.integers(2, 30), min_size=2, max_size=3))
    label = np.repeat(np.arange(len(counts), dtype=float), counts)
    rows = len(label)
    site = np.arange(rows) % draw(st.integers(1, rows))
    return Table(np.arange(rows, dtype=float)[:, None], label, client=site)


@settings(max_examples=150, deadline=None)
@given(
    table=tables(),
    scheme=st.sampled_from(sorted(PARTITIONS)),
    clients=st.integers(1, 12),
    samples=st.none() | st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_partitions_are_exact(table, scheme, clients, samples, seed):
    options = {"samples": samples, "seed": seed}
    if scheme != "by-column":
        options["clients"] = clients
    try:
        split = sagda.partition(table, scheme, **options)
    except ValueError:
        return  # more was asked than there is; the mistakes are tested below
    rows = len(table.label)
    assert len(np.unique(split.order)) == len(split.order) <= rows
    assert split.size.min() >= 1
    np.testing.assert_array_equal(split.start, np.cumsum(split.size) - split.size)
    np.testing.assert_array_equal(split.data.features[:, 0], split.order)
    np.testing.assert_array_equal(split.data.label, table.label[split.order])
    if scheme != "by-column":
        assert split.clients == clients
    if samples is None:
        assert len(split.order) == rows
    elif scheme == "quantity":
        assert len(split.order) == clients * samples
    else:
        assert (split.size == samples).all()
    if scheme == "by-label":
        for i in range(clients):
            held = slice(split.start[i], split.start[i] + split.size[i])
            assert len(set(split.data.label[held])) == 1
    if scheme == "by-column":
        assert (table.client[split.order] == split.names[split.owner]).all()
    np.testing.assert_allclose(split.weight.sum(), 1)
    again = sagda.partition(table, scheme, **options)
    assert again.hash == split.hash


@settings(deadline=None)
@given(
    total=st.integers(0, 1000),
    shares=st.lists(st.floats(0.01, 1), min_size=1, max_size=20),
)
def test_apportioned_counts_add_up_and_stay_near(total, shares):
    shares = np.array(shares)
    counts = apportion(total, shares)
    assert counts.sum() == total
    assert np.abs(counts - total * shares / shares.sum()).max() < 1


def test_the_papers_split_of_a9a(a9a):
    clients, _ = a9a
    assert clients.clients == 100
    assert (clients.size == 100).all()
    by_client = clients.data.label.reshape(100, 100)
    assert (by_client == by_client[:, :1]).all()
    assert (by_client[:, 0] > 0).sum() == 24  # 24.08 % of the rows are positive


def test_the_hash_names_the_split(a9a):
    clients, _ = a9a
    train = sagda.load("a9a").train
    split = lambda **o: sagda.partition(train, clients=100, samples=100, **o).hash
    assert clients.hash == split() == "a05c3abc95ebd6db"
    assert split(seed=1) != split()


def test_binary_splits_sort_negatives_by_their_class():
    digits = sagda.load("digits", positive=1).train
    split = sagda.partition(digits, clients=20, samples=20)
    negative = split.data.origin[split.data.label < 0]
    assert (np.diff(negative) >= 0).all()


def test_small_alpha_skews_and_large_alpha_does_not():
    train = sagda.load("a9a").train

    def spread(alpha):
        split = sagda.partition(
            train, "dirichlet", clients=20, samples=100, alpha=alpha, seed=1
        )
        return (split.data.label.reshape(20, 100) > 0).mean(1).std()

    assert spread(0.1) > 0.25 > 0.06 > spread(1000)


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("by-lable", {"clients": 2}, "did you mean 'by-label'?"),
        ("iid", {"clients": 0}, "`clients` must be between 1 and 6"),
        ("iid", {"clients": 7}, "`clients` must be between 1 and 6"),
        ("iid", {"clients": 2.5}, "`clients` must be a whole number"),
        ("iid", {"clients": 3, "samples": 3}, "3 x 3 = 9; lower one of them"),
        ("iid", {"clients": 3, "samples": 0}, "`samples` must be at least 1"),
        ("iid", {"clients": 3, "seed": -1}, "`seed` must be between 0 and"),
        ("by-label", {"clients": 1}, "at least 2, the number of classes"),
        ("by-label", {"clients": 2, "samples": 2}, "`samples` must be at most 1"),
        ("dirichlet", {"clients": 2, "alpha": 0.0}, "`alpha` must be above zero"),
        ("quantity", {"clients": 2, "alpha": np.nan}, "`alpha` must be finite"),
        ("by-column", {}, "must have a client column"),
    ],
)
def test_mistakes_in_partitions(scheme, options, message):
    table = Table(np.zeros((6, 1)), np.array([0.0, 0, 0, 0, 0, 1]))
    with pytest.raises((ValueError, TypeError)) as caught:
        sagda.partition(table, scheme, **options)
    assert message in str(caught.value)


def test_mistakes_with_client_columns():
    table = Table(np.zeros((3, 1)), np.zeros(3), client=np.array(["a", "b", "b"]))
    with pytest.raises(ValueError, match="`clients` must be left out or be 2"):
        sagda.partition(table, "by-column", clients=3)
    with pytest.raises(ValueError, match="at most 1, the number of rows of client a"):
        sagda.partition(table, "by-column", samples=2)
