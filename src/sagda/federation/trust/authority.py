"""The coordinator's folder of keys: a certificate authority, the server, the sites.

ca.crt, ca.key            the authority (every site gets a copy of ca.crt)
server.crt, server.key    the server's certificate, which the authority signed
sites/NAME.pub            public keys of the sites that may take part
old/                      files that were replaced or removed

Sites make their own keys, and the formats of those are in `trust.site_keys`.
"""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sagda import durable
from sagda.check import BadValue
from sagda.federation.trust.site_keys import (
    PUBLIC,
    Entry,
    Register,
    check_name,
    check_unused,
    private_text,
    read_secret,
)

ALWAYS = ("localhost", "127.0.0.1", "::1")  # how the server reaches itself
PEM, PKCS8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
SKEW = datetime.timedelta(minutes=10)  # allowed between the clocks of two machines
CA_DAYS = 3650


class Keys:
    """A coordinator's folder of keys: makes, renews, admits and removes them."""

    def __init__(self, folder: Path):
        self.folder, self.sites = folder, folder / "sites"
        self.ca, self.ca_key = folder / "ca.crt", folder / "ca.key"
        self.certificate, self.key = folder / "server.crt", folder / "server.key"

    def check(self) -> "Keys":
        """Raise if a file is missing, readable by others, or has expired."""
        for path in (self.ca, self.certificate, self.key):
            if not path.is_file():
                raise BadValue(
                    f"{path} does not exist; `sagda keys init` makes a coordinator's "
                    "keys, and `--keys` names their folder."
                )
        durable.check_secret(self.key)
        days = (self.expires - datetime.datetime.now(datetime.UTC)).days
        if days < 0:
            raise BadValue(
                f"{self.certificate} expired on {self.expires:%Y-%m-%d}; "
                "`sagda keys renew` makes a new one."
            )
        if not Register(self.sites).now():
            raise BadValue(
                f"{self.sites} holds no site's key, so nobody could join; "
                "`sagda keys admit NAME.pub` adds one."
            )
        return self

    @property
    def expires(self) -> datetime.datetime:
        """The end of the server certificate."""
        return read_certificate(self.certificate).not_valid_after_utc

    # Making.

    def init(self, hosts: list[str], days: int) -> None:
        """Make a new authority, and a certificate for a server with these names."""
        durable.private(self.folder)
        durable.private(self.sites)
        remedy = "choose another folder with --keys, or see `sagda keys renew`"
        check_unused(self.ca, self.ca_key, self.certificate, self.key, remedy=remedy)
        key = ec.generate_private_key(ec.SECP384R1())
        subject = named("sagda federation")
        certificate = (
            unsigned(subject, subject, key.public_key(), CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
            .add_extension(usage(signs=True), True)
            .sign(key, hashes.SHA384())
        )
        durable.create(self.ca_key, private_text(key, PKCS8))
        durable.create(self.ca, certificate.public_bytes(PEM), 0o644)
        self.issue(hosts, days)

    def signer(self) -> ec.EllipticCurvePrivateKey:
        """The authority's private key. Its owner may have moved it to a safe place."""
        return read_secret(self.ca_key, serialization.load_pem_private_key, "init")

    def issue(self, hosts: list[str], days: int) -> None:
        """Make a server certificate, signed by this authority."""
        signer, authority = self.signer(), read_certificate(self.ca)
        key = ec.generate_private_key(ec.SECP384R1())
        wanted = list(dict.fromkeys([*hosts, *ALWAYS]))
        names = x509.SubjectAlternativeName([alternative(host) for host in wanted])
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        certificate = (
            unsigned(named(wanted[0]), authority.subject, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
            .add_extension(usage(signs=False), True)
            .add_extension(issuer, False)
            .add_extension(purpose, False)
            .add_extension(names, False)
            .sign(signer, hashes.SHA384())
        )
        durable.create(self.key, private_text(key, PKCS8))
        durable.create(self.certificate, certificate.public_bytes(PEM), 0o644)

    def renew(self, hosts: list[str] | None, days: int) -> None:
        """Replace the server certificate, with the same names if `hosts` is None."""
        wanted = self.hosts if hosts is None else hosts
        for host in wanted:
            alternative(host)
        self.signer()  # raises before any file is moved
        self.put_away(self.certificate)
        self.put_away(self.key)
        self.issue(wanted, days)

    @property
    def hosts(self) -> list[str]:
        """The names of the server in its certificate."""
        extensions = read_certificate(self.certificate).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(name.value) for name in names if str(name.value) not in ALWAYS]

    # Sites.

    def admit(self, path: Path, replace: bool) -> Entry:
        """Register a public key. With `replace`, the site's former key goes to old/."""
        entry = Entry.read(path)
        if entry.expired:
            raise BadValue(
                f"{path} expired on {entry.expires}; ask the site for a new key."
            )
        target = durable.private(self.sites) / f"{entry.name}{PUBLIC}"
        others = Register(self.sites).now().values()
        taken = next((e.name for e in others if e.blob == entry.blob), None)
        if taken == entry.name and not replace:
            return entry
        if taken not in (None, entry.name):
            raise BadValue(
                f"{path} is the key of {taken} already; each site needs its own key."
            )
        if target.exists():
            if not replace:
                raise BadValue(
                    f"{target} holds another key of {entry.name}; give --replace if "
                    "the site has a new one."
                )
            # A link first: a running server removes a site as soon as it has no key.
            self.old_name(target).hardlink_to(target)
        durable.write(target, entry.line)
        return entry

    def remove(self, name: str) -> None:
        """Remove a site's key. A running server then removes the site."""
        target = self.sites / f"{check_name(name)}{PUBLIC}"
        if not target.exists():
            raise BadValue(f"{target} does not exist; see `sagda keys show`.")
        self.put_away(target)

    def put_away(self, path: Path) -> None:
        """Move a file to old/."""
        path.rename(self.old_name(path))

    def old_name(self, path: Path) -> Path:
        """A free path in old/ for a file of this name."""
        old = durable.private(self.folder / "old")
        number = 1
        while (old / f"{path.name}.{number}").exists():
            number += 1
        return old / f"{path.name}.{number}"


# Certificates.


def named(name: str) -> x509.Name:
    """A distinguished name with this common name, which has up to 64 characters."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    """A certificate that is still to be completed and signed."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
    )


def usage(*, signs: bool) -> x509.KeyUsage:
    """What a key may do: sign certificates, or prove who the server is."""
    others = ("content_commitment", "key_encipherment", "data_encipherment")
    others += ("key_agreement", "encipher_only", "decipher_only")
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        **dict.fromkeys(others, False),
    )


def alternative(host: str) -> x509.GeneralName:
    """A server's name or address, as a certificate has it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")
    if not host.isascii() or not all(
        label.replace("-", "").isalnum() and len(label) < 64 for label in labels
    ):
        raise BadValue(
            f"`--host` must be a name or an address such as fl.example.org, got "
            f"{host!r}."
        )
    return x509.DNSName(host)


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate in PEM form."""
    try:
        return x509.load_pem_x509_certificate(durable.read(path))
    except ValueError:
        raise BadValue(
            f"{path} must be a certificate in PEM form; `sagda keys init` makes one."
        ) from None
