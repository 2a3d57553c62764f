"""Who a site is: its key, the coordinator's register of keys, and seals on answers.

A site's key is an elliptic-curve one in OpenSSH's format, which Flower takes too; the
comment of its public half holds the site's name and the day on which it expires.
"""

import base64
import contextlib
import datetime
import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sagda import durable
from sagda.check import BadValue
from sagda.federation.protocol.wire import Refused

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
PUBLIC, PRIVATE = ".pub", ".key"
HASH = ec.ECDSA(hashes.SHA384())
# What a seal signs begins with this, so that no other use of the key can make one.
PURPOSE = b"sagda answer 1\n"


def today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


def check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise BadValue(
            "a site's name must be 1 to 64 letters, digits, dots, dashes or "
            f"underscores, got {name!r}."
        )
    return name


class Entry(NamedTuple):
    """A site's public key."""

    name: str
    expires: datetime.date
    key: ec.EllipticCurvePublicKey

    @classmethod
    def read(cls, path: Path) -> "Entry":
        """From a file as `sagda keys site` writes it."""
        try:
            text = durable.read(path).decode("ascii").strip()
            kind, blob, name, day = text.split()
            key = serialization.load_ssh_public_key(f"{kind} {blob}".encode())
            expires = datetime.date.fromisoformat(day)
        except FileNotFoundError:
            raise BadValue(f"{path} does not exist.") from None
        except (ValueError, UnsupportedAlgorithm, OSError):
            raise BadValue(
                f"{path} must hold one line: a public key, the site's name and the day "
                "on which it expires; `sagda keys site` writes it."
            ) from None
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise BadValue(f"{path} must hold an elliptic-curve key.")
        return cls(check_name(name), expires, key)

    @property
    def blob(self) -> bytes:
        form = serialization.PublicFormat.OpenSSH
        return self.key.public_bytes(serialization.Encoding.OpenSSH, form)

    @property
    def line(self) -> str:
        return f"{self.blob.decode()} {self.name} {self.expires.isoformat()}\n"

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -lf` shows it."""
        mark = hashlib.sha256(base64.b64decode(self.blob.split()[1])).digest()
        return "SHA256:" + base64.b64encode(mark).decode().rstrip("=")

    @property
    def header(self) -> str:
        """As Flower's nodes show it to a proxy."""
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        text = self.key.public_bytes(serialization.Encoding.PEM, form)
        return base64.b64encode(text).decode()

    @property
    def expired(self) -> bool:
        return today() > self.expires


# A site's side.


def make_site(folder: Path, name: str, days: int) -> tuple[Path, Path]:
    """A new key for a site: its private and its public file. Nothing is replaced."""
    check_name(name)
    secret, public = folder / f"{name}{PRIVATE}", folder / f"{name}{PUBLIC}"
    for path in (secret, public):
        if path.exists() or path.is_symlink():
            raise BadValue(f"{path} exists; keys are never overwritten: move it first.")
    key = ec.generate_private_key(ec.SECP384R1())
    entry = Entry(name, today() + datetime.timedelta(days=days), key.public_key())
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    durable.create(secret, text)
    durable.create(public, entry.line.encode(), 0o644)
    return secret, public


class Signer(NamedTuple):
    """A site's private key."""

    key: ec.EllipticCurvePrivateKey
    fingerprint: str

    @classmethod
    def read(cls, path: Path) -> "Signer":
        durable.check_secret(path)
        try:
            key = serialization.load_ssh_private_key(durable.read(path), None)
        except (ValueError, UnsupportedAlgorithm, TypeError):
            raise BadValue(
                f"{path} must hold a site's private key; `sagda keys site` makes one."
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise BadValue(f"{path} must hold an elliptic-curve key.")
        return cls(key, Entry("any", today(), key.public_key()).fingerprint)

    def seal(self, mark: bytes) -> str:
        """`mark`: the digest of an answer and of what it answers."""
        signature = self.key.sign(PURPOSE + mark, HASH)
        return f"{self.fingerprint} {base64.b64encode(signature).decode()}"


# The coordinator's side.


class Register:
    """The public keys of admitted sites: a folder with a file for each."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.read_at: object = None
        self.entries: dict[str, Entry] = {}

    def now(self) -> dict[str, Entry]:
        """By name; files that changed are read again.

        A file that is no site's key is passed over; if the folder is not there, what
        was known stays.
        """
        if not self.folder.is_dir():
            return self.entries
        try:
            paths = sorted(self.folder.glob(f"*{PUBLIC}"))
            seen = [(path.name, path.stat().st_mtime_ns) for path in paths]
        except FileNotFoundError:
            return self.entries
        if seen != self.read_at:
            found = []
            for path in paths:
                with contextlib.suppress(BadValue):
                    entry = Entry.read(path)
                    if path.name == f"{entry.name}{PUBLIC}":
                        found.append(entry)
            self.entries, self.read_at = {e.name: e for e in found}, seen
        return self.entries

    def who(self, seal: str, mark: bytes) -> str:
        """The name behind a seal over `mark`, or `Refused`."""
        fingerprint, _, signature = seal.partition(" ")
        if not fingerprint or not signature:
            raise Refused("unsigned", "an answer must be signed.")
        known = {entry.fingerprint: entry for entry in self.now().values()}
        entry = known.get(fingerprint)
        if entry is None:
            raise Refused("stranger", "an answer signed with a key of no site here.")
        if entry.expired:
            raise Refused("expired", f"the key of {entry.name} has expired.")
        try:
            raw = base64.b64decode(signature, validate=True)
            entry.key.verify(raw, PURPOSE + mark, HASH)
        except (InvalidSignature, ValueError):
            raise Refused(
                "signature", f"an answer of {entry.name} was changed on its way."
            ) from None
        return entry.name
