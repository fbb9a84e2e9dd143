"""One batch of reports, from bytes to numbers that may be added: nothing of it is trusted, and a
bad user spoils no other's report.

A batch whose bytes are not a batch for this question is turned away whole. Within a sound one,
users who are not the sender's are left out, and a report above the radius of a release is scaled
down to it, as an honest client would have done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Bools
from fedrec.federation.messages import BlockReports, BlockSpec, ReleaseSpec, Reports
from fedrec.federation.protocol import TOKEN_BYTES, Refusal
from fedrec.federation.report_batches import Batch, select_users, unpack_reports
from fedrec.federation.reports import squared_norms
from fedrec.federation.wire import refused
from fedrec_aggregator.limits import Limits

_SLACK = 1e-6
"""A report is scaled to (1 - slack) times its radius.

The norm of n numbers in float64 is right to n 2^-53, below the slack for any n."""


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
    token."""
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
    parts, blocks = iter(reports.blocks), list[BlockReports]()
    for release, factor in zip(releases, factors, strict=True):
        blocks += [_scaled(next(parts), spec, factor, reports) for spec in release.blocks]
    return Reports(reports.user_ptr, reports.items, tuple(blocks)), clipped


def _scaled(
    part: BlockReports, spec: BlockSpec, factor: npt.NDArray[np.float64], reports: Reports
) -> BlockReports:
    per_coefficient = factor if spec.rows == 1 else np.repeat(factor, np.diff(reports.user_ptr))
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
