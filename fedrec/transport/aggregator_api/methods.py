"""The calls of the service by name, with the bounds both ends share, and the seam's messages as the
service's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from google.protobuf.message import Message

from fedrec.errors import PrivacyError
from fedrec.federation.protocol import (
    Budget,
    LedgerGrowth,
    LedgerHead,
    Phase,
    Refusal,
    RoundStatus,
    refused,
)
from fedrec.transport.aggregator_api import aggregator_pb2 as pb

if TYPE_CHECKING:  # it brings scipy, which a client at rest does without
    from fedrec.privacy.calibration import Plan
    from fedrec.sharing.protocol import Standing

FRAME_BYTES = 256 * 2**10
"""Data in one frame of a report or a release."""

MESSAGE_BYTES = 2**20 + 2**16
"""The largest message either end takes: a question's header of a mebibyte and what stands beside
it. gRPC refuses more unread."""

TOKENS_PER_MESSAGE = 16_384
"""Pseudonyms in one enrolment message."""

CODE_KEY = "fedrec-code"
REMEDY_KEY = "fedrec-remedy-bin"
"""Trailing metadata of a refusal."""

FAILED = "failed"
"""The code of a fault of the aggregator's own, which no refusal is."""
SERVICE = pb.DESCRIPTOR.services_by_name["Aggregator"].full_name


@dataclass(frozen=True)
class RpcMethod:
    """One call: who may make it, and what goes in and out."""

    name: str
    role: Literal["client", "server", "aggregator", "either"]
    request: type[Message]
    reply: type[Message]

    @property
    def path(self) -> str:
        """Its name on the wire."""
        return f"/{SERVICE}/{self.name}"


GET_GROWTH = RpcMethod("GetGrowth", "either", pb.GetGrowthRequest, pb.GetGrowthReply)
ENROLL = RpcMethod("Enroll", "client", pb.EnrollRequest, pb.EnrollReply)
FORGET = RpcMethod("Forget", "client", pb.ForgetRequest, pb.GetStatementReply)
REPORT = RpcMethod("Report", "client", pb.ReportFrame, pb.ReportReply)
ENROLLED = RpcMethod("Enrolled", "server", pb.EnrolledRequest, pb.EnrolledReply)
GET_BUDGET = RpcMethod("GetBudget", "server", pb.GetBudgetRequest, pb.GetBudgetReply)
GET_STATEMENT = RpcMethod("GetStatement", "server", pb.GetStatementRequest, pb.GetStatementReply)
OPEN_RUN = RpcMethod("OpenRun", "server", pb.OpenRunRequest, pb.OpenRunReply)
OPEN_ROUND = RpcMethod("OpenRound", "server", pb.OpenRoundRequest, pb.RoundStatus)
GET_ROUND = RpcMethod("GetRound", "server", pb.GetRoundRequest, pb.RoundStatus)
CLOSE_ROUND = RpcMethod("CloseRound", "server", pb.CloseRoundRequest, pb.RoundStatus)
GET_RELEASE = RpcMethod("GetRelease", "server", pb.GetReleaseRequest, pb.ReleaseFrame)
GET_ATTEMPT = RpcMethod("GetAttempt", "client", pb.GetAttemptRequest, pb.GetAttemptReply)
GET_STANDING = RpcMethod("GetStanding", "aggregator", pb.GetStandingRequest, pb.GetStandingReply)
GET_HELD = RpcMethod("GetHeld", "aggregator", pb.GetHeldRequest, pb.ReleaseFrame)
GET_EXPLICIT = RpcMethod("GetExplicit", "aggregator", pb.GetExplicitRequest, pb.ReleaseFrame)
GET_OPENINGS = RpcMethod("GetOpenings", "aggregator", pb.GetHeldRequest, pb.ReleaseFrame)
GET_KEY = RpcMethod("GetKey", "aggregator", pb.GetKeyRequest, pb.GetKeyReply)


