"""Letters: what travels between server and sites, as a typed note and its arrays.

A letter is JSON text (the note, the site's number and the terms) and parcels of arrays.
Nothing in it names a class or a function of ours except the kind of note, which is one
of `KINDS`. How a letter is carried is the business of a `federation.transport`.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from sagda.federation.protocol.messages import Instruction, Mismatch, Reply
from sagda.federation.protocol.wire import Parcel, Refused

LONGEST = 1 << 16  # characters of a letter's text


class Evaluate(NamedTuple):
    """From the server: evaluate this point on your rows."""

    run: str
    config: str
    round: int
    question: str  # what to measure: see `federation.questions`
    message: Any


class Evaluated(NamedTuple):
    """From a site: what it measured."""

    run: str
    config: str
    round: int
    question: str
    payload: Any


class Introduce(NamedTuple):
    """From the server: who are you?"""

    nonce: str  # fresh for each letter, so that an old answer cannot be replayed
    moments: bool = False  # include the moments of your features


class Introduction(NamedTuple):
    """From a site: its name, and what the server must know of its rows."""

    name: str
    rows: int
    positives: int
    features: int
    leaving: bool = False  # the site wants to leave (R13)
    mean: tuple[float, ...] = ()  # of every feature, if requested
    squares: tuple[float, ...] = ()  # sums of squared distances from the mean


class Bye(NamedTuple):
    """From the server: the run is over, or you have left; with the model."""

    run: str
    config: str
    round: int
    reason: str  # done or left
    model: Any
    calibration: list[float] | None = None  # slope and offset, if known


class Thanks(NamedTuple):
    """From a site: it has stored the farewell."""

    run: str
    config: str


class Fault(NamedTuple):
    """From a site that failed, or from the transport about a site."""

    code: str
    text: str


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
PARCELS = ("message", "memory", "payload", "model")  # fields of notes with arrays


class Letter(NamedTuple):
    """A message: a typed note, whose arrays are parcels, and its envelope."""

    note: Any
    number: int = 0  # the member's, which its random draws follow from
    terms: str = ""  # the run's terms, so that a site needs no file to answer
    mark: bytes = b""  # of an answer: the digest that its seal signs (`mark_of`)
    seal: str = ""  # the sender's signature of the mark

    @property
    def parcels(self) -> dict[str, Parcel]:
        """The arrays of the note, by field."""
        fields: dict[str, Any] = {n: getattr(self.note, n, None) for n in PARCELS}
        return {
            name: value for name, value in fields.items() if isinstance(value, dict)
        }

    @property
    def bytes(self) -> int:
        """The size of all arrays, without headers and text."""
        parts = [part for parcel in self.parcels.values() for part in parcel.values()]
        return sum(len(part.data) for part in parts)

    @property
    def text(self) -> str:
        """The letter without its parcels, as JSON."""
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
        """The letter; raises `Refused` for anything that is not one of ours.

        Text and parcels may come from an attacker.
        """
        if not isinstance(text, str) or len(text) > LONGEST:
            raise Refused(
                "format",
                f"the text of a letter must have at most {LONGEST} characters.",
            )
        try:
            content = json.loads(text)
            kind = KINDS[content["kind"]]
            note = adapter(kind).validate_python(content["note"], strict=False)
            number, terms = content.get("number", 0), content.get("terms", "")
            if not (isinstance(number, int) and isinstance(terms, str)):
                raise TypeError
            if isinstance(note, Fault):
                # Codes are counted and shown, so an unknown one becomes `site`.
                code = note.code if note.code in CODES else "site"
                note = note._replace(code=code, text=note.text[:200])
        except (ValidationError, ValueError, KeyError, TypeError, RecursionError):
            text = "a letter must hold a note of the protocol, a number and terms."
            raise Refused("format", text) from None
        # Arrays come from parcels only: whatever the text had in these fields is gone,
        # and a parcel under the name of another field is ignored.
        fields = [name for name in PARCELS if name in note._fields]
        arrays = {name: parcels.get(name) for name in fields}
        return cls(note._replace(**arrays), number, terms)


# Codes that a site may give for its own failure.
CODES = (
    "alone", "ignored", "site", "format", "keys", "dtype", "shape", "size", "nonfinite",
)  # fmt: skip


def mark_of(text: str, parcels: Mapping[str, Parcel], answers: bytes = b"") -> bytes:
    """The digest of a letter, which a seal signs.

    An answer's digest covers `answers`, the digest of the question, so that the answer
    cannot be replayed for another question. The length of every piece comes first, so
    that no two letters have the same bytes.
    """
    digest = hashlib.sha256()
    pieces = [answers, text.encode()]
    for name, parcel in sorted(parcels.items()):
        pieces.append(f"{name} {len(parcel)}".encode())
        for key, part in sorted(parcel.items()):
            shape = ",".join(map(str, part.shape))
            pieces += [key.encode(), part.dtype.encode(), shape.encode(), part.data]
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return digest.digest()


@cache
def adapter(kind: Any) -> TypeAdapter:
    """The validator of a kind of note, built once."""
    return TypeAdapter(kind)
