"""Leaves of three parties as one client sees them: each user's report is shared among the three
leaves that own the user's pseudonym.

Guarantee: that of `three_way`, in every range by itself: each share goes to the leaf whose key is
pinned at its place and range, and a ticket names the range. A user is in one range, so that nobody
is shared twice. Where clients are checked, attempts are counted by range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.errors import RefusedError, UnreachableError
from fedrec.federation.leaves import TokenRange
from fedrec.federation.ledger_heads import HeadMemory, follow
from fedrec.federation.protocol import Receipt, ShareEndpoint
from fedrec.privacy.calibration import Plan
from fedrec_client.delivery import Delivery
from fedrec_client.leaves import LeafEndpoints
from fedrec_client.three_way import SharedDelivery, ThreeWay


@dataclass(frozen=True)
class LeavesOfThree:
    """parties: the leaves of each of the three, in the order of their places, all with the same
    ranges in one order. ways: of each range to its three leaves."""

    parties: Sequence[LeafEndpoints]
    ways: Sequence[ThreeWay]

    @staticmethod
    def of(
        ranges: Sequence[TokenRange],
        endpoints: Sequence[Sequence[ShareEndpoint]],
        names: Sequence[Sequence[bytes]],
        **patience: Any,
    ) -> LeavesOfThree:
        """endpoints, names: of every place, by range. Raises ValueError where two of the three
        leaves of a range have one name, and unless every pseudonym is of exactly one range."""
        parties = [LeafEndpoints(each, ranges) for each in endpoints]
        ways = [
            ThreeWay(
                [each[k] for each in endpoints], [each[k] for each in names], range=one, **patience
            )
            for k, one in enumerate(ranges)
        ]
        return LeavesOfThree(parties, ways)

    def enroll(self, tokens: Sequence[bytes]) -> int:
        """Each user at the three leaves of its range."""
        return min(leaves.enroll(tokens) for leaves in self.parties)

    def follow(self, memories: Sequence[HeadMemory], charged: int) -> None:
        """See that none of the three roots' ledgers has gone back, as their leaves tell.

        Raises RefusedError (`STALE_LEDGER`)."""
        for leaves, memory in zip(self.parties, memories, strict=True):
            follow(lambda since, leaves=leaves: leaves.growth(since, charged), memory)  # type: ignore[misc]


@dataclass
class RangesDelivery(Delivery):
    """One round's reports on their way to leaves of three. plan, secret: as `SharedDelivery`'s.

    count: of a range, by its name, what `SharedDelivery.keep_attempt` is."""

    leaves: LeavesOfThree | None = None
    plan: Plan | None = None
    secret: bytes = field(default=b"", repr=False)
    count: Callable[[str], Callable[[bytes], None]] = lambda of: SharedDelivery.keep_attempt

    def hand_in(self, *, users_per_batch: int, batch_bytes: int) -> None:
        """Range by range, also where one cannot be reached.

        Raises at the end what was raised of the first such range."""
        assert self.leaves is not None
        places = self.leaves.parties[0].places(self.tokens)
        failures = list[UnreachableError | RefusedError]()
        for number, way in enumerate(self.leaves.ways):
            users = np.flatnonzero(places == number)
            if not len(users):
                continue
            part = self._part(way, users)
            try:
                part.hand_in(users_per_batch=users_per_batch, batch_bytes=batch_bytes)
            except (UnreachableError, RefusedError) as failure:
                failures.append(failure)
            self.batches = self.batches + part.batches
            self.bytes_sent = self.bytes_sent + part.bytes_sent
            self._count(Receipt(part.accepted, part.rejected))
        if failures:
            raise failures[0]

    def _part(self, way: ThreeWay, users: npt.NDArray[np.int64]) -> SharedDelivery:
        """Delivery of the users of one range."""
        keep = self.keep
        before = self.batches
        return SharedDelivery(
            self.run,
            self.question,
            self.digest,
            self.step,
            self.mine.users_subset(users),
            self.ids[users],
            self.tokens[users],
            keep=keep and (lambda number, batch: keep(before + number, batch)),
            three=way,
            plan=self.plan,
            secret=self.secret,
            keep_attempt=self.count(str(way.range)),
        )
