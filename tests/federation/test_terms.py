"""Options of a federation that are refused."""

import pytest
import tomli_w

from sagda.check import BadValue
from sagda.federation.terms import read_settings


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"filter": "median"}, "puts numbers into V = sum of v_i that no site has"),
        ({"filter": "trimmed-mean"}, "must be norm, multi-krum or none: a median"),
        ({"filter": "krum"}, "must be one of norm, multi-krum, none"),
        (
            {"filter": "multi-krum", "sites": 9},
            "`federation.faulty` must be at least 1",
        ),
        (
            {"filter": "multi-krum", "faulty": 2, "sites": 6},
            "`federation.sites` must be at least 7",
        ),
        ({"sites": 1}, "`federation.sites` must be at least 2"),
        ({"norm_factor": 1.0}, "`federation.norm_factor` must be greater than 1"),
    ],
)
def test_filters_are_checked(table, said, tmp_path):
    path = tmp_path / "server.toml"
    path.write_text(tomli_w.dumps({"federation": table}))
    with pytest.raises(BadValue) as found:
        read_settings(path)
    assert said in str(found.value)
