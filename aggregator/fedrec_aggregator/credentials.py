"""Credentials of callers: by client certificate, by bearer token over TLS, or (on loopback, for a
trial) by what the caller says.

A certificate of the settings' authority names its holder in a subject alternative name, the URI
`fedrec:client:<name>` or `fedrec:server:<name>`; where the settings name pins, it must also be of
the key that is known under that name. A token is known here by its SHA-256 alone. A client enrols
and reports, a server does the rest. Of three aggregators, each knows the other two by the pins of
their keys; a peer's name is its place.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from fedrec.federation.protocol import Refusal, refused
from fedrec.operations.certificates import Identity, identity, pins
from fedrec.transport.channel import AUTHORIZATION, BEARER, NAME_KEY, ROLE_KEY, Role
from fedrec_aggregator.settings import AggregatorSettings
from fedrec_aggregator.settings_tables import TokenEntry

Metadata: TypeAlias = Mapping[str, str | bytes]
AuthContext: TypeAlias = Mapping[str, Iterable[bytes]]


@dataclass(frozen=True)
class Caller:
    """An authenticated caller."""

    role: Role
    name: str


class Authenticator(Protocol):
    """One way to tell who calls."""

    def __call__(self, auth: AuthContext, metadata: Metadata) -> Caller:
        """The caller, from the connection's certificate and the call's metadata.

        Raises RefusedError (`FORBIDDEN`)."""


@dataclass(frozen=True)
class Roster:
    """Who may call at all: the listed servers, and the listed clients or, with `any_client`, every
    one that shows credentials."""

    authenticator: Authenticator
    servers: frozenset[str]
    clients: Mapping[str, int | None]
    any_client: bool
    peers: frozenset[str] = frozenset()

    @staticmethod
    def of(settings: AggregatorSettings) -> Roster:
        """Callers as the operator listed them; a token for a client lists it too."""
        three = settings.three_party
        by_pin = {} if three is None else {peer.pin: str(peer.place) for peer in three.peers}
        by_certificate = Certificates(settings.keys, by_pin)
        authenticator: Authenticator = (
            said_by_caller
            if settings.insecure
            else Tokens(settings.tokens)
            if settings.tokens
            else by_certificate
        )
        clients = {t.name: None for t in settings.tokens if t.role == "client"} | {
            c.name: c.max_users for c in settings.clients
        }
        servers = {t.name for t in settings.tokens if t.role == "server"} | set(settings.servers)
        peers = {str(peer.place) for peer in three.peers} if three else set[str]()
        return Roster(
            authenticator, frozenset(servers), clients, settings.any_client, frozenset(peers)
        )

    def admit(
        self, auth: AuthContext, metadata: Metadata, role: Role | Literal["either"]
    ) -> Caller:
        """The caller, if it may play `role`.

        Raises RefusedError (`FORBIDDEN`; `NOT_ENROLLED` for a client that is not listed)."""
        peer = self.authenticator(auth, metadata)
        if role != peer.role and (role != "either" or peer.role == "aggregator"):
            raise refused(
                Refusal.FORBIDDEN,
                f"this call is a {role}'s, the caller is a {peer.role}",
                "Use the credentials of the other role.",
            )
        if peer.role == "server" and peer.name not in self.servers:
            raise refused(
                Refusal.FORBIDDEN,
                f"server {peer.name!r} is not listed here",
                "Ask the aggregator's operator to list it.",
            )
        if peer.role == "client" and not (self.any_client or peer.name in self.clients):
            raise refused(
                Refusal.NOT_ENROLLED,
                f"client {peer.name!r} is not listed here",
                "Ask the aggregator's operator to list it.",
            )
        if peer.role == "aggregator" and peer.name not in self.peers:
            raise refused(
                Refusal.FORBIDDEN,
                f"aggregator {peer.name!r} is no peer of this one",
                "Compare the settings of all three.",
            )
        return peer


@dataclass(frozen=True)
class Certificates:
    """Callers by certificate, which TLS has checked already. keys: SHA-256 of public keys by
    identity; with any, none besides is known.

    peers: places of the other two of three aggregators, by SHA-256 of their public keys.
    """

    keys: Mapping[str, str]
    peers: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, auth: AuthContext, metadata: Metadata) -> Caller:
        """The one identity in the certificate, if the key is that identity's."""
        holder = Identity.among(uri.decode("utf-8", "replace") for uri in auth.get("peer_uri", ()))
        if (
            holder is not None
            and holder.role == "aggregator"
            and (place := self.peers.get(_public_key(auth)))
        ):
            return Caller("aggregator", place)
        if holder is None or holder.role == "aggregator" or holder.role == "serving":
            remedy = (
                "Use a certificate of `fedrec certs`, or one with a URI fedrec:client:<name> or "
                "fedrec:server:<name>."
            )
            raise refused(
                Refusal.FORBIDDEN,
                "the certificate must name one client or server and nobody else",
                remedy,
            )
        if self.keys and self.keys.get(identity(holder.role, holder.name)) != _public_key(auth):
            cause = (
                f"the key of this certificate is not the one known of {holder.role} {holder.name!r}"
            )
            raise refused(
                Refusal.FORBIDDEN,
                cause,
                "Ask the aggregator's operator to bring its pins up to date.",
            )
        return Caller(holder.role, holder.name)


def _public_key(auth: AuthContext) -> str:
    try:
        return pins(b"".join(auth.get("x509_pem_cert", ()))).public_key
    except ValueError:
        return ""


def said_by_caller(auth: AuthContext, metadata: Metadata) -> Caller:
    """Whoever the caller says it is: for a trial on one machine."""
    holder = Identity.among([f"fedrec:{_text(metadata, ROLE_KEY)}:{_text(metadata, NAME_KEY)}"])
    if holder is None or holder.role == "serving":
        raise refused(
            Refusal.FORBIDDEN,
            "the caller does not say who it is",
            "Give role and name, as `aggregator_client` does.",
        )
    return Caller(holder.role, holder.name)


class Tokens:
    """Bearers of tokens."""

    def __init__(self, entries: Sequence[TokenEntry]) -> None:
        self._entries = [
            (bytes.fromhex(entry.sha256), Caller(entry.role, entry.name)) for entry in entries
        ]

    def __call__(self, auth: AuthContext, metadata: Metadata) -> Caller:
        """Every entry is compared, in constant time: how long it takes says nothing about a
        token."""
        shown = _text(metadata, AUTHORIZATION)
        found = list[Caller]()
        digest = hashlib.sha256(shown.removeprefix(BEARER).encode()).digest()
        for expected, peer in self._entries:
            if hmac.compare_digest(digest, expected):
                found.append(peer)
        if not shown.startswith(BEARER) or len(found) != 1:
            raise refused(
                Refusal.FORBIDDEN,
                "no known token was shown",
                "Give the token that the aggregator's operator handed out.",
            )
        return found[0]


def _text(metadata: Metadata, key: str) -> str:
    value = metadata.get(key, "")
    return value if isinstance(value, str) else ""
