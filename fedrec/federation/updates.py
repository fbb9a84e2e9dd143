"""Bounded vectors for a secure sum with central noise: model updates and gradients, by the same rules as item statistics.

An update of `width` numbers is cut into dense linear blocks, so that an aggregator needs nothing new to check, clip, add and
noise it. Each block of a report is block floating point: the user's integer coefficient c is the smallest that keeps
the block's largest number within 15 bits, and the vector holds the rest. A number is then off by at most 1/32767 of
the largest of its block plus 2^-28 of the radius, towards zero, whether all numbers are alike or one is all that counts. A fixed
grid of 15 bits over the radius would round a million alike numbers to little or nothing.

Guarantee (user, add/remove). One user's report has joint L2 norm at most `ReleaseSpec.radius` over all blocks, so that
the noised sum is mu-GDP with the planned mu (`fedrec.federation.releases`, proof of the noise in `fedrec.privacy.gaussian`).

Proof. Let h^2 = 1 + 0.1^2 where users are counted, else h = 1. Clipping leaves a norm of at most radius / h (1 - 1e-12); cutting
towards zero shrinks every number, up to the rounding of one division, 2^-52, which the 1e-12 covers; the user's entry in
the count is at most 0.1 radius / h. These are orthogonal parts of one vector of norm at most radius. Removing the user
removes exactly this vector from the sum, whatever the others sent. All that follows a release is post-processing.

Clipping is of the whole update at once (flat: McMahan, Ramage, Talwar, Zhang 2018, Sec. 2.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.federation.messages import VECTOR_BITS, BlockReports, BlockSpec, Release, ReleaseSpec, Reports
from fedrec.federation.reports import block
from fedrec.numerics import segments

BLOCK_NUMBERS = 2**16
"""Numbers in a block: exact sums keep 32 partial sums of a dense block, here 16 MiB however long the update is."""
MOST_BLOCKS = 63
"""Blocks of an update; a question's header takes 64 a release, and the count is one. Longer updates get longer blocks."""
COUNT_SHARE = 0.1
"""A counted user's entry in units of the update's radius: counting makes the noise half a percent larger."""

_SLACK = 1e-12
_LARGEST = 2**VECTOR_BITS - 1


def update_release(name: str, width: int, *, radius: float = 1.0, counted: bool = False) -> ReleaseSpec:
    """What to ask for: the sum of every user's update (width,), clipped to norm `radius`, and with `counted` how many they were.

    The count is noised in the same release, at the price that the joint radius is sqrt(1.01) `radius`.
    Raises ValueError on a width or a radius that is not positive.
    """
    if width < 1 or not 0 < radius < math.inf:
        raise ValueError(f"an update needs a width and a radius above zero, found {width!r} and {radius!r}")
    length = max(BLOCK_NUMBERS, math.ceil(width / MOST_BLOCKS))
    blocks = [
        block(f"{name}/{i}", "linear", rows=1, width=min(length, width - start), radius=radius)
        for i, start in enumerate(range(0, width, length))
    ]
    if not counted:
        return ReleaseSpec(name, tuple(blocks), radius)
    blocks.append(block(_count(name), "linear", rows=1, width=1, radius=COUNT_SHARE * radius))
    return ReleaseSpec(name, tuple(blocks), radius * math.hypot(1, COUNT_SHARE))


