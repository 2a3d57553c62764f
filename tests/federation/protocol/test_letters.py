"""Letters: which texts can be parsed, and what the mark (the digest) covers."""

import pytest

from sagda.federation.protocol.letters import Letter, mark_of
from sagda.federation.protocol.wire import Part, Refused


def test_marks_tell_every_piece_apart():
    part = Part("<f4", (2,), b"12345678")
    letters = [
        ("text", {"p": {"a": part}}, b""),
        ("text", {"p": {"a": part}}, b"question"),
        ("texta", {"p": {"": part}}, b""),
        ("text", {"p": {"a": part._replace(shape=(1, 2))}}, b""),
        ("text", {"p": {"a": part._replace(data=b"12345679")}}, b""),
        ("text", {"p": {}, "q": {"a": part}}, b""),
        ("text", {}, b""),
    ]
    assert len({mark_of(*letter) for letter in letters}) == len(letters)


def test_letters_are_arrays_and_text_only():
    """A letter whose kind names a function is refused, and nothing is called."""
    with pytest.raises(Refused):
        Letter.read('{"kind": "os.system", "note": {}}', {})
