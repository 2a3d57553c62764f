"""Claiming a run folder: for one configuration, and free again after invalid input."""

import pytest

from sagda.check import BadKind, BadValue
from sagda.runs.config import Config, write_toml
from sagda.runs.folder import claim, claimed, read_folder_config


def test_a_folder_is_claimed_once_and_only_for_its_configuration(tmp_path):
    text = write_toml(Config(rounds=3))
    assert claim(tmp_path, text)
    assert not claim(tmp_path, "# a comment changes nothing\n" + text)
    assert read_folder_config(tmp_path) == Config(rounds=3)
    other = Config(rounds=4, set={"sagda-i": {"start": "warm"}})
    with pytest.raises(BadValue, match=r"differs in rounds, set.sagda-i; choose"):
        claim(tmp_path, write_toml(other))


def test_a_folder_with_other_files_is_refused(tmp_path):
    for name in (".lock", "config.toml.part", "mine.txt"):
        (tmp_path / name).write_text("")
    with pytest.raises(BadValue, match="holds other files; choose another folder"):
        claim(tmp_path, write_toml(Config()))
    assert claim(tmp_path, write_toml(Config()), known=["mine.txt"])


@pytest.mark.parametrize("error", [BadValue, BadKind, KeyboardInterrupt])
def test_invalid_input_leaves_a_new_folder_free(tmp_path, error):
    path = tmp_path / "r" / "config.toml"
    with pytest.raises(error), claimed(Config(), tmp_path / "r"):
        raise error
    assert path.exists() is (error is KeyboardInterrupt)


def test_invalid_input_keeps_a_folder_with_results(tmp_path):
    def fail():
        (tmp_path / "r" / "history.csv").write_text("")
        raise BadValue

    with pytest.raises(BadValue), claimed(Config(), tmp_path / "r"):
        fail()
    assert (tmp_path / "r" / "config.toml").exists()
