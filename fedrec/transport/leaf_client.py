"""A leaf aggregator from afar, as its root sees it."""

from __future__ import annotations

from dataclasses import replace

from fedrec.federation.leaves import LeafStanding
from fedrec.federation.protocol import LedgerGrowth, LedgerHead, Opening
from fedrec.privacy.calibration import Plan
from fedrec.transport.aggregator_api import aggregator_pb2 as pb
from fedrec.transport.aggregator_api import methods
from fedrec.transport.aggregator_client import Line, Retry
from fedrec.transport.channel import Access

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
