"""Messages between a root aggregator and its leaves: who owns which pseudonyms, where a round is,
and frozen sums.

    root                            leaf                               client
    visit(growth)          ->       keeps the chain's hashes
                                    growth, enroll, report      <-     one bounded report per user
    open(opening, plan)    ->       accumulators of zeros
    freeze(attempt, epoch) ->       takes no more; its sums, the same bytes however often asked

A leaf's sums are of one attempt at one question, and of one `epoch`: a number that a leaf draws
when it starts. A leaf that was started again has another epoch and none of its reports, so that
neither can stand for the other. A leaf draws no noise and charges nothing.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedrec.arrays import Int64s
from fedrec.errors import ProtocolError
from fedrec.federation.messages import BlockSpec, ReleaseSpec
from fedrec.federation.protocol import LedgerGrowth, LedgerHead, Opening

if TYPE_CHECKING:  # it loads SciPy, which a client at rest does without
    from fedrec.privacy.calibration import Plan

_MAGIC = b"FRP1"
_HEAD = struct.Struct("<4sI")
_MOST_HEADER_BYTES = 1 << 16
_MOST_COUNTED = 1 << 53
_SLACK = 1e-9
"""Of the norm of sums, relative: float64's rounding of n squares is below it for any n that
fits."""


@dataclass(frozen=True)
class TokenRange:
    """Pseudonyms whose first two bytes lie between `first` and `last`, both included.

    Raises ValueError where there are none."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last <= 0xFFFF:
            raise ValueError(
                f"a range of pseudonyms goes up, from 0000 to ffff at most, found {self}"
            )

    def __contains__(self, token: bytes) -> bool:
        return self.first <= int.from_bytes(token[:2], "big") <= self.last

    def __str__(self) -> str:
        return f"{self.first:04x}-{self.last:04x}"


