"""Letters in Flower's format: packing, unpacking, message types and sizes.

This module knows the format only. It does not decide who is trusted: `grid` and `apps`
check seals, and `sagda.federation.protocol.letters` checks the content.
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
MAX_SEAL = 400  # characters
ENCODING = "sagda"  # Flower's `stype` of an array: here its plain bytes


def records_of(letter: Letter) -> RecordDict:
    """Flower's records for a letter: one for its text, one per parcel of arrays."""
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
    """The parts of a letter that arrived, before anything in them is trusted."""

    text: str
    parcels: dict[str, Parcel]
    mark: bytes  # the digest that its sender sealed
    seal: str

    @classmethod
    def of(cls, content: Any, answers: bytes = b"") -> "UnreadLetter":
        """The parts in Flower's records. Raises `Refused` if they hold no letter.

        `answers` is the mark of the letter that this one answers.
        """
        try:
            text, seal = content["note"]["text"], content["note"].get("seal", "")
            arrays = content.array_records
            # Counted first, so that no time is spent on a flood of tiny arrays.
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
        """The letter. Raises `Refused` if it breaks the protocol's format."""
        letter = Letter.read(self.text, self.parcels)
        return letter._replace(mark=self.mark, seal=self.seal)


# Flower's type of a message, by the kind of note. `apps` has a handler for each.
MESSAGE_TYPES: dict[type, str] = {
    Instruction: "train",
    Evaluate: "evaluate",
    Introduce: "query.hello",
    Bye: "query.bye",
}


def size_of(item: Any) -> int:
    """The bytes of a message on the wire, with all objects inside it."""
    children = item.children or {}
    return len(item.deflate()) + sum(size_of(child) for child in children.values())
