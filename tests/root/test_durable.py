"""Check atomic files, locks, symbolic links and private folders."""

import stat
import sys

import pytest

from sagda import durable
from sagda.check import BadValue


def test_a_system_without_file_locks_gets_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with (
        pytest.raises(BadValue, match="on Linux and macOS only"),
        durable.lock(tmp_path),
    ):
        pass


def test_links_are_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_text("saved")
    (tmp_path / "file").symlink_to(target)
    (tmp_path / "file.part").symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        durable.read(tmp_path / "file")
    with pytest.raises(OSError, match="symbolic"):
        durable.write(tmp_path / "file", "new")
    with pytest.raises(OSError, match="exists"):
        durable.create(tmp_path / "file", b"new")
    with pytest.raises(OSError, match="symbolic"):
        durable.append(tmp_path / "file", b"new", 0)
    assert target.read_text() == "saved"
    (tmp_path / "folder").symlink_to(tmp_path)
    with pytest.raises(BadValue, match="not a file or a link"):
        durable.private(tmp_path / "folder")


def test_what_lies_in_a_private_folder_is_private(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    durable.write(durable.private(folder) / "file", "text")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "file").stat().st_mode) == 0o600
