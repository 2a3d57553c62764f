"""Keys of sites, the coordinator's register of them, and the seals on answers.

A site's key is an elliptic-curve key in the format of OpenSSH, which Flower also reads.
The comment of the public key holds the site's name and the last day on which the key is
valid. A *seal* is a site's signature on an answer. For the certificate of the server,
see `trust.authority`.
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
# All signed bytes begin with this, so a signature made for Flower is not a valid seal.
PURPOSE = b"sagda answer 1\n"


def today() -> datetime.date:
    """Return today's date in UTC."""
    return datetime.datetime.now(datetime.UTC).date()


def check_name(name: str) -> str:
    """Return `name`, or raise `BadValue` if a site must not have this name."""
    if not NAME.fullmatch(name):
        # Names become parts of file names.
        raise BadValue(
            "a site's name must be 1 to 64 letters, digits, dots, dashes or "
            f"underscores, got {name!r}."
        )
    return name


def check_unused(*paths: Path, remedy: str) -> None:
    """Raise `BadValue` if one of the files exists."""
    for path in paths:
        if path.exists() or path.is_symlink():
            raise BadValue(f"{path} exists; keys are never overwritten: {remedy}.")


def private_text(
    key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat
) -> bytes:
    """Return a private key as text, which is not encrypted."""
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, plain)


def read_secret(
    path: Path, load: Callable[..., Any], maker: str
) -> ec.EllipticCurvePrivateKey:
    """Read a private key from a file that only its owner can read.

    Args:
        path: the file.
        load: a function that reads the format of the file: (bytes, password) -> key.
        maker: the command of `sagda keys` that makes such a file.
    """
    durable.check_secret(path)
    with contextlib.suppress(ValueError, UnsupportedAlgorithm, TypeError):
        key = load(durable.read(path), None)
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key
    raise BadValue(
        f"{path} must hold an elliptic-curve private key; make one with `sagda keys "
        f"{maker}`."
    )


class Entry(NamedTuple):
    """One entry of the register: the public key of a site."""

    name: str
    expires: datetime.date  # the last day on which the key is valid
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
                f"{path} does not exist; make a key with `sagda keys site`."
            ) from None
        except (ValueError, UnsupportedAlgorithm, OSError):
            raise BadValue(
                f"{path} must hold one line with an elliptic-curve public key, the "
                "site's name and the day of expiry; make such a file with `sagda keys "
                "site`."
            ) from None
        return cls(check_name(name), expires, key)

    @property
    def blob(self) -> bytes:
        """The public key in the format of OpenSSH, without a comment."""
        form = serialization.PublicFormat.OpenSSH
        return self.key.public_bytes(serialization.Encoding.OpenSSH, form)

    @property
    def line(self) -> str:
        """The line that the file of the public key contains."""
        return f"{self.blob.decode()} {self.name} {self.expires.isoformat()}\n"

    @property
    def fingerprint(self) -> str:
        """The key's fingerprint, as `ssh-keygen -lf` shows it."""
        digest = hashlib.sha256(base64.b64decode(self.blob.split()[1])).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    @property
    def header(self) -> str:
        """The key as Flower's nodes send it in a request header, which nginx checks."""
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        text = self.key.public_bytes(serialization.Encoding.PEM, form)
        return base64.b64encode(text).decode()

    @property
    def expired(self) -> bool:
        """True if the last day of the key has passed."""
        return today() > self.expires


# For a site.


def make_site(folder: Path, name: str, days: int) -> tuple[Path, Path]:
    """Make a key for a site. Return the paths of its private and its public file.

    Raises `BadValue` if one of the two files exists.
    """
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
    """The private key of a site, which seals its answers."""

    key: ec.EllipticCurvePrivateKey
    fingerprint: str

    @classmethod
    def read(cls, path: Path) -> "Signer":
        """Read the private key of a site from a file."""
        key = read_secret(path, serialization.load_ssh_private_key, "site")
        # The fingerprint does not depend on the name and the day.
        return cls(key, Entry("any", today(), key.public_key()).fingerprint)

    def seal(self, mark: bytes) -> str:
        """Sign `mark`, the digest of an answer. Return the signature, called a seal."""
        signature = self.key.sign(PURPOSE + mark, HASH)
        return f"{self.fingerprint} {base64.b64encode(signature).decode()}"


# For the coordinator.


class Register:
    """The public keys of the admitted sites: a folder with one file per site."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.read_at: object = None  # names and times of the files that were read
        self.entries: dict[str, Entry] = {}

    def now(self) -> dict[str, Entry]:
        """Return the entries by site name. Reads the files again if they have changed.

        A file without a valid key is ignored. If the folder is missing, the last
        entries are returned: an error with files must not remove all sites from a run.
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
        """Return the site that made `seal` over `mark`.

        Raises `Refused` if no admitted site made it, or if the key has expired.
        """
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
                "signature", f"an answer of {entry.name} has an invalid signature."
            ) from None
        return entry.name
