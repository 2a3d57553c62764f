"""Parcels that violate their specification are refused, whatever the violation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sagda.federation.protocol.wire import Part, Refused, Spec

SPEC = Spec.of({"x": np.zeros((3, 2), np.float32), "y": np.zeros(4), "n": np.int32(0)})
GOOD = SPEC.pack({"x": np.ones((3, 2), np.float32), "y": np.ones(4), "n": np.int32(3)})
PARTS = st.builds(
    Part,
    st.sampled_from(["<f4", "<f8", "<i4", ">f8", "object", "|O", "", "f" * 50]),
    st.lists(st.integers(-2, 10**12), max_size=3).map(tuple),
    st.binary(max_size=64),
)
WRONG = st.one_of(
    st.none(),
    st.integers(),
    st.lists(PARTS),
    st.dictionaries(st.sampled_from(["x", "y", "n", "z", ""]), PARTS | st.none()),
    st.builds(
        lambda name, change: GOOD | {name: GOOD[name]._replace(**change)},
        st.sampled_from(["x", "y", "n"]),
        st.fixed_dictionaries(
            {},
            optional={
                "dtype": st.sampled_from(["<f4", "<f8", "<i8", "<c8"]),
                "shape": st.sampled_from([(), (3, 2), (2, 3), (4,), (6,), (10**11,)]),
                "data": st.binary(max_size=40),
            },
        ),
    ),
)


def fuzz(parcel):
    """Check that an accepted parcel has the specified arrays, with finite numbers."""
    try:
        tree = SPEC.unpack(parcel)
    except Refused:
        return
    assert tree["x"].shape == (3, 2)
    assert tree["x"].dtype == np.float32
    assert tree["y"].shape == (4,)
    assert tree["n"].dtype == np.int32
    assert np.isfinite(tree["x"]).all()
    assert np.isfinite(tree["y"]).all()


@given(WRONG)
@settings(max_examples=1000, deadline=None)
def test_no_parcel_that_violates_its_specification_is_taken(parcel):
    fuzz(parcel)


@pytest.mark.slow
@given(WRONG)
@settings(max_examples=10_000, deadline=None)
def test_nor_one_of_ten_thousand(parcel):
    fuzz(parcel)
