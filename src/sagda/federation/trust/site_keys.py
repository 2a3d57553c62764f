"""Keys of sites, the coordinator's register of them, and the seals on answers.

A site's key is an elliptic-curve key in OpenSSH's format, which Flower also takes. The
comment of the public key holds the site's name and the day on which it expires. The
server's certificate is in `trust.authority`.
"""

import base64
import contextlib
import datetime
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sagda import durable
from sagda.check import BadValue
from sagda.federation.protocol.wire import Refused

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
PUBLIC, PRIVATE = ".pub", ".key"
HASH = ec.ECDSA(hashes.SHA384())
# Every signed text begins with this: a signature made for Flower is not a seal.
PURPOSE = b"sagda answer 1\n"


def today() -> datetime.date:
    """The date in UTC."""
    return datetime.datetime.now(datetime.UTC).date()


def check_name(name: str) -> str:
    """The name, if a site may have it: it becomes part of file names."""
    if not NAME.fullmatch(name):
        raise BadValue(
            "a site's name must be 1 to 64 letters, digits, dots, dashes or "
            f"underscores, got {name!r}."
        )
    return name


def check_unused(*paths: Path, remedy: str) -> None:
    """Raise if one of the files exists."""
    for path in paths:
        if path.exists() or path.is_symlink():
            raise BadValue(f"{path} exists; keys are never overwritten: {remedy}.")


def private_text(
    key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat
) -> bytes:
    """A private key as text. Its file must be readable by its owner only."""
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, plain)


def read_secret(
    path: Path, load: Callable[..., Any], maker: str
) -> ec.EllipticCurvePrivateKey:
    """Read a private key, which must be readable by its owner only.

    Args:
        path: its file.
        load: reads the format: (bytes, password) -> key.
        maker: the command of `sagda keys` that makes such a file.
    """
    durable.check_secret(path)
    with contextlib.suppress(ValueError, UnsupportedAlgorithm, TypeError):
        key = load(durable.read(path), None)
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key
    raise BadValue(
        f"{path} must hold an elliptic-curve private key; `sagda keys {maker}` makes "
        "one."
    )


class Entry(NamedTuple):
    """An entry of the register: a site's public key."""

    name: str
    expires: datetime.date
    key: ec.EllipticCurvePublicKey

    @classmethod
    def read(cls, path: Path) -> "Entry":
        """Read a public key from a file that `sagda keys site` wrote."""
        try:
            text = durable.read(path).decode("ascii").strip()
            kind, blob, name, day = text.split()
            key = serialization.load_ssh_public_key(f"{kind} {blob}".encode())
            expires = datetime.date.fromisoformat(day)
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise ValueError
        except FileNotFoundError:
            raise BadValue(
                f"{path} does not exist; `sagda keys site` makes a key."
            ) from None
        except (ValueError, UnsupportedAlgorithm, OSError):
            raise BadValue(
                f"{path} must hold one line: an elliptic-curve public key, the site's "
                "name and the day on which it expires; `sagda keys site` makes it."
            ) from None
        return cls(check_name(name), expires, key)

    @property
    def blob(self) -> bytes:
        """The public key in OpenSSH's form, without a comment."""
        form = serialization.PublicFormat.OpenSSH
        return self.key.public_bytes(serialization.Encoding.OpenSSH, form)

    @property
    def line(self) -> str:
        """The content of the public key's file."""
        return f"{self.blob.decode()} {self.name} {self.expires.isoformat()}\n"

    @property
    def fingerprint(self) -> str:
        """The key's fingerprint, as `ssh-keygen -lf` shows it."""
        digest = hashlib.sha256(base64.b64decode(self.blob.split()[1])).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    @property
    def header(self) -> str:
        """The key as Flower's nodes send it in a header, by which nginx knows them."""
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        text = self.key.public_bytes(serialization.Encoding.PEM, form)
        return base64.b64encode(text).decode()

    @property
    def expired(self) -> bool:
        """Whether the key's last day has passed."""
        return today() > self.expires


# A site's side.


def make_site(folder: Path, name: str, days: int) -> tuple[Path, Path]:
    """Make a key for a site: its private and its public file. Replaces no file."""
    check_name(name)
    secret, public = folder / f"{name}{PRIVATE}", folder / f"{name}{PUBLIC}"
    check_unused(secret, public, remedy="move it first")
    key = ec.generate_private_key(ec.SECP384R1())
    entry = Entry(name, today() + datetime.timedelta(days=days), key.public_key())
    folder.mkdir(parents=True, exist_ok=True)
    durable.create(secret, private_text(key, serialization.PrivateFormat.OpenSSH))
    durable.create(public, entry.line.encode(), 0o644)
    return secret, public


class Signer(NamedTuple):
    """A site's private key."""

    key: ec.EllipticCurvePrivateKey
    fingerprint: str

    @classmethod
    def read(cls, path: Path) -> "Signer":
        """Read a site's private key."""
        key = read_secret(path, serialization.load_ssh_private_key, "site")
        # Only the fingerprint matters here, so name and day may be any.
        return cls(key, Entry("any", today(), key.public_key()).fingerprint)

    def seal(self, mark: bytes) -> str:
        """The seal over `mark`, the digest of an answer and of its question."""
        signature = self.key.sign(PURPOSE + mark, HASH)
        return f"{self.fingerprint} {base64.b64encode(signature).decode()}"


# The coordinator's side.


class Register:
    """The public keys of admitted sites: a folder with one file for each."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.read_at: object = None  # names and times of the files that were read
        self.entries: dict[str, Entry] = {}

    def now(self) -> dict[str, Entry]:
        """The entries by name; changed files are read again.

        A file that holds no site's key is ignored. If the folder is missing, the
        entries stay: an error with files must not remove every site from the run.
        """
        if not self.folder.is_dir():
            return self.entries
        try:
            paths = sorted(self.folder.glob(f"*{PUBLIC}"))
            state = [(path.name, path.stat().st_mtime_ns) for path in paths]
        except FileNotFoundError:
            return self.entries
        if state != self.read_at:
            entries = []
            for path in paths:
                with contextlib.suppress(BadValue):
                    entry = Entry.read(path)
                    if path.name == f"{entry.name}{PUBLIC}":
                        entries.append(entry)
            self.entries, self.read_at = {e.name: e for e in entries}, state
        return self.entries

    def who(self, seal: str, mark: bytes) -> str:
        """The site that made a seal over `mark`; raises `Refused` if there is none."""
        fingerprint, _, signature = seal.partition(" ")
        if not fingerprint or not signature:
            raise Refused("unsigned", "an answer must be signed.")
        entries = {entry.fingerprint: entry for entry in self.now().values()}
        entry = entries.get(fingerprint)
        if entry is None:
            raise Refused("stranger", "an answer must be signed by an admitted site.")
        if entry.expired:
            raise Refused("expired", f"the key of {entry.name} has expired.")
        try:
            raw = base64.b64decode(signature, validate=True)
            entry.key.verify(raw, PURPOSE + mark, HASH)
        except (InvalidSignature, ValueError):
            raise Refused(
                "signature", f"an answer of {entry.name} has a false signature."
            ) from None
        return entry.name
