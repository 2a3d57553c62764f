"""Letters in Flower's format: packing, unpacking, message types and sizes.

This module only converts formats. `grid` checks the seals of letters, and
`sagda.federation.protocol.letters` checks their content.
"""

from typing import Any, NamedTuple

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from sagda.federation.protocol.letters import (
    Bye,
    Evaluate,
    Instruction,
    Introduce,
    Letter,
    mark_of,
)
from sagda.federation.protocol.wire import Parcel, Part, Refused

MAX_PARTS = 1000  # arrays in one letter
MAX_SEAL = 400  # characters of a seal
ENCODING = "sagda"  # Flower's `stype` of an array; the array is sent as plain bytes


def records_of(letter: Letter) -> RecordDict:
    """Convert `letter` to Flower's records: one for the text, one for each parcel."""
    note = ConfigRecord({"text": letter.text, "seal": letter.seal})
    content = RecordDict({"note": note})
    for name, parcel in letter.parcels.items():
        arrays = {
            key: Array(part.dtype, part.shape, ENCODING, part.data)
            for key, part in parcel.items()
        }
        content[name] = ArrayRecord(arrays)
    return content


class UnreadLetter(NamedTuple):
    """A letter that has arrived, before its seal is checked and its text is parsed."""

    text: str
    parcels: dict[str, Parcel]
    mark: bytes  # the digest of the letter, which its sender signed
    seal: str  # the signature; empty if the sender has no key

    @classmethod
    def of(cls, content: Any, answers: bytes = b"") -> "UnreadLetter":
        """Take a letter from Flower's records. Raises `Refused` if they hold none.

        `answers` is the mark of the letter that this letter answers.
        """
        try:
            text, seal = content["note"]["text"], content["note"].get("seal", "")
            arrays = content.array_records
            # Counted first, so that a flood of tiny arrays takes no time.
            if sum(len(record) for record in arrays.values()) > MAX_PARTS:
                raise ValueError
            parcels = {
                name: {
                    key: Part(array.dtype, tuple(array.shape), array.data)
                    for key, array in record.items()
                }
                for name, record in arrays.items()
            }
            mark = mark_of(text, parcels, answers)
        except Exception:
            # The sender chose the content, so any kind of error can occur here.
            raise Refused("format", "a message must hold a letter.") from None
        return cls(text, parcels, mark, str(seal)[:MAX_SEAL])

    def read(self) -> Letter:
        """Parse the letter. Raises `Refused` if it violates the protocol's format."""
        letter = Letter.read(self.text, self.parcels)
        return letter._replace(mark=self.mark, seal=self.seal)


# Flower's message type for each kind of note. `apps.handle` handles all these types.
MESSAGE_TYPES: dict[type, str] = {
    Instruction: "train",
    Evaluate: "evaluate",
    Introduce: "query.hello",
    Bye: "query.bye",
}


def size_of(item: Any) -> int:
    """Return the size of a message on the wire in bytes, with all objects inside."""
    children = item.children or {}
    return len(item.deflate()) + sum(size_of(child) for child in children.values())
