"""Leaf aggregators as one client sees them: each user's report goes to the leaf that owns the
user's pseudonym.

A leaf that is away costs its own users their part, and nobody else's. One that was replaced, and no
longer knows who is enrolled, is told again. All leaves tell how one ledger grew, the root's; a
client follows it no further than every leaf that answers has been told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedrec.arrays import UInt8s
from fedrec.errors import RefusedError, UnreachableError
from fedrec.federation.leaves import TokenRange, require_all_once
from fedrec.federation.protocol import LedgerGrowth, LedgerHead, Receipt, Refusal, ReportEndpoint
from fedrec_client.delivery import Delivery

R = TypeVar("R")


@dataclass(frozen=True)
class LeafEndpoints:
    """Endpoints of all leaves, and the pseudonyms that each owns.

    Raises ValueError unless every pseudonym is of exactly one."""

    endpoints: Sequence[ReportEndpoint]
    ranges: Sequence[TokenRange]

    def __post_init__(self) -> None:
        require_all_once(self.ranges)

    def enroll(self, tokens: Sequence[bytes]) -> int:
        """Each user at its leaf. Raises as an endpoint's, once all have been asked."""
        return sum(self._all(lambda leaf: self._enrolled(leaf, tokens), needed=len(self.endpoints)))

    def growth(self, since: LedgerHead, charged: int) -> LedgerGrowth:
        """The growth that every leaf knows that answers.

        Raises RefusedError (`STALE_LEDGER`) where one says so, UnreachableError where none answers.
        """
        return min(
            self._all(lambda leaf: self.endpoints[leaf].growth(since, charged), needed=1),
            key=lambda growth: growth.head.number,
        )

    def places(self, tokens: UInt8s) -> npt.NDArray[np.int64]:
        """(num_users,) the leaf of each user. tokens: (num_users, 16)."""
        starts = 256 * tokens[:, 0].astype(np.int64) + tokens[:, 1]
        order = np.argsort([each.first for each in self.ranges])
        firsts = np.array([self.ranges[leaf].first for leaf in order])
        return np.asarray(order[np.searchsorted(firsts, starts, side="right") - 1])

    def _enrolled(self, leaf: int, tokens: Sequence[bytes]) -> int:
        mine = [token for token in tokens if token in self.ranges[leaf]]
        return self.endpoints[leaf].enroll(mine) if mine else 0

    def _all(self, ask: Callable[[int], R], *, needed: int) -> list[R]:
        said = list[R]()
        away = list[UnreachableError]()
        for leaf in range(len(self.endpoints)):
            try:
                said.append(ask(leaf))
            except UnreachableError as failure:
                away.append(failure)
        if len(said) < needed:
            raise away[0]
        return said


@dataclass
class LeafDelivery(Delivery):
    """One round's reports on their way to leaves."""

    leaves: LeafEndpoints | None = None
    _away: dict[int, UnreachableError] = field(default_factory=dict, init=False)

    def hand_in(self, *, users_per_batch: int, batch_bytes: int) -> None:
        """Hands in as to one aggregator; users of a leaf that is away are not handed in.

        Raises UnreachableError at the end where one is."""
        assert self.leaves is not None
        most = len(self.leaves.endpoints)
        super().hand_in(users_per_batch=most * users_per_batch, batch_bytes=most * batch_bytes)
        for failure in self._away.values():
            raise failure

    def _hand_in(self, users: npt.NDArray[np.int64]) -> str | None:
        assert self.leaves is not None
        places = self.leaves.places(self.tokens[users])
        over = list[str | None]()
        for leaf in sorted(set(places.tolist()) - self._away.keys()):
            self.endpoint = self.leaves.endpoints[leaf]
            try:
                over.append(super()._hand_in(users[places == leaf]))
            except UnreachableError as failure:
                self._away[leaf] = failure
        return over[0] if len(set(over)) == 1 and not self._away else None

    def _sent(self, users: npt.NDArray[np.int64]) -> Receipt:
        receipt = super()._sent(users)
        if not receipt.rejected.get(Refusal.NOT_ENROLLED) or self.endpoint is None:
            return receipt
        try:
            # the leaf was replaced; nothing is counted twice
            self.endpoint.enroll([token.tobytes() for token in self.tokens[users]])
        except RefusedError:
            return receipt
        return super()._sent(users)
