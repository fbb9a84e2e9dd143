"""One round's reports on their way to the aggregator: made batch by batch in bounded memory,
counted as it counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedrec.arrays import UInt8s
from fedrec.federation.messages import ClientStep, Question
from fedrec.federation.protocol import Receipt, Refusal, ReportEndpoint
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
