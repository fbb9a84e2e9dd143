"""Connection to a serving server by its URL: gRPC or HTTP, with or without TLS."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import urlsplit

from fedrec.errors import SettingsError
from fedrec.transport.channel import Access
from fedrec_client.serving_link import GrpcServer, Server, Trust


def connect(url: str, trust: Trust, *, timeout_s: float = 10.0) -> Server:
    """The server at grpc://, grpcs://, http:// or https://host:port.

    Raises SettingsError on anything else."""
    from fedrec_client.serving_http import HttpServer

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
    where = parts.netloc if _has_port(parts.netloc) else f"{parts.netloc}:{80 if plain else 443}"
    named = {"address": "--server", **{name: f"--{name}" for name in vars(trust)}}
    access = Access(
        where, insecure=plain, party="server", also="serving", named=named, **vars(trust)
    )
    return kinds[parts.scheme](access, timeout_s=timeout_s)


def _has_port(place: str) -> bool:
    return ":" in place.rpartition("]")[2]