def even_ranges(leaves: int) -> tuple[TokenRange, ...]:
    """All pseudonyms in so many ranges of nearly one size."""
    bounds = [0x10000 * i // leaves for i in range(leaves + 1)]
    return tuple(TokenRange(first, end - 1) for first, end in pairwise(bounds))


def require_all_once(ranges: Sequence[TokenRange]) -> None:
    """Raises ValueError unless every pseudonym is of exactly one range: of two leaves, one person
    could be counted twice."""
    expected = 0
    for one in sorted(ranges, key=lambda each: each.first):
        if one.first != expected:
            what = "two leaves own" if one.first < expected else "no leaf owns"
            raise ValueError(
                f"{what} pseudonyms that begin with {min(one.first, expected):04x}: ranges "
                "must follow each other"
            )
        expected = one.last + 1
    if expected != 0x10000:
        raise ValueError(
            f"no leaf owns pseudonyms that begin with {expected:04x}: the last range ends with ffff"
        )


@dataclass(frozen=True)
class LeafStanding:
    """Where a leaf is. epoch: drawn when it started. head: of the root's ledger, as far as the root
    told it.

    attempt, digest, reported, clipped, rejected, bytes_in: of the round that was asked about;
    attempt is 0 where it holds none.
    """

    epoch: str
    range: TokenRange
    enrolled: int
    head: LedgerHead = field(default_factory=LedgerHead)
    attempt: int = 0
    digest: str = ""
    reported: int = 0
    clipped: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    bytes_in: int = 0


class LeafEndpoint(Protocol):
    """A leaf as its root sees it. Every call may be repeated: again is the same as once."""

    def visit(
        self,
        since: LedgerHead,
        growth: LedgerGrowth,
        *,
        run: str = "",
        round: int = 0,
        ended: bool = False,
    ) -> LeafStanding:
        """Tell how the root's ledger grew since a head that the leaf has, and hear where the leaf
        is in a round.

        ended: the round is over, so that the leaf may forget its sums. Raises RefusedError
        (`STALE_LEDGER`), UnreachableError."""

    def open(self, opening: Opening, plan: Plan) -> LeafStanding:
        """Take reports for an attempt at a round; what an open attempt before it at the same
        question holds goes on.

        Raises RefusedError, UnreachableError."""

    def freeze(self, run: str, round: int, *, digest: str, attempt: int, epoch: str) -> bytes:
        """`PartialSums` of the attempt, which takes no more reports from now on. Raises
        RefusedError (`ROUND_UNKNOWN`) where the leaf holds no such attempt, or is of another epoch;
        UnreachableError."""


@dataclass(frozen=True)
class PartialSums:
    """Frozen sums of one leaf, one int64 array (rows, columns) per block, and what they are of.

    ticket, summed: of a leaf of three parties alone (`sharing.root_of_three.ListedRange`), in
    hexadecimal digits; its blocks are terms modulo 2^64.
    """

    leaf: str
    epoch: str
    run: str
    round: int
    digest: str
    quorum: int
    attempt: int
    reported: int
    clipped: int
    bytes_in: int
    rejected: Mapping[str, int]
    blocks: tuple[Int64s, ...] = field(repr=False)
    ticket: str = ""
    summed: str = ""

    def packed(self) -> bytes:
        """FRP1 | u32 length | canonical JSON of all but the sums | the sums, int64, little endian.

        The same sums, the same bytes."""
        told = {name: value for name, value in vars(self).items() if name != "blocks"}
        if not self.ticket:
            del told["ticket"], told["summed"]
        header = json.dumps(told, sort_keys=True, separators=(",", ":")).encode()
        sums = (np.ascontiguousarray(block, "<i8").tobytes() for block in self.blocks)
        return b"".join([_HEAD.pack(_MAGIC, len(header)), header, *sums])


def read_partial(content: bytes, specs: Sequence[BlockSpec]) -> PartialSums:
    """The message, its form checked.

    Raises ProtocolError where it is not what `PartialSums.packed` makes of these blocks."""
    try:
        magic, length = _HEAD.unpack_from(content)
        header = content[_HEAD.size : _HEAD.size + length]
        sums = content[_HEAD.size + length :]
        sizes = [8 * spec.rows * spec.columns for spec in specs]
        if magic != _MAGIC or length > _MOST_HEADER_BYTES or len(sums) != sum(sizes):
            raise ValueError(
                f"{len(content)} bytes that begin with {magic!r}, expected {sum(sizes)} "
                "bytes of sums"
            )
        told = json.loads(header)
        counts = ("round", "quorum", "attempt", "reported", "clipped", "bytes_in")
        numbers = [*(told[name] for name in counts), *dict(told["rejected"]).values()]
        if any(type(number) is not int or not 0 <= number < _MOST_COUNTED for number in numbers):
            raise ValueError("a count is not a whole number below 2^53")
        blocks = list[Int64s]()
        start = 0
        for spec, size in zip(specs, sizes, strict=True):
            block = np.frombuffer(sums[start : start + size], "<i8").reshape(
                spec.rows, spec.columns
            )
            blocks.append(block.astype(np.int64))
            start += size
        return PartialSums(blocks=tuple(blocks), **told)
    except (struct.error, ValueError, TypeError, KeyError, RecursionError) as failure:
        raise ProtocolError(
            f"a leaf's sums cannot be read: {failure}", "Use the same version of fedrec everywhere."
        ) from None


def require_within_reach(partial: PartialSums, releases: Sequence[ReleaseSpec]) -> None:
    """Raises ProtocolError where sums are larger than so many reports can make them: more were
    added than the leaf says, or unclipped.

    Reports of a release have joint norm at most its radius, so n of them add up to at most n times
    that. It finds no lie that stays below: a leaf that is believed sees reports, as the one
    aggregator does.
    """
    blocks = iter(partial.blocks)
    for release in releases:
        square = 0.0
        for spec in release.blocks:
            # off the diagonal of a matrix, entries stand for two
            weights = spec.step / spec.form.relative_std(spec.width, isometric=True)
            square += float(np.sum((next(blocks) * weights) ** 2))
        if square > (partial.reported * release.radius) ** 2 * (1 + _SLACK):
            cause = (
                f"leaf {partial.leaf!r} says that {partial.reported} users reported, but its "
                f"sums of {release.name!r} are larger"
            )
            raise ProtocolError(
                cause,
                (
                    "Do not trust this leaf: start it anew on a machine that you trust, from the "
                    "same package."
                ),
            )
