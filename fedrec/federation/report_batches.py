"""Reports as bytes: one array of integers a block, sizes checked before anything is allocated."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.arrays import UInt8s
from fedrec.federation.messages import (
    COEFFICIENT_BITS,
    VECTOR_BITS,
    BlockReports,
    BlockSpec,
    Reports,
)
from fedrec.federation.protocol import TOKEN_BYTES, Refusal
from fedrec.federation.protocol import refused as refused

_HEADER = struct.Struct("<4s32sII")


_MAGIC = b"FRR1"

MAX_EVENTS_PER_USER = 20_000
"""Rows that one user's report may name, unless an aggregator is set to take more or fewer. A client
hands in nothing longer: how many rows there are may depend on arrays that the server chose, and it
is told how many users were turned away."""

MAX_DEVICE_BYTES = 1 << 20
"""Of one person's report from a light device. A device refuses a question by which a report of any
length could be longer, before it looks at what the person has."""


@dataclass(frozen=True)
class Batch:
    """Reports of some users of one sender, with who and which they are. ids, tokens: (num_users,
    16) uint8."""

    ids: UInt8s
    tokens: UInt8s
    reports: Reports


def batch_bytes(specs: Sequence[BlockSpec], *, users: int, events: int) -> int:
    """The exact length of a batch."""
    coefficients = sum(users if spec.rows == 1 else events for spec in specs)
    numbers = sum(users * spec.folds * spec.width for spec in specs)
    return _HEADER.size + users * (2 * TOKEN_BYTES + 4) + 4 * events + 2 * (coefficients + numbers)


def pack_reports(batch: Batch, digest: str) -> bytes:
    """One byte string; `digest` is `report_digest`'s.

    Raises ValueError on integers that need more than 15 bits and a sign."""
    reports = batch.reports
    columns: list[npt.NDArray[np.generic]] = [
        batch.ids,
        batch.tokens,
        np.diff(reports.user_ptr).astype("<u4"),
        reports.items.astype("<u4"),
    ]
    for block in reports.blocks:
        columns += [
            _short(block.coefficients, COEFFICIENT_BITS),
            _short(block.vectors, VECTOR_BITS),
        ]
    header = _HEADER.pack(_MAGIC, bytes.fromhex(digest), reports.num_users, len(reports.items))
    return b"".join([header, *(column.tobytes() for column in columns)])


def announced_users(data: bytes) -> int:
    """How many users a batch claims to hold, 0 where it has no header: to count what was turned
    away, not to be relied on."""
    return int(_HEADER.unpack_from(data)[2]) if len(data) >= _HEADER.size else 0


def unpack_reports(
    data: bytes,
    specs: Sequence[BlockSpec],
    digest: str,
    *,
    max_users: int,
    max_events_per_user: int,
) -> Batch:
    """The batch, every number of it checked but the norms. Raises RefusedError with the code to
    count it under.

    Checked: magic, question, sizes against the limits and against the length, item ids, bits, and
    that no user names an item twice.
    """
    users, events = _sizes(data, digest, max_users=max_users)
    if len(data) != batch_bytes(specs, users=users, events=events):
        raise refused(
            Refusal.MALFORMED,
            f"a batch of {users} users and {events} events cannot have {len(data)} bytes",
        )
    take = _Reader(data, _HEADER.size)
    ids = take("u1", users * TOKEN_BYTES).reshape(users, TOKEN_BYTES)
    tokens = take("u1", users * TOKEN_BYTES).reshape(users, TOKEN_BYTES)
    lengths = take("<u4", users).astype(np.int64)
    items = take("<u4", events)
    if int(lengths.sum()) != events:
        raise refused(
            Refusal.MALFORMED,
            f"lengths add up to {int(lengths.sum())}, the batch has {events} events",
        )
    if int(lengths.max(initial=0)) > max_events_per_user:
        raise refused(
            Refusal.TOO_LARGE,
            f"a user has {int(lengths.max())} items, at most {max_events_per_user} are taken",
        )
    user_ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    _check_items(items, user_ptr, rows=max((spec.rows for spec in specs), default=1))
    blocks = tuple(_block(take, spec, users=users, events=events) for spec in specs)
    return Batch(ids, tokens, Reports(user_ptr, items.astype(np.int32), blocks))


def select_users(batch: Batch, kept: npt.NDArray[np.bool_], specs: Sequence[BlockSpec]) -> Batch:
    """The batch of the users where `kept` (num_users,) is true."""
    reports = batch.reports
    lengths = np.diff(reports.user_ptr)
    events = np.repeat(kept, lengths)
    user_ptr = np.concatenate([[0], np.cumsum(lengths[kept])]).astype(np.int64)
    blocks = tuple(
        BlockReports(
            part.coefficients[kept if spec.rows == 1 else events],
            part.vectors[np.repeat(kept, spec.folds)],
        )
        for spec, part in zip(specs, reports.blocks, strict=True)
    )
    return Batch(
        batch.ids[kept], batch.tokens[kept], Reports(user_ptr, reports.items[events], blocks)
    )


class _Reader:
    def __init__(self, data: bytes, offset: int) -> None:
        self._data = data
        self._offset = offset

    def __call__(self, dtype: str, count: int) -> npt.NDArray[Any]:
        array = np.frombuffer(self._data, dtype, count, self._offset)
        self._offset += array.nbytes
        return array


def _sizes(data: bytes, digest: str, *, max_users: int) -> tuple[int, int]:
    if len(data) < _HEADER.size:
        raise refused(
            Refusal.MALFORMED, f"a batch has at least {_HEADER.size} bytes, found {len(data)}"
        )
    magic, named, users, events = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise refused(Refusal.MALFORMED, f"a batch starts with {_MAGIC!r}, found {magic!r}")
    if named.hex() != digest:
        raise refused(
            Refusal.WRONG_QUESTION,
            "the batch answers another question, or one of another plan or quorum",
        )
    if users > max_users:
        raise refused(Refusal.TOO_LARGE, f"a batch holds at most {max_users} users, found {users}")
    return users, events


def _check_items(
    items: npt.NDArray[np.uint32], user_ptr: npt.NDArray[np.int64], *, rows: int
) -> None:
    if len(items) and int(items.max()) >= rows:
        raise refused(
            Refusal.UNKNOWN_ITEM, f"item numbers must be below {rows}, found {int(items.max())}"
        )
    if len(items):
        rising = np.diff(items.astype(np.int64)) > 0
        # where the next user begins
        rising[user_ptr[(user_ptr > 0) & (user_ptr < len(items))] - 1] = True
        if not rising.all():
            raise refused(
                Refusal.MALFORMED,
                "the items of a user must rise: one was named twice, or they are out of order",
            )


def _block(take: _Reader, spec: BlockSpec, *, users: int, events: int) -> BlockReports:
    coefficients = take("<i2", users if spec.rows == 1 else events)
    owners = users * spec.folds
    vectors = take("<i2", owners * spec.width).reshape(owners, spec.width)
    for name, values in (("coefficients", coefficients), ("vectors", vectors)):
        if int(values.min(initial=0)) == -(2**15):
            raise refused(
                Refusal.OUT_OF_RANGE, f"block {spec.name!r}: {name} must fit 15 bits and a sign"
            )
    return BlockReports(coefficients.astype(np.int32), vectors.astype(np.int32))


def _short(values: npt.NDArray[np.int32], bits: int) -> npt.NDArray[np.int16]:
    low = int(values.min(initial=0))
    high = int(values.max(initial=0))
    if max(-low, high) >= 2**bits:
        raise ValueError(f"numbers must fit {bits} bits, found {low}..{high}")
    return values.astype("<i2")
