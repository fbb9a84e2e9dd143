"""A caller's way to the aggregator, or to another party that is called so: TLS with an authority, a
pin or both, and what shows who calls.

Who is called must be who it says: the certificate names the role that is called in its URI
`fedrec:<role>:<name>`, and a pin, the SHA-256 of its public key or of the whole certificate, says
whose key it is. gRPC can check neither, so the certificate is fetched by a TLS handshake first and
examined; then gRPC is given that very certificate as the only root it trusts, and the name in it as
the name to expect. Whoever shows another certificate in between fails gRPC's own handshake.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedrec.errors import RefusedError, SettingsError, UnreachableError
from fedrec.federation.protocol import Refusal
from fedrec.operations.addresses import Address, proxy_words
from fedrec.operations.certificates import Identity, pins_of, uris_of
from fedrec.operations.pins import of_role, read_pins
from fedrec.storage import bounded_bytes
from fedrec.transport.aggregator_api.methods import MESSAGE_BYTES

Role: TypeAlias = Literal["client", "server", "aggregator"]

AUTHORIZATION = "authorization"
BEARER = "Bearer "
ROLE_KEY = "fedrec-role"
NAME_KEY = "fedrec-name"
"""Metadata of a caller without TLS."""


_OPTIONS = {
    "grpc.max_receive_message_length": MESSAGE_BYTES,
    "grpc.max_send_message_length": MESSAGE_BYTES,
    "grpc.initial_reconnect_backoff_ms": 100,
    # in gRPC the longest that an attempt to connect may take: a far network needs seconds for TLS
    "grpc.min_reconnect_backoff_ms": 20_000,
    "grpc.max_reconnect_backoff_ms": 2_000,
    "grpc.keepalive_time_ms": 20_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.enable_retries": 0,  # `remote` retries, and knows what may be sent again
}

_OUT_OF_TIME = {9, 10}
"""X509_V_ERR_CERT_NOT_YET_VALID and CERT_HAS_EXPIRED of OpenSSL."""
_HANDSHAKES = 3
_PAUSE_S = 0.2
"""An aggregator that hangs up after a handshake may also be dying; one that does so three times
does not want us."""


@dataclass(frozen=True)
class Access:
    """Where the aggregator is and how each knows the other; the keys of a party's [aggregator]
    table, empty for none.

    name: of the caller, used where there is no TLS. party: who is called, by its role. also:
    another role that it may have. ca: file of the authority that vouches for it (none: the
    system's, or the pin alone). pin: SHA-256 of its public key or certificate. pins: file that says
    the pin of the one party of that role now. certificate, key: the caller's own. token: file with
    its token. named: what the person sets each of these by,
    where that is not `party.key`, for remedies. Raises SettingsError on combinations that do not
    work.
    """

    address: str
    name: str = ""
    ca: str = ""
    pin: str = ""
    pins: str = ""
    certificate: str = ""
    key: str = ""
    token: str = ""
    insecure: bool = False
    party: str = "aggregator"
    also: str = ""
    named: Mapping[str, str] = field(default_factory=dict, compare=False)

    def setting(self, key: str) -> str:
        """What the person sets `key` by."""
        return self.named.get(key, f"{self.party}.{key}")

    def __post_init__(self) -> None:
        try:
            where = Address.of(self.address)
        except ValueError as failure:
            raise SettingsError(
                f"{self.setting('address')}: {failure}",
                f"For example {self.party}.example.org:50051.",
            ) from None
        if self.insecure and not where.loopback:
            raise SettingsError(
                f"{self.setting('insecure')} with {where}: what is sent would travel readable",
                "Use TLS: `fedrec certs` makes certificates.",
            )
        if self.insecure and (self.ca or self.pin or self.certificate or self.token):
            raise SettingsError(
                f"{self.setting('insecure')} leaves ca, pin, certificate and token without effect",
                "Drop one or the other.",
            )
        if bool(self.certificate) != bool(self.key):
            raise SettingsError(
                f"{self.setting('certificate')} and {self.setting('key')} come together",
                "Give both, or a token.",
            )

    def expected(self) -> str:
        """The pin of now. A file that cannot be read, or names no such party or several, leaves it
        as it was."""
        with suppress(SettingsError, ValueError):
            known = of_role(read_pins(Path(self.pins)), self.party) if self.pins else {}
            (pin,) = known.values()
            return pin
        return self.pin

    def metadata(self, role: Role) -> tuple[tuple[str, str], ...]:
        """What goes with every call. Raises SettingsError where the token cannot be read."""
        if self.insecure:
            return (ROLE_KEY, role), (NAME_KEY, self.name)
        return (
            ((AUTHORIZATION, BEARER + _read(self.token).decode("ascii", "replace").strip()),)
            if self.token
            else ()
        )


def open_channel(access: Access, *, timeout_s: float = 10.0) -> grpc.Channel:
    """A channel to the aggregator, its certificate checked already.

    Raises SettingsError (files), UnreachableError (nobody there), RefusedError
    (`WRONG_CERTIFICATE`; `FORBIDDEN` where it does not take ours).
    """
    options = dict[str, int | str](_OPTIONS)
    if Address.of(access.address).loopback:
        options["grpc.enable_http_proxy"] = 0  # what goes to this machine stays on it
    if access.insecure:
        return grpc.insecure_channel(access.address, tuple(options.items()))
    shown = handshake(access, timeout_s=timeout_s)
    roots = None
    if access.pin or access.ca:
        roots = shown.public_bytes(Encoding.PEM)
        options["grpc.ssl_target_name_override"] = _a_name_in(shown)
    own = (_read(access.key), _read(access.certificate)) if access.key else (None, None)
    return grpc.secure_channel(
        access.address, grpc.ssl_channel_credentials(roots, *own), tuple(options.items())
    )


def handshake(access: Access, *, timeout_s: float, protocol: str = "h2") -> x509.Certificate:
    """The certificate that the aggregator shows, checked against authority, role and pin.

    Raises as `open_channel`."""
    where = Address.of(access.address)
    context = tls(access, protocol=protocol)
    try:
        for _ in range(_HANDSHAKES):
            certificate, spoken, welcome = _greet(where, context, access, timeout_s)
            if protocol == "h2" and spoken != "h2":
                cause = f"{where} speaks no gRPC"
                remedy = (
                    f"Check {access.setting('address')}: it may be an https port. A server before "
                    "version 3 of the messages spoke by Flower: upgrade fedrec there."
                )
                raise RefusedError(Refusal.WRONG_PROTOCOL.value, cause, remedy)
            if welcome or protocol != "h2":  # of the others, the caller speaks first
                return certificate
            time.sleep(_PAUSE_S)
    except ssl.SSLCertVerificationError as failure:
        cause = (
            f"the {access.party} at {where} shows a certificate that is not to be trusted: "
            f"{failure.verify_message}"
        )
        remedy = (
            f"Check {access.setting('address')} and {access.setting('ca')}; do not go on otherwise."
        )
        if failure.verify_code in _OUT_OF_TIME:
            cause += f", by this machine's clock, which shows {_told(datetime.now(UTC))}"
            remedy = f"Set this machine's clock right, or have the {access.party} renewed."
        raise _wrong(cause, remedy) from None
    except ssl.SSLError as failure:
        cause = f"no TLS with {where}: {failure.reason or 'it broke off'}"
        raise UnreachableError(
            cause, f"Check that the address is the {access.party}'s and that both use TLS."
        ) from None
    except OSError as failure:
        remedy = f"Start it, or correct {access.setting('address')}.{proxy_words(access.address)}"
        raise UnreachableError(f"no {access.party} answers at {where}: {failure}", remedy) from None
    cause = (
        f"the {access.party} at {where} does not take our certificate"
        if access.certificate
        else f"{where} asks for a certificate"
    )
    raise RefusedError(
        Refusal.FORBIDDEN.value,
        cause,
        f"Use a certificate of the authority that the {access.party}'s operator named"
        + _other_clock(access),
    )


def _other_clock(access: Access) -> str:
    """What a refusal has to do with clocks: the other party says no reason, and its clock is
    nowhere to be read."""
    if not access.certificate:
        return "."
    own = x509.load_pem_x509_certificate(_read(access.certificate))
    now = datetime.now(UTC)
    span = f"{_told(own.not_valid_before_utc)} to {_told(own.not_valid_after_utc)}"
    if not own.not_valid_before_utc <= now < own.not_valid_after_utc:
        return f". Ours is valid from {span}: this machine's clock shows {_told(now)}."
    return (
        f", and compare clocks: ours is valid from {span}, and this machine's clock shows "
        f"{_told(now)}. Where the {access.party}'s shows another time than that, set it right."
    )


def _told(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _greet(
    where: Address, context: ssl.SSLContext, access: Access, timeout_s: float
) -> tuple[x509.Certificate, str | None, bool]:
    """The certificate, the protocol that was agreed, and whether the aggregator goes on talking: in
    TLS 1.3 it hangs up on a wrong client after the handshake."""
    with (
        socket.create_connection((where.host, where.port), timeout=timeout_s) as plain,
        context.wrap_socket(plain, server_hostname=where.host) as line,
    ):
        certificate = x509.load_der_x509_certificate(line.getpeercert(binary_form=True) or b"")
        examine(certificate, access)
        agreed = line.selected_alpn_protocol()
        with suppress(ConnectionResetError, ssl.SSLEOFError):
            return certificate, agreed, agreed == "h2" and bool(line.recv(1))
        return certificate, agreed, False


def examine(certificate: x509.Certificate, access: Access) -> None:
    """Whether the party that is called may hold this certificate: its role, then its key.

    Raises RefusedError (`WRONG_CERTIFICATE`). A certificate that names no party at all, as public
    authorities issue them, is taken by its pin, or by its host name where the system's authorities
    vouch for it.
    """
    uris = uris_of(certificate)
    holder = Identity.among(uris)
    ours = any(uri.startswith("fedrec:") for uri in uris)
    roles = {access.party, access.also}
    if (holder is None or holder.role not in roles) and (ours or access.ca):
        said = ", ".join(uri for uri in uris if uri.startswith("fedrec:")) or "none of ours"
        cause = (
            f"the certificate at {access.address} names as its holder {said}, needed is "
            f"fedrec:{access.party}:<name>"
        )
        raise RefusedError(
            Refusal.WRONG_CERTIFICATE.value,
            cause,
            f"Check {access.setting('address')}; do not go on with another party in its place.",
        )
    found = pins_of(certificate)
    pin = access.expected()
    if pin and pin not in {found.certificate, found.public_key}:
        cause = (
            f"the {access.party} at {access.address} shows a certificate of public key "
            f"{found.public_key}, pinned is {pin}"
        )
        raise _wrong(cause, "Ask its operator whether the key changed; pin the new one only then.")


def only(certificate: x509.Certificate, access: Access, *, protocol: str) -> ssl.SSLContext:
    """TLS that trusts this very certificate, which was examined, and no other. Raises as `tls`."""
    context = tls(replace(access, ca="", pin=pins_of(certificate).public_key), protocol=protocol)
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags = ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate.public_bytes(Encoding.PEM).decode())
    return context


def tls(access: Access, *, protocol: str = "h2") -> ssl.SSLContext:
    """What a handshake for `protocol` is made with.

    Raises SettingsError on files that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([protocol])
    # with a pin, the certificate itself is expected, whatever name it bears and whoever signed it
    context.check_hostname = not access.pin
    try:
        if access.ca:
            context.load_verify_locations(access.ca)
        elif access.pin:
            context.verify_mode = ssl.CERT_NONE
        else:
            context.load_default_certs()
        if access.certificate:
            context.load_cert_chain(access.certificate, access.key)
    except (OSError, ssl.SSLError) as failure:
        raise SettingsError(
            f"the {access.party}'s certificates cannot be used: {failure}",
            "Name readable PEM files.",
        ) from None
    return context


def _a_name_in(certificate: x509.Certificate) -> str:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    hosts = [
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    ]
    if not hosts:
        raise RefusedError(
            Refusal.WRONG_CERTIFICATE.value,
            "the pinned certificate names no host",
            "Issue one with the aggregator's name in it.",
        )
    return hosts[0]


def _read(path: str) -> bytes:
    try:
        return bounded_bytes(Path(path))
    except OSError as failure:
        raise SettingsError(
            f"{path}: {failure.strerror or failure}", "Name a readable file."
        ) from None


def _wrong(cause: str, remedy: str) -> RefusedError:
    return RefusedError(Refusal.WRONG_CERTIFICATE.value, cause, remedy)
