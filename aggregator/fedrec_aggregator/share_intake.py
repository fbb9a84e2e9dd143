"""Shares that clients send to one of three aggregators: whose users they are of, what is held, and
what is turned away."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedrec.federation.messages import Question
from fedrec.federation.protocol import Receipt, Refusal
from fedrec.privacy.calibration import Plan
from fedrec.sharing.agreement import Agreement
from fedrec.sharing.record import SharedUser, read_shares, user_bytes
from fedrec.sharing.site_messages import read_site
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.opening_checks import Limits

_WHY = {
    "another-ticket": Refusal.ROUND_UNKNOWN,  # of an attempt that is over, or not begun here
    "round-closed": Refusal.ROUND_CLOSED,
    "unknown-user": Refusal.NOT_ENROLLED,
    "replayed": Refusal.ALREADY_REPORTED,
    "malformed": Refusal.MALFORMED,
    "no-room": Refusal.BUSY,
}


@dataclass
class ThreePartyAttempt:
    """An attempt in memory as the server opened it. failure: why it last did not go on."""

    question: Question
    plan: Plan
    digest: str
    number: int
    quorum: int
    needed: int
    deadline_s: float
    length: int
    failure: Exception | None = None
    rejected: Counter[str] = field(default_factory=Counter)

    def turn_away(self, code: Refusal, users: int) -> Receipt:
        """Count a batch of which nothing is usable."""
        self.rejected[code.value] += users
        return Receipt(0, {code.value: users})


class ShareIntake:
    """Intake of shares at aggregator `place`, whose rules are `party`, applied one at a time under
    `turn`. attempts: those in memory, which their owner begins and ends."""

    def __init__(
        self,
        party: Agreement,
        turn: threading.RLock,
        ledger: ReleaseLedger,
        limits: Limits,
        *,
        place: int,
        attempts: Mapping[tuple[str, int], ThreePartyAttempt],
    ) -> None:
        self._party = party
        self._turn = turn
        self._ledger = ledger
        self._limits = limits
        self._place = place
        self._attempts = attempts

    def take(
        self, sender: str, run: str, round: int, attempt: ThreePartyAttempt, batch: bytes
    ) -> Receipt:
        """Hold the shares of every user that is the sender's.

        A bad batch is a receipt, never an exception."""
        try:
            of_site, shares = read_site(batch)
            found, users = read_shares(shares, self._place, attempt.length)
        except ValueError:
            return attempt.turn_away(Refusal.MALFORMED, 1)
        if of_site:
            return self._take_site(sender, (run, round), attempt, found, of_site, users)
        if len(users) > self._limits.max_users_per_batch:
            return attempt.turn_away(Refusal.TOO_LARGE, len(users))
        accepted = 0
        rejected = Counter[str]()
        with self._turn:
            if self._held_bytes() + len(batch) > self._limits.max_shares_bytes:
                return attempt.turn_away(Refusal.BUSY, len(users))
            for user in users:
                owner = self._ledger.owners().get(user.committed.user)
                if owner != sender:
                    rejected[
                        (Refusal.NOT_ENROLLED if owner is None else Refusal.FORBIDDEN).value
                    ] += 1
                elif why := self._party.receive(run, round, found, user):
                    rejected[_WHY[why].value] += 1
                else:
                    accepted += 1
            attempt.rejected += rejected
        return Receipt(accepted, dict(rejected))

    def _take_site(
        self,
        sender: str,
        where: tuple[str, int],
        attempt: ThreePartyAttempt,
        found: bytes,
        of_site: tuple[bytes, ...],
        rows: list[SharedUser],
    ) -> Receipt:
        """All of its users, or none of them."""
        with self._turn:
            owners = self._ledger.owners()
            size = len(rows) * user_bytes(self._place, attempt.length)
            if any(owners.get(user) is None for user in of_site):
                why = Refusal.NOT_ENROLLED
            elif any(owners[user] != sender for user in of_site):
                why = Refusal.FORBIDDEN
            elif self._held_bytes() + size > self._limits.max_shares_bytes:
                why = Refusal.BUSY
            elif not (word := self._party.receive_site(*where, found, of_site, rows)):
                return Receipt(len(of_site), {})
            else:
                why = _WHY[word]
            return attempt.turn_away(why, len(of_site))

    def _held_bytes(self) -> int:
        found = (
            (attempt, self._party.progress(run, round))
            for (run, round), attempt in self._attempts.items()
        )
        return sum(
            said.rows * user_bytes(self._place, attempt.length)
            for attempt, said in found
            if said and not said.ended
        )
