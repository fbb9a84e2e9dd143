"""Refusals of requests: stable codes, the same over gRPC and HTTP.

No words of a refusal repeat what was sent."""

from __future__ import annotations

from enum import StrEnum

from fedrec.errors import RefusedError


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

PUSHBACK_KEY = "grpc-retry-pushback-ms"
NEWEST_KEY = "fedrec-newest"
CODE_KEY = "fedrec-code"
REMEDY_KEY = "fedrec-remedy-bin"
"""Trailing metadata of gRPC; the newest version comes with `WRONG_VERSION`, over HTTP as `newest`
in the body."""


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
