"""Atomic files and locks."""

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