def bounded_updates(updates: npt.NDArray[np.floating], release: ReleaseSpec) -> Reports:
    """Reports of `updates` (num_users, width), float32 or float64: longer rows clipped to the radius, shorter ones kept.

    A user's report depends on that user's row alone; zeros are counted as a user too. Raises ValueError where the width is not the
    release's, or a number is not finite.
    """
    specs, num_users = _update_blocks(release), len(updates)
    if updates.shape != (num_users, sum(spec.width for spec in specs)):
        raise ValueError(f"release {release.name!r} takes updates of {sum(s.width for s in specs)} numbers, found {updates.shape}")
    peaks = _peaks(updates)
    reach = np.minimum(peaks, _update_radius(release) * (1 - _SLACK) / _lengths(updates, peaks, specs))
    parts = [_floating(_over_peak(updates[:, columns], peaks) * reach[:, None], spec) for spec, columns in _columns(specs)]
    if _is_counted(release):
        one = np.full((num_users, 1), round(1 / release.blocks[-1].vector_step), np.int32)
        parts.append(BlockReports(np.full(num_users, _count_steps(release), np.int32), one))
    return Reports(np.zeros(num_users + 1, np.int64), np.zeros(0, np.int32), tuple(parts))


def mean_update(answer: Release, release: ReleaseSpec, *, users: float) -> Float64s:
    """(width,) noised sum over a number of users, a public one or `noised_count`, but never over less than one."""
    total = np.concatenate([answer.values[spec.name][0] for spec in _update_blocks(release)])
    return np.asarray(total / max(users, 1.0), np.float64)


def noised_count(answer: Release, release: ReleaseSpec) -> float:
    """How many users took part, with its noise; may be negative. Raises ValueError where the release does not count."""
    if not _is_counted(release):
        raise ValueError(f"release {release.name!r} does not count its users")
    return float(answer.values[_count(release.name)][0, 0]) / (_count_steps(release) * release.blocks[-1].coefficient_step)


def _count(name: str) -> str:
    return f"{name}/users"


def _is_counted(release: ReleaseSpec) -> bool:
    return release.blocks[-1].name == _count(release.name)


def _update_blocks(release: ReleaseSpec) -> tuple[BlockSpec, ...]:
    return release.blocks[:-1] if _is_counted(release) else release.blocks


def _update_radius(release: ReleaseSpec) -> float:
    return release.radius / math.hypot(1, COUNT_SHARE) if _is_counted(release) else release.radius


def _count_steps(release: ReleaseSpec) -> int:
    return int(COUNT_SHARE * _update_radius(release) / release.blocks[-1].coefficient_step)


def _columns(specs: Sequence[BlockSpec]) -> list[tuple[BlockSpec, slice]]:
    ends = np.cumsum([spec.width for spec in specs]).tolist()
    return [(spec, slice(end - spec.width, end)) for spec, end in zip(specs, ends, strict=True)]


def _peaks(updates: npt.NDArray[np.floating]) -> Float64s:
    peaks = np.asarray(np.maximum(updates.max(axis=1), -updates.min(axis=1)), np.float64)
    if not np.isfinite(peaks).all():
        raise ValueError("updates must be finite numbers")
    return peaks


def _lengths(updates: npt.NDArray[np.floating], peaks: Float64s, specs: Sequence[BlockSpec]) -> Float64s:
    """(num_users,) norm of every row over its peak, at least 1: the squares of whatever is finite stay finite."""
    squares = np.zeros(len(updates))
    for _, columns in _columns(specs):
        squares += segments.row_squares(_over_peak(updates[:, columns], peaks))
    return np.asarray(np.sqrt(np.maximum(squares, 1.0)), np.float64)


def _over_peak(part: npt.NDArray[np.floating], peaks: Float64s) -> Float64s:
    return np.ascontiguousarray(part, np.float64) / np.where(peaks > 0, peaks, 1.0)[:, None]


def _floating(values: Float64s, spec: BlockSpec) -> BlockReports:
    """The smallest coefficient that keeps the largest number in 15 bits, then every number towards zero on the grid it gives."""
    coefficients = np.ceil(np.abs(values).max(axis=1) / (spec.step * _LARGEST))
    steps = np.maximum(coefficients, 1.0) * spec.step
    vectors = np.clip(np.trunc(values / steps[:, None]), -_LARGEST, _LARGEST)  # the division may round up to one more
    return BlockReports(coefficients.astype(np.int32), vectors.astype(np.int32))
