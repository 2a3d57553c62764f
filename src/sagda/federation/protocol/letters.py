"""Letters: the messages between server and sites, each a typed note with its arrays.

A letter consists of a JSON text (the note, the number of the member, the terms) and
parcels of arrays. The text names the kind of the note, which is one of `KINDS`. It
names no other class or function, so reading a letter runs no code of its sender.

Transports carry letters: see `federation.transport`. Next: `protocol.wire` for arrays.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from sagda.federation.protocol.messages import Instruction, Mismatch, Reply
from sagda.federation.protocol.wire import Parcel, Refused

LONGEST = 1 << 16  # the largest number of characters in the text of a letter


class Evaluate(NamedTuple):
    """A note of the server: evaluate this point on your rows."""

    run: str
    config: str
    round: int
    question: str  # "quadratic", "sums" or "point": see `federation.questions`
    message: Any  # the point z = (x, y)


class Evaluated(NamedTuple):
    """A note of a site: its answer to a question."""

    run: str
    config: str
    round: int
    question: str
    payload: Any  # means over the rows of the site, and counts by score


class Introduce(NamedTuple):
    """A note of the server: introduce yourself."""

    nonce: str  # new for each letter, so that an old answer cannot be replayed
    moments: bool = False  # whether to include mean and squares of each feature


class Introduction(NamedTuple):
    """A note of a site: its name and facts about its rows."""

    name: str
    rows: int  # the number of rows
    positives: int  # the number of positive rows
    features: int  # the number of features
    # Whether the site wants to leave the run (rule R13 in `federation/protocol`).
    leaving: bool = False
    mean: tuple[float, ...] = ()  # of each feature, if requested
    squares: tuple[float, ...] = ()  # of each feature: sum of (value - mean)^2


class Bye(NamedTuple):
    """A note of the server, the farewell: your part in the run is over.

    It brings the model.
    """

    run: str
    config: str
    round: int
    reason: str  # "done": the run is over; "left": the site is no longer a member
    model: Any  # the point z = (x, y)
    calibration: list[float] | None = None  # slope and offset of scores, if known


class Thanks(NamedTuple):
    """A note of a site: it has stored the model of the farewell."""

    run: str
    config: str


class Fault(NamedTuple):
    """A note that reports a failure, by a site or by the transport about a site."""

    code: str  # a word for the kind of failure
    text: str  # the failure as a sentence


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
PARCELS = ("message", "memory", "payload", "model")  # the fields that hold arrays


class Letter(NamedTuple):
    """One message between server and site: a note, and the envelope around it.

    In a letter that is sent or was received, the arrays of the note are parcels.
    """

    note: Any  # an object of one of the classes in `KINDS`
    number: int = 0  # the number of the member, which determines its random draws
    terms: str = ""  # the terms of the run, so that a site needs no file to answer
    mark: bytes = b""  # the digest of an answer (`mark_of`)
    seal: str = ""  # the signature of the mark by the site

    @property
    def parcels(self) -> dict[str, Parcel]:
        """Return the parcels of the note, by name of the field."""
        fields: dict[str, Any] = {n: getattr(self.note, n, None) for n in PARCELS}
        return {
            name: value for name, value in fields.items() if isinstance(value, dict)
        }

    @property
    def bytes(self) -> int:
        """Return the size of all arrays in bytes, without headers and text."""
        parts = [part for parcel in self.parcels.values() for part in parcel.values()]
        return sum(len(part.data) for part in parts)

    @property
    def text(self) -> str:
        """Return the letter without its parcels, as JSON."""
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
        """Return the letter with this text and these parcels, after checking both.

        Raises `Refused` if they are no valid letter. They may come from an attacker.
        """
        if not isinstance(text, str) or len(text) > LONGEST:
            raise Refused(
                "format",
                f"a letter must have a text of at most {LONGEST} characters.",
            )
        try:
            content = json.loads(text)
            kind = KINDS[content["kind"]]
            note = adapter(kind).validate_python(content["note"], strict=False)
            number, terms = content.get("number", 0), content.get("terms", "")
            if not (isinstance(number, int) and isinstance(terms, str)):
                raise TypeError
            if isinstance(note, Fault):
                # The server counts and shows codes, so unknown codes become "site".
                code = note.code if note.code in CODES else "site"
                note = note._replace(code=code, text=note.text[:200])
        except (ValidationError, ValueError, KeyError, TypeError, RecursionError):
            text = "a letter must hold a note of a known kind, a number and terms."
            raise Refused("format", text) from None
        # Arrays come from parcels only. Values that the text has in these fields are
        # removed, and a parcel with the name of another field is ignored.
        fields = [name for name in PARCELS if name in note._fields]
        arrays = {name: parcels.get(name) for name in fields}
        return cls(note._replace(**arrays), number, terms)


# The codes that a site may use in a `Fault`.
CODES = (
    "alone", "ignored", "site", "format", "keys", "dtype", "shape", "size", "nonfinite",
)  # fmt: skip


def mark_of(text: str, parcels: Mapping[str, Parcel], answers: bytes = b"") -> bytes:
    """Return the mark of a letter: the digest that a seal signs.

    `answers` is the mark of the letter that this one answers. The digest covers it, so
    that the answer cannot be replayed as the answer to another letter.
    """
    digest = hashlib.sha256()
    pieces = [answers, text.encode()]
    for name, parcel in sorted(parcels.items()):
        pieces.append(f"{name} {len(parcel)}".encode())
        for key, part in sorted(parcel.items()):
            shape = ",".join(map(str, part.shape))
            pieces += [key.encode(), part.dtype.encode(), shape.encode(), part.data]
    # The length comes before each piece, so that no two letters have the same bytes.
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return digest.digest()


@cache
def adapter(kind: Any) -> TypeAdapter:
    """Return the validator for a class of notes. It is built once for each class."""
    return TypeAdapter(kind)
