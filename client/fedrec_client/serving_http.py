"""A serving server over HTTP: plain JSON for a query, the bundle as bytes.

No cookie is kept, no redirect is followed.

Connection to a serving server by its URL: gRPC or HTTP, with or without TLS.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2
import numpy as np
from cryptography import x509

from fedrec.errors import ProtocolError, SettingsError, UnreachableError
from fedrec.federation.protocol import Refusal
from fedrec.federation.round_messages import FIELD, spoken
from fedrec.federation.wire import refused
from fedrec.operations.addresses import Address
from fedrec.transport.channel import Access, examine, only, tls
from fedrec_client.serving_link import (
    GrpcServer,
    Left,
    Server,
    ServingQuery,
    ServingReply,
    Trust,
    lost,
    patiently,
    told,
)

_MOST_BYTES = 2**22
"""Of an answer that is not a bundle."""


@dataclass
class HttpServer:
    """Over HTTP or HTTPS; the connection is opened when it is first needed."""

    access: Access
    timeout_s: float = 10.0
    journal: list[Left] = field(default_factory=list)
    _client: httpx2.Client | None = None

    def newest(self) -> str:
        """Implements `Server.newest`."""
        found = patiently(lambda: self._json("GET", "/v1/models", b""))
        spoken(found.get(FIELD), who=f"the server at {self.access.address}")
        version = found.get("newest")
        if not (
            isinstance(version, str)
            and len(version) == 16
            and set(version) <= set("0123456789abcdef")
        ):
            raise _unexpected(self.access, "names no newest model")
        return version

    def bundle(self, version: str) -> Iterator[bytes]:
        """Implements `Server.bundle`."""
        try:
            with self._open().stream("GET", f"/v1/models/{version}/bundle") as response:
                if response.status_code != httpx2.codes.OK:
                    self._refuse(response.status_code, response.read())
                yield from response.iter_bytes(2**20)
        except (httpx2.HTTPError, OSError) as failure:
            raise self._lost(failure) from None

    def recommend(self, query: ServingQuery) -> ServingReply:
        """Implements `Server.recommend`."""
        coefficients = [float(number) for number in query.sent]
        content: dict[str, Any] = {
            "version": query.version,
            "coefficients": coefficients,
            "k": query.k,
        }
        if query.categories:
            content["categories"] = list(query.categories)
        body = json.dumps(content, separators=(",", ":")).encode()
        reply = patiently(lambda: self._json("POST", "/v1/recommend", body))
        try:
            return ServingReply(
                str(reply["version"]),
                np.array(reply["items"], np.int64),
                np.array(reply["scores"], np.float32),
            )
        except (KeyError, TypeError, ValueError, OverflowError):  # also of a number past int64
            raise _unexpected(self.access, "gives no items and scores") from None

    def close(self) -> None:
        """Implements `Server.close`."""
        if self._client is not None:
            self._client.close()

    def _json(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        headers = {"content-type": "application/json"} if body else {}
        try:
            with self._open().stream(method, path, content=body, headers=headers) as response:
                content = b""
                for part in response.iter_bytes():
                    content += part
                    if len(content) > _MOST_BYTES:
                        raise _unexpected(self.access, "sends too much")
        except (httpx2.HTTPError, OSError) as failure:
            raise self._lost(failure) from None
        if response.status_code != httpx2.codes.OK:
            self._refuse(response.status_code, content)
        return self._table(content)

    def _table(self, content: bytes) -> dict[str, Any]:
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):  # nested deeper than Python reads
            found = None
        if not isinstance(found, dict):
            raise _unexpected(self.access, "does not answer with JSON")
        return found

    def _refuse(self, status: int, content: bytes) -> None:
        words = self._table(content)
        if not words.get("code"):
            raise _unexpected(self.access, f"answers with status {status}")
        raise told(str(words["code"]), str(words.get("cause", "")), str(words.get("remedy", "")))

    def _lost(self, failure: Exception) -> ProtocolError:
        cause: BaseException | None = failure
        while cause is not None and not isinstance(cause, ssl.SSLError):
            cause = cause.__cause__ or cause.__context__
        if isinstance(cause, ssl.SSLCertVerificationError):
            words = (
                f"the server at {self.access.address} shows a certificate that is not to be "
                f"trusted: {cause.verify_message}"
            )
            return refused(
                Refusal.WRONG_CERTIFICATE,
                words,
                "Check the address and --ca; do not go on otherwise.",
            )
        if isinstance(cause, ssl.SSLError):
            return UnreachableError(
                f"no TLS with {self.access.address}: {cause.reason or 'it broke off'}",
                "Check that the address is the server's and that both use TLS.",
            )
        return lost(self.access.address, str(failure) or type(failure).__name__)

    def _open(self) -> httpx2.Client:
        if self._client is None:
            where = Address.of(self.access.address)
            plain = self.access.insecure
            self._client = httpx2.Client(
                base_url=f"http{'' if plain else 's'}://{where}",
                verify=False if plain else self._context(where),
                timeout=self.timeout_s,
                headers={"user-agent": "fedrec", "accept-encoding": "identity"},
                # a proxy that the person chose, but none to this machine
                trust_env=not where.loopback,
                event_hooks={"request": [self._note], "response": [self._forget]},
            )
        return self._client

    def _context(self, where: Address) -> ssl.SSLContext:
        """TLS by the system's authorities; else the very certificate that was examined is the only
        one trusted."""
        context = tls(self.access, protocol="http/1.1")
        if not (self.access.pin or self.access.ca):
            return context
        try:
            with (
                socket.create_connection((where.host, where.port), timeout=self.timeout_s) as plain,
                context.wrap_socket(plain, server_hostname=where.host) as line,
            ):
                shown = x509.load_der_x509_certificate(line.getpeercert(binary_form=True) or b"")
        except OSError as failure:
            raise self._lost(failure) from None
        examine(shown, self.access)
        return only(shown, self.access, protocol="http/1.1")

    def _note(self, request: httpx2.Request) -> None:
        headers = tuple((name.decode(), value.decode()) for name, value in request.headers.raw)
        self.journal.append(
            Left(
                f"{request.method} {request.url.raw_path.decode()} HTTP/1.1",
                headers,
                request.read(),
            )
        )

    def _forget(self, _response: httpx2.Response) -> None:
        """A cookie would let the server tell callers apart."""
        if self._client is not None:
            self._client.cookies.clear()


def _unexpected(access: Access, what: str) -> ProtocolError:
    return ProtocolError(
        f"the server at {access.address} {what}",
        "Check that it is a serving server of this version of fedrec.",
    )


def connect(url: str, trust: Trust, *, timeout_s: float = 10.0) -> Server:
    """The server at grpc://, grpcs://, http:// or https://host:port.

    Raises SettingsError on anything else."""

    parts = urlsplit(url)
    kinds: dict[str, Callable[..., Server]] = {
        "grpc": GrpcServer,
        "grpcs": GrpcServer,
        "http": HttpServer,
        "https": HttpServer,
    }
    if (
        parts.scheme not in kinds
        or not parts.netloc
        or parts.path.strip("/")
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        raise SettingsError(
            f"{url!r} is no server", "grpc://, grpcs://, http:// or https://, then host:port."
        )
    if trust.pin and not re.fullmatch("[0-9a-f]{64}", trust.pin):
        raise SettingsError(
            "a pin is 64 hexadecimal digits, in small letters",
            "openssl x509 -in server.pem -outform der | sha256sum",
        )
    plain = parts.scheme in ("grpc", "http")
    has_port = ":" in parts.netloc.rpartition("]")[2]
    where = parts.netloc if has_port else f"{parts.netloc}:{80 if plain else 443}"
    named = {"address": "--server", **{name: f"--{name}" for name in vars(trust)}}
    access = Access(
        where, insecure=plain, party="server", also="serving", named=named, **vars(trust)
    )
    return kinds[parts.scheme](access, timeout_s=timeout_s)
