"""The coordinator's folder of keys: a certificate authority, the server, the sites.

ca.crt, ca.key            the authority (every site gets a copy of ca.crt)
server.crt, server.key    the server's certificate, which the authority signed
sites/NAME.pub            public keys of the sites that may take part
old/                      files that were replaced or removed

Private keys of sites never come here: each site makes its own key. For the format of
these keys, see `trust.site_keys`.
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

ALWAYS = ("localhost", "127.0.0.1", "::1")  # in every server certificate
PEM, PKCS8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
SKEW = datetime.timedelta(minutes=10)  # allowed between two machines' clocks
CA_DAYS = 3650


class Keys:
    """The coordinator's keys, in a folder. Makes, renews, admits and removes keys."""

    def __init__(self, folder: Path):
        self.folder, self.sites = folder, folder / "sites"
        self.ca, self.ca_key = folder / "ca.crt", folder / "ca.key"
        self.certificate, self.key = folder / "server.crt", folder / "server.key"

    def check(self) -> "Keys":
        """Return these keys. Raises `BadValue` if a server could not use them.

        The files must exist. The private key must be readable by its owner only, the
        certificate must be valid, and at least one site must be admitted.
        """
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
                f"{self.certificate} expired on {self.expires:%Y-%m-%d}; make a new "
                "one with `sagda keys renew`."
            )
        if not Register(self.sites).now():
            raise BadValue(
                f"{self.sites} must hold the public key of at least one site; add one "
                "with `sagda keys admit NAME.pub`."
            )
        return self

    @property
    def expires(self) -> datetime.datetime:
        """The time at which the server certificate expires."""
        return read_certificate(self.certificate).not_valid_after_utc

    # Making.

    def init(self, hosts: list[str], days: int) -> None:
        """Make a new authority, and a certificate for the server names `hosts`."""
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
        """Read the authority's private key. Its owner may have moved it elsewhere."""
        return read_secret(self.ca_key, serialization.load_pem_private_key, "init")

    def issue(self, hosts: list[str], days: int) -> None:
        """Make a server key and a certificate for `hosts`, signed by the authority."""
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
        """Replace the server certificate. If `hosts` is None, it has the same names."""
        wanted = self.hosts if hosts is None else hosts
        # Both checks raise before any file is moved.
        for host in wanted:
            alternative(host)
        self.signer()
        self.put_away(self.certificate)
        self.put_away(self.key)
        self.issue(wanted, days)

    @property
    def hosts(self) -> list[str]:
        """The server names in the certificate, without those of `ALWAYS`."""
        extensions = read_certificate(self.certificate).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(name.value) for name in names if str(name.value) not in ALWAYS]

    # Sites.

    def admit(self, path: Path, replace: bool) -> Entry:
        """Admit a site by its public key, and return its entry.

        With `replace`, a different key of the same site is moved to old/.
        """
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
                f"{path} is already the key of {taken}; each site needs its own key."
            )
        if target.exists():
            if not replace:
                raise BadValue(
                    f"{target} holds another key of {entry.name}; give --replace if "
                    "the site has a new key."
                )
            # First link the old file, then overwrite it: a running server would remove
            # a site whose key is missing even for a moment.
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
        """Move a file of this folder to old/."""
        path.rename(self.old_name(path))

    def old_name(self, path: Path) -> Path:
        """Return an unused path in old/ for a file with the name of `path`."""
        old = durable.private(self.folder / "old")
        number = 1
        while (old / f"{path.name}.{number}").exists():
            number += 1
        return old / f"{path.name}.{number}"


# Certificates.


def named(name: str) -> x509.Name:
    """Return a distinguished name with the common name `name`, cut at 64 characters."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    """Begin a certificate, which the caller completes with extensions and signs."""
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
    """Return what a key may do: sign certificates, or prove the server's identity."""
    others = ("content_commitment", "key_encipherment", "data_encipherment")
    others += ("key_agreement", "encipher_only", "decipher_only")
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        **dict.fromkeys(others, False),
    )


def alternative(host: str) -> x509.GeneralName:
    """Convert a server's name or address to the form that certificates use."""
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
    """Read a certificate in PEM format."""
    try:
        return x509.load_pem_x509_certificate(durable.read(path))
    except ValueError:
        raise BadValue(
            f"{path} must be a certificate in PEM format; make one with `sagda keys "
            "init`."
        ) from None
