"""The checks of `sagda verify` on the files of a federated run."""

import pytest

from sagda.check import BadValue
from sagda.federation import verify
from support import (
    SITES,
    run_in,
    sites_of,
)

pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")


pytestmark = pytest.mark.usefixtures("shared_programs")


def test_a_run_can_be_verified_and_computed_anew(clients, tmp_path):
    sites = sites_of(clients, tmp_path)
    folder = run_in(tmp_path, sites)
    record = verify.read_saved(folder)
    findings = verify.verify(record, {site.name: site.state for site in sites})
    assert len(findings) == 3 + SITES
    assert all(finding.holds for finding in findings)
    state = verify.replay(record, {site.name: site for site in sites})
    assert verify.same_state(record.state, state)
    z = state.variables.z
    assert not verify.same_state(
        record.state, state._replace(variables=state.variables._replace(z=2.0 * z))
    )
    # The digest of each file shows that the table was changed by hand.
    file = next((folder / "server").glob("member-site-0-*"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(BadValue, match="is damaged: its sha256"):
        verify.read_saved(folder)
