"""The way to a serving server: the same three questions over gRPC or HTTP, and a journal of every
byte that left.

    newest()             which model is the newest
    bundle(version)      its public bundle
    recommend(query)     rows and scores for noised coefficients

All of them may be asked again. A refusal keeps the server's code: `wrong-version` where a model was
retired.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import grpc
import numpy as np
import numpy.typing as npt

from fedrec.errors import ProtocolError, RefusedError, UnreachableError
from fedrec.federation.round_messages import spoken
from fedrec.operations.addresses import proxy_words
from fedrec.transport.aggregator_api.methods import CODE_KEY, REMEDY_KEY
from fedrec.transport.channel import Access, open_channel
from fedrec.transport.serving_api import serving_pb2 as pb

R = TypeVar("R")

WRONG_VERSION = "wrong-version"
BUSY = "busy"
DRAINING = "draining"
NEWEST = "0" * 16
"""Instead of a version: whichever is the newest."""

_SERVICE = pb.DESCRIPTOR.services_by_name["Recommender"].full_name
_ATTEMPTS = 3
_PAUSE_S = 0.2
"""A person waits: .2 and .4 seconds pass, then she is told."""


@dataclass(frozen=True)
class ServingQuery:
    """What leaves, and nothing else: sent (B,) float32; k; names of public categories, none for
    all, and their bits."""

    version: str
    sent: npt.NDArray[np.float32]
    k: int
    categories: tuple[str, ...] = ()
    category_bits: int = 0


@dataclass(frozen=True)
class ServingReply:
    """items: rows of the bundle, best first; scores of the same length."""

    version: str
    items: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Left:
    """One message as it left, before TLS: what was called, headers of the application, and the
    body."""

    what: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Server(Protocol):
    """A serving server from afar. `journal`: what left so far."""

    journal: list[Left]

    def newest(self) -> str:
        """Version of the newest model."""

    def bundle(self, version: str) -> Iterator[bytes]:
        """The bytes of a bundle."""

    def recommend(self, query: ServingQuery) -> ServingReply:
        """Raises RefusedError with the server's code, UnreachableError where it did not answer."""

    def close(self) -> None:
        """End the connection."""


@dataclass(frozen=True)
class Trust:
    """How the server is known, and how it knows this caller: files, empty for none; `pin`: SHA-256
    of its certificate or public key."""

    ca: str = ""
    pin: str = ""
    certificate: str = ""
    key: str = ""


@dataclass
class GrpcServer:
    """Over gRPC; the channel is opened when it is first needed."""

    access: Access
    timeout_s: float = 10.0
    journal: list[Left] = field(default_factory=list)
    _channel: grpc.Channel | None = None

    def newest(self) -> str:
        """Implements `Server.newest`."""
        return patiently(lambda: next(self._pieces(NEWEST))[0])

    def bundle(self, version: str) -> Iterator[bytes]:
        """Implements `Server.bundle`."""
        yield from (data for _, data in self._pieces(version))

    def recommend(self, query: ServingQuery) -> ServingReply:
        """Implements `Server.recommend`."""
        request = pb.RecommendRequest(
            version=int(query.version, 16),
            coefficients=query.sent.tolist(),
            k=query.k,
            categories=query.category_bits,
        )
        return patiently(lambda: self._recommend(request))

    def close(self) -> None:
        """Implements `Server.close`."""
        if self._channel is not None:
            self._channel.close()

    def _recommend(self, request: pb.RecommendRequest) -> ServingReply:
        path = f"/{_SERVICE}/Recommend"
        body = request.SerializeToString()
        call = self._open().unary_unary(path, bytes, pb.RecommendReply.FromString)
        self.journal.append(Left(path, (), body))
        try:
            reply = call(body, timeout=self.timeout_s)
        except grpc.RpcError as error:
            raise _meaning(error, self.access.address) from None
        return ServingReply(
            f"{reply.version:016x}",
            np.array(reply.items, np.int64),
            np.array(reply.scores, np.float32),
        )

    def _pieces(self, version: str) -> Iterator[tuple[str, bytes]]:
        path = f"/{_SERVICE}/GetModel"
        body = pb.GetModelRequest(version=int(version, 16)).SerializeToString()
        call = self._open().unary_stream(path, bytes, pb.ModelPiece.FromString)
        self.journal.append(Left(path, (), body))
        pieces = call(body, timeout=60 * self.timeout_s)
        try:
            for piece in pieces:
                spoken(piece.protocol or None, who=f"the server at {self.access.address}")
                yield f"{piece.version:016x}", piece.data
        except grpc.RpcError as error:
            raise _meaning(error, self.access.address) from None
        finally:
            pieces.cancel()

    def _open(self) -> Any:
        if self._channel is None:
            self._channel = open_channel(self.access, timeout_s=self.timeout_s)
        return self._channel


def patiently(ask: Callable[[], R]) -> R:
    """Asked again where the answer was lost, or where the server is busy."""
    for attempt in range(_ATTEMPTS):
        try:
            return ask()
        except ProtocolError as failure:
            again = isinstance(failure, UnreachableError) or getattr(failure, "code", "") == BUSY
            if not again or attempt + 1 == _ATTEMPTS:
                raise
            time.sleep(_PAUSE_S * 2.0**attempt)
    raise AssertionError


def told(code: str, cause: str, remedy: str) -> ProtocolError:
    """A refusal by the server's own words, cut to what fits a line, without what a terminal would
    obey."""
    cause, remedy = (
        "".join(letter for letter in text if letter.isprintable()) for text in (cause, remedy)
    )
    if code in (BUSY, DRAINING):
        return RefusedError(
            code,
            f"the server turned the question away: {cause[:300]}",
            "Ask again later: it costs nothing.",
        )
    return RefusedError(
        code,
        f"the server refuses: {cause[:300]}",
        remedy[:300] or "Use the same version of fedrec on both sides.",
    )


def lost(address: str, why: str) -> UnreachableError:
    """No answer. What was drawn is kept."""
    return UnreachableError(
        f"no answer from the server at {address} ({why[:300]})",
        "Check that it runs and ask again: the same question costs nothing." + proxy_words(address),
    )


def _meaning(error: Any, address: str) -> ProtocolError:
    trailing = dict(error.trailing_metadata() or ())
    status = error.code()
    details = str(error.details())
    code = trailing.get(CODE_KEY, "")
    remedy = trailing.get(REMEDY_KEY, b"")
    if code:
        return told(
            str(code),
            details,
            remedy.decode("utf-8", "replace") if isinstance(remedy, bytes) else str(remedy),
        )
    if status in (
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
    ):
        return ProtocolError(
            f"the server at {address} answers {status.name}: {details[:300]}",
            "Check that it is a serving server.",
        )
    return lost(address, f"{status.name}: {details}")
