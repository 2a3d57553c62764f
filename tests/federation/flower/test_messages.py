"""Letters in Flower's format, and which messages are refused before parsing."""

import numpy as np
import pytest

from sagda.federation.protocol.letters import Introduce, Letter, mark_of
from sagda.federation.protocol.messages import Reply
from sagda.federation.protocol.wire import Part, Refused

pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from sagda.federation.flower import messages
from sagda.federation.flower.messages import UnreadLetter, records_of


def part(*numbers):
    array = np.array(numbers, "<f4")
    return Part("<f4", array.shape, array.tobytes())


def test_a_letter_arrives_as_it_was_sent():
    payload = {"x": part(1.0, 2.0), "": part()}
    fields = dict.fromkeys(Reply._fields) | {"run": "r", "payload": payload}
    note = Reply(**fields)
    letter = Letter(note, number=3, terms="terms", seal="a seal")
    unread = UnreadLetter.of(records_of(letter), b"the question's mark")
    assert unread.parcels == letter.parcels
    assert unread.text == letter.text
    assert unread.seal == "a seal"
    mark = mark_of(letter.text, letter.parcels, b"the question's mark")
    assert unread.mark == mark


def test_a_note_without_numbers_is_read():
    letter = Letter(Introduce("nonce", True), seal="a seal")
    arrived = UnreadLetter.of(records_of(letter)).read()
    assert arrived.note == letter.note
    assert arrived.seal == "a seal"


def flood():
    content = records_of(Letter(Introduce("nonce")))
    array = Array("<f4", (1,), "sagda", b"1234")
    count = messages.MAX_PARTS + 1
    content["payload"] = ArrayRecord({str(i): array for i in range(count)})
    return content


@pytest.mark.parametrize(
    "content",
    [
        lambda: None,
        RecordDict,
        lambda: RecordDict({"note": ConfigRecord({"seal": "a"})}),
        lambda: RecordDict({"note": ConfigRecord({"text": 3})}),
        flood,
    ],
    ids=["nothing", "empty", "no text", "no characters", "too many arrays"],
)
def test_what_is_no_letter_is_refused(content):
    with pytest.raises(Refused, match="a message must hold a letter"):
        UnreadLetter.of(content())


def test_a_seal_that_is_too_long_is_cut():
    content = records_of(Letter(Introduce("nonce"), seal="s" * 1000))
    assert len(UnreadLetter.of(content).seal) == messages.MAX_SEAL
