"""A development certificate authority: ECDSA P-256, one certificate per party, whose role and name
stand in it.

A certificate says who its holder is in a subject alternative name, the URI `fedrec:<role>:<name>`;
the names and addresses it may be reached at are beside it, each role's its own. For a trial: an
authority that matters keeps its key on another machine.

    ca.pem  ca-key.pem  aggregator.pem  aggregator-key.pem  server.pem  server-key.pem
    serving.pem  serving-key.pem  client-<name>.pem  client-<name>-key.pem
    pins.toml   (`fedrec.operations.pins`)
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedrec.errors import SettingsError

RENEW = "Issue a new one: fedrec certs, or your own authority."
Role = Literal["client", "server", "aggregator", "serving"]

_PURPOSES: Mapping[Role, Sequence[x509.ObjectIdentifier]] = {
    "aggregator": [ExtendedKeyUsageOID.SERVER_AUTH],
    "server": [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    "client": [ExtendedKeyUsageOID.CLIENT_AUTH],
    "serving": [ExtendedKeyUsageOID.SERVER_AUTH],
}
"""The aggregator is called and calls nobody, unless there are three (`issue`); a client calls and
is never called; serving is called by strangers and may call no party."""

PLACES = ("1", "2", "3")
"""Names of three aggregators."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PREFIX = "fedrec:"
_IDENTITY = re.compile(
    r"fedrec:(client|server|aggregator|serving):([A-Za-z0-9][A-Za-z0-9._-]{0,99})"
)
BACKDATED = timedelta(days=1)  # clocks of two machines differ, by a wrong time zone too


@dataclass(frozen=True)
class KeyPair:
    """Where a certificate and its private key lie (PEM)."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Pins:
    """What a client may pin, lower-case hexadecimal SHA-256: of the whole certificate, or of its
    public key (SPKI)."""

    certificate: str
    public_key: str


@dataclass(frozen=True)
class Identity:
    """Who holds a certificate."""

    role: Role
    name: str

    @staticmethod
    def among(uris: Iterable[str]) -> Identity | None:
        """The one that these URIs name; None where none of them is ours, more than one is, or one
        of ours cannot be read."""
        ours = [uri for uri in uris if uri.startswith(_PREFIX)]
        match = _IDENTITY.fullmatch(ours[0]) if len(ours) == 1 else None
        return Identity(cast(Role, match[1]), match[2]) if match else None


def identity(role: Role, name: str) -> str:
    """The URI that says who holds a certificate. Raises ValueError on a name that is no name."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"a name has 1 to 100 letters, digits, dots, dashes or underscores, found {name!r}"
        )
    return f"fedrec:{role}:{name}"


def pins(pem: bytes) -> Pins:
    """The pins of the first certificate in `pem`."""
    return pins_of(x509.load_pem_x509_certificate(pem))


def pins_of(certificate: x509.Certificate | x509.CertificateSigningRequest) -> Pins:
    """The pins of a certificate, or of the key that a request is for."""
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return Pins(
        hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest(),
        hashlib.sha256(key).hexdigest(),
    )


def signer_of(pem: bytes) -> tuple[str, str]:
    """Name of the holder of the first certificate in `pem`, and the pin of its key."""
    certificate = x509.load_pem_x509_certificate(pem)
    holder = Identity.among(uris_of(certificate))
    name = holder.name if holder else certificate.subject.rfc4514_string()
    return name, pins_of(certificate).public_key


def uris_of(certificate: x509.Certificate | x509.CertificateSigningRequest) -> list[str]:
    """The URIs among a certificate's names, or a request's."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def make_ca(folder: Path, *, days: int) -> KeyPair:
    """Make an authority. Raises SettingsError where one is there already."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, f"fedrec development CA {os.urandom(4).hex()}")]
    )
    usage = _usage(key_cert_sign=True, crl_sign=True)
    builder = _builder(name, name, key.public_key(), days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    builder = builder.add_extension(usage, critical=True)
    certificate = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    return _write(folder, "ca", certificate.sign(key, hashes.SHA256()), key)


def issue(
    ca: KeyPair, role: Role, name: str, *, hosts: Sequence[str] = (), days: int, calls: bool = False
) -> KeyPair:
    """A certificate for one party beside its authority's, reachable at `hosts`. Raises
    SettingsError where it is there already.

    calls: one of three aggregators, which calls the other two.
    """
    authority = x509.load_pem_x509_certificate(ca.certificate.read_bytes()), _private(ca.key)
    key = ec.generate_private_key(ec.SECP256R1())
    holder = Identity(role, name)
    made = signed(authority, holder, key.public_key(), hosts=hosts, days=days, calls=calls)
    return _write(ca.certificate.parent, _file_name(role, name), made, key)


def signed(
    authority: tuple[x509.Certificate, ec.EllipticCurvePrivateKey],
    holder: Identity,
    key: ec.EllipticCurvePublicKey,
    *,
    hosts: Sequence[str],
    days: int,
    calls: bool,
) -> x509.Certificate:
    """The authority's certificate of a party's public key. hosts, calls: as `issue` has them.

    Raises ValueError on a name that is none."""
    issuer, authority_key = authority
    purposes = [*_PURPOSES[holder.role], *([ExtendedKeyUsageOID.CLIENT_AUTH] if calls else [])]
    uri = x509.UniformResourceIdentifier(identity(holder.role, holder.name))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, holder.name[:64])])
    vouched = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = (
        _builder(subject, issuer.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName([uri, *map(_host, hosts)]), critical=False)
        .add_extension(vouched, critical=False)
    )
    return builder.sign(authority_key, hashes.SHA256())


