"""Refusals of requests: stable codes, the same over gRPC and HTTP.

No words of a refusal repeat what was sent.

Rate limiter for one peer: requests in progress, and requests a second (a token bucket).

Used on the event loop alone, so there is no lock. A peer is an address: who asks is not known here,
and is not to be.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Self

from fedrec.errors import RefusedError
from fedrec.operations.connections import here
from fedrec_server.serving.settings import LimitsTable

PUSHBACK_KEY = "grpc-retry-pushback-ms"
NEWEST_KEY = "fedrec-newest"
CODE_KEY = "fedrec-code"
REMEDY_KEY = "fedrec-remedy-bin"
"""Trailing metadata of gRPC; the newest version comes with `WRONG_VERSION`, over HTTP as `newest`
in the body."""
_MOST_KNOWN = 65_536
"""Peers remembered; beyond them those with a full bucket and nothing in progress are forgotten,
which changes nothing for them."""


class Code(StrEnum):
    """In the body of an HTTP error, and in the trailing metadata `fedrec-code` of gRPC."""

    WRONG_VERSION = "wrong-version"
    WRONG_LENGTH = "wrong-length"
    NOT_FINITE = "not-finite"
    K_OUT_OF_RANGE = "k-out-of-range"
    UNKNOWN_CATEGORY = "unknown-category"
    MALFORMED = "malformed"
    NOT_FOUND = "not-found"
    TOO_LARGE = "too-large"
    TOO_SLOW = "too-slow"
    BUSY = "busy"
    DRAINING = "draining"
    FAILED = "failed"


HTTP_STATUS = {
    Code.WRONG_VERSION: 409,
    Code.WRONG_LENGTH: 422,
    Code.NOT_FINITE: 422,
    Code.K_OUT_OF_RANGE: 422,
    Code.UNKNOWN_CATEGORY: 422,
    Code.MALFORMED: 400,
    Code.NOT_FOUND: 404,
    Code.TOO_LARGE: 413,
    Code.TOO_SLOW: 408,
    Code.BUSY: 429,
    Code.DRAINING: 503,
    Code.FAILED: 500,
}

RETRY_AFTER_S = {Code.BUSY: 1, Code.DRAINING: 5}
"""When to come back; over HTTP in `Retry-After`, over gRPC as gRPC's own pushback."""


def refused(code: Code, cause: str, remedy: str) -> RefusedError:
    """The error to raise."""
    return RefusedError(code.value, cause, remedy)


def busy(cause: str) -> RefusedError:
    """The caller may come back."""
    return refused(Code.BUSY, cause, "Send it again in a moment.")


def too_large(most: int) -> RefusedError:
    """A body that is not read to its end."""
    return refused(
        Code.TOO_LARGE, f"a request has at most {most} bytes", "Send the coefficients of one query."
    )


def too_slow() -> RefusedError:
    """A body that does not come."""
    return refused(Code.TOO_SLOW, "the request did not arrive in time", "Send it again, whole.")


def malformed(cause: str) -> RefusedError:
    """What cannot be read."""
    return refused(
        Code.MALFORMED, cause, "Send what the schema says: /openapi.json, or serving.proto."
    )


def draining() -> RefusedError:
    """The process is about to end."""
    return refused(
        Code.DRAINING,
        "this server is stopping",
        "Ask another one, or this one again when it is back.",
    )


def failed(failure: BaseException) -> RefusedError:
    """A fault of the server's own: its words may quote what was sent, so only its type is told."""
    return refused(
        Code.FAILED,
        f"the server failed ({type(failure).__name__})",
        "Its log has the place; the request may be sent again.",
    )


class _Peer:
    __slots__ = ("running", "seen_s", "tokens")

    def __init__(self, tokens: float, now_s: float) -> None:
        self.running = 0
        self.tokens = tokens
        self.seen_s = now_s


class Peers:
    """All peers. `clock` in seconds."""

    def __init__(self, bounds: LimitsTable, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._bounds = bounds
        self._clock = clock
        self._burst = max(1.0, 2.0 * bounds.per_second_per_peer)
        self._known: dict[str, _Peer] = {}
        self.downloads = 0

    def enter(self, address: str) -> RequestInProgress:
        """Let a request in; to be used as a context. Raises RefusedError (`BUSY`)."""
        if not self._bounds.loopback and here(address):
            return RequestInProgress(None)
        now_s = self._clock()
        peer = self._known.get(address) or self._new(address, now_s)
        peer.tokens = min(
            self._burst, peer.tokens + (now_s - peer.seen_s) * self._bounds.per_second_per_peer
        )
        peer.seen_s = now_s
        if peer.running >= self._bounds.per_peer:
            raise busy("too many requests of this peer are in progress")
        if peer.tokens < 1.0:
            raise busy("too many requests of this peer a second")
        peer.tokens -= 1.0
        return RequestInProgress(peer)

    def enter_download(self) -> Download:
        """Let a download of a bundle in. Raises RefusedError (`BUSY`)."""
        if self.downloads >= self._bounds.downloads:
            raise busy("too many bundles are being taken")
        return Download(self)

    def _new(self, address: str, now_s: float) -> _Peer:
        if len(self._known) >= _MOST_KNOWN:
            full_s = now_s - self._burst / self._bounds.per_second_per_peer
            self._known = {
                name: peer
                for name, peer in self._known.items()
                if peer.running or peer.seen_s > full_s
            }
            if len(self._known) >= _MOST_KNOWN:
                raise busy("too many peers at once")
        peer = self._known[address] = _Peer(self._burst, now_s)
        return peer


class RequestInProgress:
    """One request in progress."""

    __slots__ = ("_peer",)

    def __init__(self, peer: _Peer | None) -> None:
        self._peer = peer

    def __enter__(self) -> Self:
        if self._peer:
            self._peer.running += 1
        return self

    def __exit__(self, *exception: object) -> None:
        if self._peer:
            self._peer.running -= 1


class Download:
    """One bundle being taken."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def __enter__(self) -> Self:
        self._peers.downloads += 1
        return self

    def __exit__(self, *exception: object) -> None:
        self._peers.downloads -= 1
