"""Other aggregators from afar: a leaf as its root sees it; one of three as a client that shares
sees it, and as the other two do.
"""

from __future__ import annotations

from dataclasses import replace

from fedrec.federation.leaves import LeafStanding
from fedrec.federation.protocol import AttemptNonce, LedgerGrowth, LedgerHead, Opening, Refusal
from fedrec.federation.wire import refused
from fedrec.privacy.calibration import Plan
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

_ONCE_OF_THREE = Retry(patience_s=0.0, deadline_s=60.0)
"""A peer is asked again at the next tick; its answer waits while it adds shares up."""


class RemoteShareEndpoint(RemoteReportEndpoint):
    """A `ShareEndpoint` over gRPC."""

    def attempt(self, run: str, round: int) -> AttemptNonce:
        """Implements `ShareEndpoint.attempt`."""
        reply = self._unary(methods.GET_ATTEMPT, pb.GetAttemptRequest(run=run, round=round))
        return AttemptNonce(reply.attempt, bytes(reply.nonce), bytes(reply.ticket))


class RemotePeer(Line):
    """A `peers.PeerEndpoint` over gRPC, asked once a call."""

    def __init__(self, access: Access, *, retry: Retry = _ONCE_OF_THREE) -> None:
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


MAX_SUMS_BYTES = 4 * 2**30
"""The largest sums that are taken from a leaf, as of a release."""

_ONCE = Retry(patience_s=0.0, deadline_s=5.0)
"""A leaf is asked again at the next tick."""
_SUMS_S = 300.0


class RemoteLeaf(Line):
    """A `leaves.LeafEndpoint` over gRPC, asked once a call."""

    def __init__(self, access: Access, *, retry: Retry = _ONCE) -> None:
        super().__init__(access, "aggregator", retry)
        self._sums = Line(
            access, "aggregator", replace(retry, deadline_s=max(retry.deadline_s, _SUMS_S))
        )

    def hang_up(self) -> None:
        """Ends both connections."""
        super().hang_up()
        self._sums.hang_up()

    def visit(
        self,
        since: LedgerHead,
        growth: LedgerGrowth,
        *,
        run: str = "",
        round: int = 0,
        ended: bool = False,
    ) -> LeafStanding:
        """Implements `LeafEndpoint.visit`."""
        grown = methods.growth_message(growth)
        about = pb.VisitLeafRequest(run=run, round=round, ended=ended)
        request = pb.VisitLeafRequest(
            since_number=since.number, since_head=since.head, growth=grown
        )
        request.MergeFrom(about)
        return methods.read_leaf(self._unary(methods.VISIT_LEAF, request))

    def introduced(self) -> tuple[LeafStanding, float, str]:
        """Its standing, its clock (seconds since 1970) and its release of fedrec, without telling
        it anything. Raises as `visit`."""
        nothing = methods.growth_message(LedgerGrowth(LedgerHead()))
        reply = self._unary(methods.VISIT_LEAF, pb.VisitLeafRequest(growth=nothing))
        return methods.read_leaf(reply), float(reply.time_s), str(reply.version)

    def open(self, opening: Opening, plan: Plan) -> LeafStanding:
        """Implements `LeafEndpoint.open`."""
        request = pb.OpenLeafRequest(
            opening=pb.OpenRoundRequest(**vars(opening)), plan=methods.plan_bytes(plan)
        )
        return methods.read_leaf(self._unary(methods.OPEN_LEAF, request))

    def freeze(self, run: str, round: int, *, digest: str, attempt: int, epoch: str) -> bytes:
        """Implements `LeafEndpoint.freeze`, its length bounded and its hash checked."""
        request = pb.FreezeLeafRequest(
            run=run, round=round, digest=digest, attempt=attempt, epoch=epoch
        )
        return self._sums._stream(methods.FREEZE_LEAF, request, most=MAX_SUMS_BYTES)