def write_development_certificates(
    folder: Path,
    *,
    clients: Sequence[str],
    aggregator_hosts: Sequence[str] = (),
    server_hosts: Sequence[str] = (),
    serving_hosts: Sequence[str] = (),
    days: int = 90,
    three_aggregators: bool = False,
) -> list[Path]:
    """An authority, an aggregator, a server, serving and the clients; what is there already is
    kept. Returns all files, the authority's first.

    three_aggregators: three in place of one, named 1, 2 and 3; aggregator_hosts are then one of
    each, in that order. Aggregator and server are reachable at their own hosts and no other's,
    serving at the server's unless it has its own; without any, at this machine's own names.
    Raises SettingsError on names that are none, and where one host is to be both.
    """
    if both := sorted({*aggregator_hosts} & {*server_hosts} - {*LOCAL_HOSTS}):
        cause = f"{both[0]} is named as the aggregator's host and the server's"
        raise SettingsError(cause, "Give each a name of its own: one machine may have two.")
    aggregators = _aggregators(aggregator_hosts, three=three_aggregators)
    _require_names(clients)
    ca = _existing(folder, "ca") or make_ca(folder, days=days)
    parties: list[tuple[Role, str, Sequence[str]]] = [
        *(("aggregator", name, hosts) for name, hosts in aggregators.items()),
        ("server", "server", server_hosts or LOCAL_HOSTS),
        ("serving", "serving", serving_hosts or server_hosts or LOCAL_HOSTS),
        *(("client", name, ()) for name in clients),
    ]
    made = [ca]
    for role, name, hosts in parties:
        try:
            pair = _existing(folder, _file_name(role, name))
            calls = role == "aggregator" and three_aggregators
            made.append(pair or issue(ca, role, name, hosts=hosts, days=days, calls=calls))
        except ValueError as failure:
            raise SettingsError(f"{role} {name!r}: {failure}", "Choose another name.") from None
    return [path for pair in made for path in (pair.certificate, pair.key)]


def _aggregators(hosts: Sequence[str], *, three: bool) -> dict[str, Sequence[str]]:
    """Hosts by name. Raises SettingsError where three have not one each."""
    if not three:
        return {"aggregator": hosts or LOCAL_HOSTS}
    if hosts and len(set(hosts)) != len(PLACES):
        remedy = "Name --aggregator-host three times, for aggregators 1, 2 and 3 in this order."
        raise SettingsError(f"three aggregators need a host each, found {len(set(hosts))}", remedy)
    return (
        {place: (host,) for place, host in zip(PLACES, hosts, strict=True)}
        if hosts
        else dict.fromkeys(PLACES, LOCAL_HOSTS)
    )


def _require_names(names: Iterable[str]) -> None:
    """Raises SettingsError on a name that is none, and where a certificate's file would have the
    name of another's key."""
    for name in names:
        try:
            identity("client", name)
        except ValueError as failure:
            raise SettingsError(str(failure), "Choose another name.") from None
        if name.endswith("-key"):
            raise SettingsError(
                f"{name!r}: files whose names end in -key.pem hold keys", "Choose another name."
            )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    never = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    return x509.KeyUsage(
        digital_signature=digital_signature, key_cert_sign=key_cert_sign, crl_sign=crl_sign, **never
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(path: Path) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingsError(
            f"{path} is not an elliptic-curve key", "Use an authority that `fedrec certs` made."
        )
    return key


def _file_name(role: Role, name: str) -> str:
    return role if role == name else f"{role}-{name}"


def _existing(folder: Path, name: str) -> KeyPair | None:
    pair = KeyPair(folder / f"{name}.pem", folder / f"{name}-key.pem")
    return pair if pair.certificate.exists() and pair.key.exists() else None


def _write(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> KeyPair:
    pair = KeyPair(folder / f"{name}.pem", folder / f"{name}-key.pem")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write_new(pair.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    _write_new(pair.certificate, certificate.public_bytes(Encoding.PEM))
    return pair


def _write_new(path: Path, content: bytes) -> None:
    """Readable by its owner alone from its first moment."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise SettingsError(
            f"{path} is there already",
            "Move it away first: a certificate that is in use is not overwritten.",
        ) from None
    except OSError as failure:
        raise SettingsError(
            f"{path}: {failure.strerror or failure}", "Name a folder that this user may write."
        ) from None
    with open(descriptor, "wb") as file:
        file.write(content)


def require_in_time(chain: Iterable[x509.Certificate], name: str, now: datetime) -> None:
    """Raises SettingsError where one of a file's certificates has expired or is not valid yet."""
    for each in chain:
        if now < each.not_valid_before_utc:
            raise SettingsError(
                f"{name} is valid from {each.not_valid_before_utc:%Y-%m-%d %H:%M} UTC only",
                "Set this machine's clock right.",
            )
        if now >= each.not_valid_after_utc:
            raise SettingsError(
                f"{name} expired on {each.not_valid_after_utc:%Y-%m-%d %H:%M} UTC", RENEW
            )
