"""One round's reports on their way to the aggregator: made batch by batch in bounded memory,
counted as it counts them.

Leaf aggregators as one client sees them: each user's report goes to the leaf that owns the
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
from fedrec.federation.messages import ClientStep, Question
from fedrec.federation.protocol import LedgerGrowth, LedgerHead, Receipt, Refusal, ReportEndpoint
from fedrec.federation.report_batches import Batch, pack_reports
from fedrec_client.answering import Private, answered, batches

_ROUND_IS_OVER = {
    Refusal.ROUND_CLOSED,
    Refusal.ROUND_UNKNOWN,
    Refusal.RUN_UNKNOWN,
    Refusal.WRONG_QUESTION,
    Refusal.WRONG_PLAN,
}
"""Codes that every further batch of the round would get too."""


@dataclass
class Delivery:
    """What is being answered, by whom, and what came of it so far. ids, tokens: (num_users, 16)
    uint8 of all users of `mine`.

    digest: `wire.report_digest`. `keep` gets every message before it leaves. `rejected` counts
    users by the aggregator's codes; a replayed report is one that was counted before, so it is
    accepted.
    """

    run: str
    question: Question
    digest: str
    step: ClientStep
    mine: Private
    ids: UInt8s
    tokens: UInt8s
    endpoint: ReportEndpoint | None = None
    keep: Callable[[int, bytes], None] | None = None
    accepted: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    batches: int = 0
    bytes_sent: int = 0

    def hand_in(self, *, users_per_batch: int, batch_bytes: int) -> None:
        """Everything, or until the aggregator says that the round is over.

        Raises UnreachableError; what was counted stays counted."""
        for users in batches(
            self.mine, self.question.blocks, users=users_per_batch, max_bytes=batch_bytes
        ):
            over = self._hand_in(users)
            if over is not None:
                self._count(Receipt(0, {over: self.mine.num_users - int(users[-1]) - 1}))
                return

    def _hand_in(self, users: npt.NDArray[np.int64]) -> str | None:
        """The code that ends the round, if there is one."""
        receipt = self._sent(users)
        if receipt.rejected.get(Refusal.TOO_LARGE) and not receipt.accepted and len(users) > 1:
            # one with more items than the aggregator takes must not cost the others of its batch
            # their part
            return self._hand_in(users[: len(users) // 2]) or self._hand_in(
                users[len(users) // 2 :]
            )
        self._count(receipt)
        codes = {str(code) for code, count in receipt.rejected.items() if count}
        if codes == {Refusal.NOT_ENROLLED} and not self.accepted:
            return Refusal.NOT_ENROLLED  # nobody here is known: the other batches are not sent
        return min(codes) if codes and codes <= _ROUND_IS_OVER and not receipt.accepted else None

    def _sent(self, users: npt.NDArray[np.int64]) -> Receipt:
        reports = answered(self.question, self.step, self.mine, users)
        packed = pack_reports(Batch(self.ids[users], self.tokens[users], reports), self.digest)
        if self.keep:
            self.keep(self.batches, packed)
        self.bytes_sent = self.bytes_sent + len(packed)
        self.batches = self.batches + 1
        assert self.endpoint is not None
        return self.endpoint.report(self.run, self.question.round, packed)

    def _count(self, receipt: Receipt) -> None:
        self.accepted += receipt.accepted + receipt.rejected.get(Refusal.REPLAYED, 0)
        for code, users in receipt.rejected.items():
            if users and code != Refusal.REPLAYED:
                self.rejected[str(code)] = self.rejected.get(str(code), 0) + users


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
