"""Letters: a note that says what is meant, and parcels with the numbers."""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from sagda.federation.protocol.messages import Instruction, Mismatch, Reply
from sagda.federation.protocol.wire import Parcel, Part, Refused

LONGEST = 1 << 16  # characters of a note


class Evaluate(NamedTuple):
    """From the server: measure this point on your rows."""

    run: str
    config: str
    round: int
    question: str  # what to measure: see `sagda.federation.site.measure`
    message: Any


class Evaluated(NamedTuple):
    """From a client: what it measured."""

    run: str
    config: str
    round: int
    question: str
    payload: Any


class Introduce(NamedTuple):
    """From the server: who are you?"""

    nonce: str  # no two are alike, so that no answer fits twice
    moments: bool = False  # with the moments of your features, to standardise them


class Introduction(NamedTuple):
    """From a client: who it is, and what the server must know of its rows."""

    name: str
    rows: int
    positives: int
    features: int
    leaving: bool = False
    mean: tuple[float, ...] = ()  # of every feature, if asked for
    squares: tuple[float, ...] = ()  # sums of squared distances from the mean

    @property
    def counts(self) -> "Introduction":
        """Without the moments, which nobody needs once the run is settled."""
        return self._replace(mean=(), squares=())


class Bye(NamedTuple):
    """From the server: it is over, or you have left; with the model."""

    run: str
    config: str
    round: int
    reason: str
    model: Any
    calibration: list[float] | None = None  # slope and offset, once they are known


class Thanks(NamedTuple):
    """From a client: it has read the farewell."""

    run: str
    config: str


class Fault(NamedTuple):
    """From a client that could not do its part, or from the transport about it."""

    code: str
    text: str


Note = (
    Instruction
    | Reply
    | Mismatch
    | Evaluate
    | Evaluated
    | Introduce
    | Introduction
    | Bye
    | Thanks
    | Fault
)
KINDS: dict[str, Any] = {
    kind.__name__.lower(): kind
    for kind in (
        Instruction,
        Reply,
        Mismatch,
        Evaluate,
        Evaluated,
        Introduce,
        Introduction,
        Bye,
        Thanks,
        Fault,
    )
}
NUMBERS = ("message", "memory", "payload", "model")  # the fields that are parcels


class Letter(NamedTuple):
    """A note with parcels in the place of numbers."""

    note: Any
    number: int = 0  # the client's, from which its randomness follows
    terms: str = ""  # what was agreed on, for a client that keeps nothing
    mark: bytes = b""  # of a letter that came: its digest, and that of what it answers
    seal: str = ""  # the sender's signature of the mark

    @property
    def parcels(self) -> dict[str, Parcel]:
        held: dict[str, Any] = {n: getattr(self.note, n, None) for n in NUMBERS}
        return {name: parcel for name, parcel in held.items() if is_parcel(parcel)}

    @property
    def bytes(self) -> int:
        """The numbers themselves, without what is written around them."""
        parts = [part for parcel in self.parcels.values() for part in parcel.values()]
        return sum(len(part.data) for part in parts)

    @property
    def text(self) -> str:
        """All but the parcels."""
        note = self.note._replace(**dict.fromkeys(self.parcels))
        kind = type(note).__name__.lower()
        return json.dumps(
            {
                "kind": kind,
                "note": note._asdict(),
                "number": self.number,
                "terms": self.terms,
            }
        )

    @classmethod
    def read(cls, text: Any, parcels: Mapping[str, Parcel]) -> "Letter":
        """The letter, or `Refused`: strangers write, too."""
        if not isinstance(text, str) or len(text) > LONGEST:
            raise Refused("format", f"a note must have up to {LONGEST} characters.")
        try:
            found = json.loads(text)
            kind = KINDS[found["kind"]]
            note = adapter(kind).validate_python(found["note"], strict=False)
            number, terms = found.get("number", 0), found.get("terms", "")
            if not (isinstance(number, int) and isinstance(terms, str)):
                raise Refused("format", "a letter must have a number and terms.")
            if isinstance(note, Fault):
                note = note._replace(code=known_code(note.code), text=note.text[:200])
        except (ValidationError, ValueError, KeyError, TypeError, RecursionError):
            raise Refused("format", "a note must be one of this protocol's.") from None
        # Numbers come as parcels, and nothing else does.
        fields = [name for name in NUMBERS if name in note._fields]
        brought = {name: parcels.get(name) for name in fields}
        return cls(note._replace(**brought), number, terms)


CODES = (
    "alone", "ignored", "site", "format", "keys", "dtype", "shape", "size", "nonfinite",
)  # fmt: skip


def mark_of(text: str, parcels: Mapping[str, Parcel], answers: bytes = b"") -> bytes:
    """The digest of a letter as it travels; an answer's holds that of the question.

    Every piece is led by its length, so that no two letters have the same bytes.
    """
    found = hashlib.sha256()
    pieces = [answers, text.encode()]
    for name, parcel in sorted(parcels.items()):
        pieces.append(f"{name} {len(parcel)}".encode())
        for key, part in sorted(parcel.items()):
            shape = ",".join(map(str, part.shape))
            pieces += [key.encode(), part.dtype.encode(), shape.encode(), part.data]
    for piece in pieces:
        found.update(len(piece).to_bytes(8, "little"))
        found.update(piece)
    return found.digest()


def known_code(code: str) -> str:
    """Codes are counted and shown: a stranger may not invent them."""
    return code if code in CODES else "site"


def is_parcel(value: Any) -> bool:
    """Strangers may have put anything in its place."""
    return isinstance(value, dict) and all(
        isinstance(part, Part) and isinstance(part.data, bytes)
        for part in value.values()
    )


@cache
def adapter(kind: Any) -> TypeAdapter:
    return TypeAdapter(kind)
