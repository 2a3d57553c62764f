"""Check random keys, random words and cohorts."""

from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sagda.core import Phase
from sagda.keys import below, bits, key_of, root_key, threefry
from sagda.simulator.cohort import answers, choose, cohort_of


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [  # the test vectors of the Random123 library, for 20 rounds
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1,) * 2, (2**32 - 1,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_its_known_answers(key, counter, expected):
    word = lambda pair: jnp.array(pair, jnp.uint32)
    found = threefry(word(key), *word(counter))
    assert tuple(map(int, found)) == expected


def test_keys_and_bits_are_those_of_jax():
    key = root_key(3)
    by_jax = jax.random.fold_in(jax.random.fold_in(key, 17), crc32(b"step"))
    by_path = key_of(key, 17, "step")
    data = jax.random.key_data
    np.testing.assert_array_equal(data(by_path), data(by_jax))
    expected = jax.random.bits(by_jax, (4, 7), jnp.uint32)
    np.testing.assert_array_equal(bits(by_path, (4, 7)), expected)


@settings(max_examples=200, deadline=None)
@given(word=st.integers(0, 2**32 - 1), bound=st.integers(1, 2**31 - 1))
def test_below_is_the_high_word_of_the_product(word, bound):
    assert int(below(jnp.uint32(word), bound)) == word * bound >> 32


@pytest.mark.parametrize(("clients", "cohort"), [(16, 2), (40, 5), (6, 4), (9, 9)])
def test_cohorts_are_distinct_sorted_and_uniform(clients, cohort):
    draws = 4000
    keys = jax.vmap(lambda t: key_of(root_key(0), t))(jnp.arange(draws))
    ids = np.asarray(jax.jit(jax.vmap(lambda k: choose(k, clients, cohort)))(keys))
    assert (np.diff(ids, axis=1) > 0).all()
    assert ids.min() >= 0
    assert ids.max() < clients
    share = cohort / clients
    hits = np.bincount(ids.ravel(), minlength=clients) / draws
    spread = np.sqrt(share * (1 - share) / draws)
    assert np.abs(hits - share).max() <= 5 * spread
    # Pairs also: the first two clients are in one cohort as often as chance predicts.
    both = ((ids == 0).any(1) & (ids == 1).any(1)).mean()
    expected = share * (cohort - 1) / (clients - 1)
    assert abs(both - expected) <= 5 * np.sqrt(expected / draws)


def test_double_precision_draws_the_same_cohorts():
    keys = jax.vmap(lambda t: key_of(root_key(0), t))(jnp.arange(50))
    draw = lambda: np.asarray(jax.vmap(lambda k: choose(k, 40, 5))(keys))
    single = draw()
    with jax.enable_x64(True):
        np.testing.assert_array_equal(draw(), single)


def test_a_fresh_cohort_is_another_one():
    first = Phase("a", client=None, server=None)
    again = first._replace(name="b", resample=True)
    draw = lambda phase: cohort_of(root_key(0), 3, phase, 50, 10).tolist()
    assert draw(first) == draw(first._replace(name="b")) != draw(again)


def test_dropouts_come_at_their_rate():
    phase, ids = Phase("local", client=None, server=None), jnp.arange(20_000)
    stays = np.asarray(answers(root_key(1), 0, phase, ids, 0.3))
    assert abs(stays.mean() - 0.7) < 5 * np.sqrt(0.21 / 20_000)
