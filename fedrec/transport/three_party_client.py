"""One of three aggregators from afar: as a client that shares sees it, and as the other two do."""

from __future__ import annotations

from fedrec.federation.protocol import AttemptNonce, Refusal
from fedrec.federation.wire import refused
from fedrec.sharing.protocol import Standing
from fedrec.sharing.shares import SEED_BYTES
from fedrec.transport.aggregator_api import aggregator_pb2 as pb
from fedrec.transport.aggregator_api import methods
from fedrec.transport.aggregator_client import Line, RemoteReportEndpoint, Retry
from fedrec.transport.channel import Access

MAX_LIST_BYTES = 2**30
"""The longest list of users that is taken from a peer: eight million users."""

MAX_OPENINGS_BYTES = 2**31
"""The longest openings that are taken from a peer: five million users."""

MAX_EXPLICIT_BYTES = 2**26
"""The longest piece of explicit shares that is taken from a peer."""

_ONCE = Retry(patience_s=0.0, deadline_s=60.0)
"""A peer is asked again at the next tick; its answer waits while it adds shares up."""


class RemoteShareEndpoint(RemoteReportEndpoint):
    """A `ShareEndpoint` over gRPC."""

    def attempt(self, run: str, round: int) -> AttemptNonce:
        """Implements `ShareEndpoint.attempt`."""
        reply = self._unary(methods.GET_ATTEMPT, pb.GetAttemptRequest(run=run, round=round))
        return AttemptNonce(reply.attempt, bytes(reply.nonce), bytes(reply.ticket))


class RemotePeer(Line):
    """A `peers.PeerEndpoint` over gRPC, asked once a call."""

    def __init__(self, access: Access, *, retry: Retry = _ONCE) -> None:
        super().__init__(access, "aggregator", retry)

    def standing(self, run: str, round: int) -> tuple[Standing, bool]:
        """Implements `PeerEndpoint.standing`. Raises UnreachableError, RefusedError."""
        return methods.read_standing(
            self._unary(methods.GET_STANDING, pb.GetStandingRequest(run=run, round=round))
        )

    def clock_s(self) -> float:
        """The peer's clock, seconds since 1970. Raises as `standing`."""
        return float(self._unary(methods.GET_STANDING, pb.GetStandingRequest(run="doctor")).time_s)

    def held(self, run: str, round: int, attempt: int) -> bytes:
        """Implements `PeerEndpoint.held`, its length bounded. Raises as `standing`."""
        request = pb.GetHeldRequest(run=run, round=round, attempt=attempt)
        return self._stream(methods.GET_HELD, request, most=MAX_LIST_BYTES)

    def key(self, run: str, round: int, attempt: int) -> bytes:
        """Implements `PeerEndpoint.key`.

        Raises as `standing`, and RefusedError (`MALFORMED`) where it is none."""
        key = bytes(
            self._unary(
                methods.GET_KEY, pb.GetKeyRequest(run=run, round=round, attempt=attempt)
            ).key
        )
        if len(key) != SEED_BYTES:
            raise refused(
                Refusal.MALFORMED,
                "the peer's masking key cannot be read",
                "Use the same version of fedrec everywhere.",
            )
        return key

    def explicit(self, run: str, round: int, attempt: int, first: int, last: int) -> bytes:
        """Implements `PeerEndpoint.explicit`, its length bounded. Raises as `standing`."""
        request = pb.GetExplicitRequest(
            run=run, round=round, attempt=attempt, first=first, last=last
        )
        return self._stream(methods.GET_EXPLICIT, request, most=MAX_EXPLICIT_BYTES)

    def openings(self, run: str, round: int, attempt: int) -> bytes:
        """Implements `PeerEndpoint.openings`, its length bounded. Raises as `standing`."""
        request = pb.GetHeldRequest(run=run, round=round, attempt=attempt)
        return self._stream(methods.GET_OPENINGS, request, most=MAX_OPENINGS_BYTES)
