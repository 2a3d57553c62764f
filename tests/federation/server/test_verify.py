"""What the files of a federated run prove."""

import pytest

from sagda.check import BadValue
from sagda.federation.server import verify as replays
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
    record = replays.read_kept(folder)
    findings = replays.verify(record, {site.name: site.state for site in sites})
    assert len(findings) == 3 + SITES
    assert all(finding.holds for finding in findings)
    book = replays.replay(record, {site.name: site for site in sites})
    assert replays.same_state(record.book, book)
    z = book.state.z
    assert not replays.same_state(
        record.book, book._replace(state=book.state._replace(z=2.0 * z))
    )
    # A table that was changed by hand is noticed, file by file.
    file = next((folder / "server").glob("member-site-0-*"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(BadValue, match="is damaged: its sha256"):
        replays.read_kept(folder)