def growth_message(growth: LedgerGrowth) -> pb.GetGrowthReply:
    """A ledger's growth for the wire."""
    entries = [bytes.fromhex(entry) for entry in growth.entries_sha256]
    return pb.GetGrowthReply(
        number=growth.head.number, head=growth.head.head, entries_sha256=entries, more=growth.more
    )


def read_growth(message: pb.GetGrowthReply) -> LedgerGrowth:
    """A ledger's growth from the wire; whether it is true is the reader's to see."""
    entries = tuple(entry.hex() for entry in message.entries_sha256)
    return LedgerGrowth(LedgerHead(message.number, message.head), entries, message.more)


def read_budget(message: pb.GetBudgetReply) -> Budget:
    """A budget from the wire. Raises RefusedError on a word or a number that is none."""
    plain = {
        field.name: getattr(message, field.name) for field in pb.GetBudgetReply.DESCRIPTOR.fields
    }
    if message.noise not in ("system", "seeded") or not all(
        plain[name] >= 0 for name in plain if name not in ("noise", "unit")
    ):
        raise refused(
            Refusal.MALFORMED,
            "the aggregator's budget cannot be read",
            "Use the same version of fedrec everywhere.",
        )
    return Budget(**plain)


def status_message(status: RoundStatus) -> pb.RoundStatus:
    """A round's status for the wire."""
    return pb.RoundStatus(
        **{**vars(status), "phase": status.phase.value, "rejected": dict(status.rejected)}
    )


def read_status(message: pb.RoundStatus) -> RoundStatus:
    """A round's status from the wire.

    Raises RefusedError on a phase that this version does not know."""
    try:
        phase = Phase(message.phase)
    except ValueError:
        raise refused(
            Refusal.MALFORMED,
            f"unknown phase {message.phase!r}",
            "Use the same version of fedrec everywhere.",
        ) from None
    plain = {field.name: getattr(message, field.name) for field in pb.RoundStatus.DESCRIPTOR.fields}
    return RoundStatus(**{**plain, "phase": phase, "rejected": dict(message.rejected)})


def standing_message(standing: Standing, *, time_s: int) -> pb.GetStandingReply:
    """An aggregator's standing and clock for a peer; the list of whom it holds travels by
    itself."""
    plain = {**vars(standing), "has_held": standing.held is not None, "time_s": time_s}
    del plain["held"], plain["coin"]
    plain["coin_own"], plain["coin_following"] = standing.coin or (b"", b"")
    return pb.GetStandingReply(**plain)


def read_standing(message: pb.GetStandingReply) -> tuple[Standing, bool]:
    """A peer's standing, and whether it has a list.

    Raises RefusedError where a nonce, ticket or hash has another length."""
    from fedrec.sharing.protocol import Standing

    words = {
        name: getattr(message, name)
        for name in ("nonce", "ticket", "agreed", "opened", "accepted", "ready")
    }
    coin = bytes(message.coin_own), bytes(message.coin_following)
    if any(len(word) not in {0, 32} for word in (*words.values(), *coin)) or len(coin[0]) != len(
        coin[1]
    ):
        raise refused(
            Refusal.MALFORMED,
            "the peer's state of the round cannot be read",
            "Use the same version of fedrec everywhere.",
        )
    return Standing(
        message.attempt, coin=coin if coin[0] else None, published=message.published, **words
    ), message.has_held


def plan_bytes(plan: Plan) -> bytes:
    """A plan as JSON; `Plan.of` reads it back."""
    return json.dumps(plan.content(), sort_keys=True).encode()


def read_plan(content: bytes) -> Plan:
    """Raises RefusedError where it is not JSON, or no plan that is true."""
    from fedrec.privacy.calibration import Plan

    try:
        return Plan.of(json.loads(content))
    except (ValueError, TypeError, RecursionError):
        raise refused(Refusal.WRONG_PLAN, "the plan is not JSON") from None
    except PrivacyError as failure:
        raise refused(Refusal.WRONG_PLAN, failure.cause, failure.remedy) from None
