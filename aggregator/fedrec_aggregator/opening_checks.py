"""Checks by the aggregator, which trusts nothing that it is sent: a run's name and plan and a
round's question before anything is kept, and every batch of reports before it is added.

Limits that the operator of an aggregator sets: every bound that keeps one peer from holding
memory, time or the others' privacy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Bools
from fedrec.errors import PrivacyError
from fedrec.federation.messages import BlockReports, BlockSpec, Question, ReleaseSpec, Reports
from fedrec.federation.protocol import TOKEN_BYTES, Opening, Refusal
from fedrec.federation.releases import noise_stds, require_week
from fedrec.federation.report_batches import (
    MAX_EVENTS_PER_USER,
    Batch,
    select_users,
    unpack_reports,
)
from fedrec.federation.reports import squared_norms
from fedrec.federation.wire import question_digest, read_header, refused, report_digest
from fedrec.privacy.calibration import Aggregation, Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec_aggregator.ledger import RUN, ReleaseLedger

_SLACK = 1e-6
"""A report is scaled to (1 - slack) times its radius.

The norm of n numbers in float64 is right to n 2^-53, below the slack for any n."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one aggregator. Raises ValueError where one is not positive.

    min_cohort: users that must have reported before anything is released. max_users_per_sender:
    users one client may enrol. max_users_per_batch, max_events_per_user, max_batch_bytes: of one
    batch; checking it takes about ten times its bytes for as long as it is checked. max_round_s:
    how long reports are taken at most, whatever the server asks for. max_accumulator_bytes: sums of
    all open rounds together; releasing a round takes about five times its sums for a moment.
    max_shares_bytes: of one of three aggregators, shares of all open rounds together, until all
    three agree on the users; on disk. allow_not_established: whether to serve plans that only
    reproduce a paper (`Guarantee.established` is False).
    """

    min_cohort: int = 100
    max_users_per_sender: int = 100_000
    max_users_per_batch: int = 4_096
    max_events_per_user: int = MAX_EVENTS_PER_USER
    max_batch_bytes: int = 16 * 2**20
    max_round_s: float = 3_600.0
    max_accumulator_bytes: int = 2**29
    max_shares_bytes: int = 2**34
    allow_not_established: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, bool) and not value > 0:
                raise ValueError(f"{name} must be positive, found {value!r}")


def require_name(run: str) -> None:
    """Raises RefusedError (`MALFORMED`) on a name that could lead out of the folder it names."""
    if not RUN.fullmatch(run):
        raise refused(
            Refusal.MALFORMED,
            (
                "a run is named by 1 to 120 letters, digits, dots, dashes and underscores, "
                "no dot or dash first"
            ),
        )


def require_plan(
    plan: Plan, *, aggregation: Aggregation, limits: Limits, limit: Guarantee | None
) -> None:
    """Raises RefusedError (`WRONG_PLAN`, `BUDGET`) on a plan that is not true, of another
    aggregation, not established where that is not allowed, or without noise where `limit`, which
    holds over all runs, is of privacy."""
    try:
        Plan.of(plan.content())
    except PrivacyError as failure:
        raise refused(Refusal.WRONG_PLAN, failure.cause, failure.remedy) from failure
    if plan.aggregation != aggregation:
        cause = f"the plan's aggregation is {plan.aggregation}, this aggregator's is {aggregation}"
        raise refused(
            Refusal.WRONG_PLAN,
            cause,
            f'Use a plan with privacy.aggregation = "{aggregation}".',
        )
    if not (plan.guarantee.established or limits.allow_not_established):
        raise refused(
            Refusal.WRONG_PLAN,
            f"the plan's guarantee is {plan.guarantee}",
            "Ask the aggregator's operator to allow such plans.",
        )
    if any(math.isinf(planned.mu) for planned in plan.releases) and (
        limit is None or limit.private
    ):
        raise refused(
            Refusal.BUDGET,
            "the plan has releases without noise",
            "Ask the aggregator's operator for an infinite limit.",
        )


def require_room(plan: Plan, ledger: ReleaseLedger) -> None:
    """A run that could not end is not begun; what other runs spend meanwhile is checked again
    round by round. Raises RefusedError (`BUDGET`)."""
    try:
        account = ledger.account(plan.guarantee)
        for planned in plan.releases:
            account = account.add(plan.event(planned.name))
    except PrivacyError as failure:
        raise refused(Refusal.BUDGET, failure.cause, failure.remedy) from failure


def question_of(opening: Opening, plan: Plan) -> Question:
    """The question without its arrays, every number of it checked. plan: of the run.

    Raises RefusedError (`WRONG_QUESTION`, `WRONG_PLAN`, `MALFORMED`, `OUT_OF_RANGE`)."""
    header = read_header(opening.header)
    if (header.run, header.round, question_digest(opening.header)) != (
        opening.run,
        opening.round,
        opening.digest,
    ):
        raise refused(
            Refusal.WRONG_QUESTION, "the opening is not of the question that its header holds"
        )
    if header.plan != plan.digest():
        raise refused(Refusal.WRONG_PLAN, "the question is of another plan than the run")
    report_digest(opening.digest, opening.quorum)  # it is a number of users
    if not (math.isfinite(opening.timeout_s) and opening.timeout_s > 0):
        raise refused(
            Refusal.MALFORMED,
            f"a round takes reports for a positive time, found {opening.timeout_s!r} seconds",
        )
    question = Question(header.round, header.step, {}, header.specs())
    names = [spec.name for spec in question.releases]
    planned = {p.name for p in plan.releases}
    if not planned.issuperset(names):
        raise refused(
            Refusal.WRONG_PLAN, f"the plan has no releases {sorted(set(names) - planned)}"
        )
    try:
        require_week(question, plan)
    except PrivacyError as failure:
        raise refused(Refusal.WRONG_QUESTION, failure.cause, failure.remedy) from None
    try:
        noise_stds(question, plan)
    except (PrivacyError, ValueError) as failure:
        raise refused(
            Refusal.OUT_OF_RANGE,
            f"the noise of round {opening.round} does not fit its grid: {failure}",
        ) from None
    return question


@dataclass(frozen=True)
class CheckedBatch:
    """Reports that may be added once no one else's and no earlier one is among them. clipped:
    (num_users,). turned_away: users, by code."""

    batch: Batch
    clipped: Bools
    turned_away: Mapping[Refusal, int]


def check(
    data: bytes,
    releases: Sequence[ReleaseSpec],
    digest: str,
    limits: Limits,
    *,
    sender: str,
    owners: Mapping[bytes, str],
) -> CheckedBatch:
    """The batch's usable part.

    Raises RefusedError where nothing of it is usable. owners: the sender of every enrolled user, by
    token.

    A batch whose bytes are not a batch for this question is turned away whole. Within a sound one,
    users who are not the sender's are left out, and a report above the radius of a release is
    scaled down to it, as an honest client would have done.
    """
    if len(data) > limits.max_batch_bytes:
        raise refused(
            Refusal.TOO_LARGE,
            f"a batch has at most {limits.max_batch_bytes} bytes, found {len(data)}",
        )
    specs = [block for release in releases for block in release.blocks]
    batch = unpack_reports(
        data,
        specs,
        digest,
        max_users=limits.max_users_per_batch,
        max_events_per_user=limits.max_events_per_user,
    )
    theirs, turned_away = _of_the_sender(batch, sender, owners)
    if not theirs.all():
        batch = select_users(batch, theirs, specs)
    reports, clipped = clip(batch.reports, releases)
    return CheckedBatch(Batch(batch.ids, batch.tokens, reports), clipped, turned_away)


def names(tokens: npt.NDArray[np.uint8]) -> list[bytes]:
    """(n, 16) uint8 as n byte strings."""
    raw = tokens.tobytes()
    return [raw[start : start + TOKEN_BYTES] for start in range(0, len(raw), TOKEN_BYTES)]


def clip(reports: Reports, releases: Sequence[ReleaseSpec]) -> tuple[Reports, Bools]:
    """Reports whose joint norm is at most the radius in every release, and (num_users,) who had to
    be scaled down.

    Only coefficients are scaled: every row of a block is linear in its coefficient. They are cut
    towards zero, which shrinks them further. Reports within their radius keep their bits.
    """
    radii = np.array([release.radius for release in releases])[:, None]
    squares = squared_norms(reports, releases)
    over = squares > radii**2
    clipped = np.asarray(over.any(axis=0))
    if not clipped.any():
        return reports, clipped
    factors = np.where(over, radii * (1 - _SLACK) / np.sqrt(np.where(over, squares, 1.0)), 1.0)
    parts = iter(reports.blocks)
    blocks = list[BlockReports]()
    for release, factor in zip(releases, factors, strict=True):
        blocks += [_scaled(next(parts), spec, factor, reports) for spec in release.blocks]
    return Reports(reports.user_ptr, reports.items, tuple(blocks)), clipped


def _scaled(
    part: BlockReports, spec: BlockSpec, factor: npt.NDArray[np.float64], reports: Reports
) -> BlockReports:
    per_coefficient = factor if spec.rows == 1 else np.repeat(factor, np.diff(reports.user_ptr))
    # towards zero: what is clipped must not become longer
    return BlockReports(
        np.trunc(part.coefficients * per_coefficient).astype(np.int32), part.vectors
    )


def _of_the_sender(
    batch: Batch, sender: str, owners: Mapping[bytes, str]
) -> tuple[Bools, Mapping[Refusal, int]]:
    owned_by = [owners.get(token) for token in names(batch.tokens)]
    codes = Counter(
        Refusal.NOT_ENROLLED if owner is None else Refusal.FORBIDDEN
        for owner in owned_by
        if owner != sender
    )
    return np.array([owner == sender for owner in owned_by], np.bool_), codes
