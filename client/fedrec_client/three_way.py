"""Three aggregators as one client sees them, and a round's reports on their way to them as shares.

Guarantee, unit user (report replaced by the empty one), against the server and any one of the
three: `fedrec.sharing`, NOT YET REVIEWED from outside. This client's part in it: it sends each
share to the aggregator whose key is pinned at its place, it shares only under a ticket that it
computed itself, of its own question, quorum and pins and the three nonces, and it never uses a seed
for two rows (`record.addressed`).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedrec.arrays import UInt8s
from fedrec.errors import PrivacyError, RefusedError, UnreachableError
from fedrec.federation.messages import Question, Reports
from fedrec.federation.protocol import (
    AttemptNonce,
    HeadMemory,
    OwnLedger,
    Receipt,
    Refusal,
    ShareEndpoint,
    follow,
)
from fedrec.federation.releases import noise_mu
from fedrec.federation.report_batches import Batch, pack_reports
from fedrec.privacy.calibration import Plan
from fedrec.sharing.layout import (
    RowLayout,
    plain_numbers,
    plan_layout,
    require_sharable,
    with_own_noise,
)
from fedrec.sharing.record import addressed, noise_keys, pack_shares, user_bytes
from fedrec.sharing.shares import ticket
from fedrec.sharing.site_messages import pack_site
from fedrec.sharing.site_sums import SiteSum, row_names, site_rows
from fedrec_client.answering import Check, answered, batches
from fedrec_client.delivery import Delivery

MESSAGE_BYTES = 8 * 2**20
"""Of the shares in one message, about: half of what an aggregator takes unless its operator says
otherwise."""


@dataclass
class ThreeWay:
    """The three, in the order of their places. names: with their keys, as the aggregators name each
    other (`names_of`).

    patience_s: for all three to state one ticket. Raises ValueError where two have one name.
    """

    endpoints: Sequence[ShareEndpoint]
    names: Sequence[bytes]
    patience_s: float = 60.0
    pause_s: float = 0.05
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if len(self.endpoints) != 3 or len(set(self.names)) != 3:
            raise ValueError("three-party aggregation needs three different aggregators")

    def enroll(self, tokens: Sequence[bytes]) -> int:
        """At all three."""
        return min(endpoint.enroll(tokens) for endpoint in self.endpoints)

    def follow(self, memories: Sequence[HeadMemory], own: OwnLedger) -> None:
        """See that none of the three ledgers has gone back.

        Raises RefusedError (`STALE_LEDGER`)."""
        for endpoint, memory in zip(self.endpoints, memories, strict=True):
            follow(lambda since, endpoint=endpoint: endpoint.growth(since, own), memory)  # type: ignore[misc]

    def ticket(self, run: str, round: int, named: str) -> bytes:
        """The ticket of the attempt that takes shares, computed here. named: `wire.report_digest`
        of the question.

        Raises RefusedError (`WRONG_QUESTION`) where the three state another one: they were asked
        another question, or name other keys; UnreachableError where they do not agree on one in
        time.
        """
        until_s = self.clock() + self.patience_s
        while True:
            said = [endpoint.attempt(run, round) for endpoint in self.endpoints]
            if all(one.ticket for one in said) and len({one.attempt for one in said}) == 1:
                return self._checked(run, round, named, said)
            if self.clock() >= until_s:
                raise UnreachableError(
                    "the three aggregators have not agreed on a ticket",
                    "See that all three reach each other.",
                )
            # each of the three hears of a new attempt by itself; no message says that all have
            self.sleep(self.pause_s)

    def report(self, run: str, round: int, messages: Sequence[bytes]) -> Receipt:
        """To each its own. A user is counted where all three hold it."""
        receipts = [
            endpoint.report(run, round, message)
            for endpoint, message in zip(self.endpoints, messages, strict=True)
        ]
        return min(receipts, key=lambda receipt: receipt.accepted)

    def _checked(self, run: str, round: int, named: str, said: Sequence[AttemptNonce]) -> bytes:
        try:
            nonces = [one.nonce for one in said]
            found = ticket(run, round, bytes.fromhex(named), self.names, nonces)
        except (ValueError, struct.error):
            raise RefusedError(
                Refusal.MALFORMED.value,
                "an aggregator's nonce cannot be read",
                "Use the same version of fedrec.",
            ) from None
        if any(one.ticket != found for one in said):
            cause = (
                "the three aggregators state another ticket than follows from this client's "
                "question and pins"
            )
            raise RefusedError(
                Refusal.WRONG_QUESTION.value,
                cause,
                "Compare the pins of all parties; do not go on otherwise.",
            )
        return found


def names_of(keys: Sequence[str]) -> tuple[bytes, ...]:
    """How aggregators are named in a ticket: by the SHA-256 of their public keys, in the order of
    their places."""
    return tuple(key.encode() for key in keys)


@dataclass
class SharedDelivery(Delivery):
    """Reports that are shared among three; `keep` gets the report before it is shared, which never
    leaves. secret: the client's own.

    keep_attempt: told of the ticket before anything is shared under it; raises where there were too
    many.
    """

    three: ThreeWay | None = None
    plan: Plan | None = None
    secret: bytes = field(default=b"", repr=False)
    keep_attempt: Callable[[bytes], None] = lambda ticket: None
    _ticket: bytes = field(default=b"", init=False)

    def hand_in(self, *, users_per_batch: int, batch_bytes: int) -> None:
        """Hands in as to one aggregator, under one ticket. Raises as `ThreeWay.ticket` too."""
        assert self.three is not None
        self._ticket = self.three.ticket(self.run, self.question.round, self.digest)
        self.keep_attempt(self._ticket)
        most = max(1, min(users_per_batch, MESSAGE_BYTES // user_bytes(1, self._layout.length)))
        rows = site_rows(self._layout)
        if (
            self._layout.checked is None
            and self.mine.num_users > rows
            and rows * user_bytes(1, self._layout.length) <= MESSAGE_BYTES
        ):
            self._hand_in_sum(users_per_batch=most, batch_bytes=batch_bytes)
        else:
            super().hand_in(users_per_batch=most, batch_bytes=batch_bytes)

    def _hand_in_sum(self, *, users_per_batch: int, batch_bytes: int) -> None:
        """All users of the site in one message (`site_sums`): shorter than their rows."""
        assert self.three is not None
        total = SiteSum(self._layout)
        everybody = np.arange(self.mine.num_users)
        for users in batches(
            self.mine, self.question.blocks, users=users_per_batch, max_bytes=batch_bytes
        ):
            total.add(plain_numbers(self._answered(users), self._layout))
            self.batches += 1
        numbers = total.rows()
        tokens = self._names(self.tokens, everybody)
        of = self._names(self.ids, everybody)
        sent = addressed(
            numbers,
            row_names(of, len(numbers)),
            row_names(tokens, len(numbers)),
            self._ticket,
            secret=self.secret,
        )
        messages = [
            pack_site(tokens, pack_shares(some, place, self._ticket))
            for place, some in enumerate(sent)
        ]
        self.bytes_sent += sum(map(len, messages))
        self._count(self._told(messages, tokens))

    @property
    def _layout(self) -> RowLayout:
        assert self.plan is not None
        return plan_layout(self.question, self.plan)

    def _sent(self, users: npt.NDArray[np.int64]) -> Receipt:
        assert self.three is not None
        reports = self._answered(users)
        ids = self._names(self.ids, users)
        tokens = self._names(self.tokens, users)
        numbers = plain_numbers(reports, self._layout)
        shape = self._layout
        if shape.checked is not None:
            numbers = with_own_noise(
                numbers, shape, noise_keys(numbers, ids, self._ticket, secret=self.secret)
            )
        sent = addressed(numbers, ids, tokens, self._ticket, secret=self.secret)
        messages = [pack_shares(some, place, self._ticket) for place, some in enumerate(sent)]
        self.bytes_sent = self.bytes_sent + sum(map(len, messages))
        self.batches = self.batches + 1
        return self._told(messages, tokens)

    def _told(self, messages: Sequence[bytes], tokens: Sequence[bytes]) -> Receipt:
        """Sent again where one was replaced, and no longer knew these users."""
        assert self.three is not None
        receipt = self.three.report(self.run, self.question.round, messages)
        if not receipt.rejected.get(Refusal.NOT_ENROLLED):
            return receipt
        try:
            self.three.enroll(tokens)
        except RefusedError:
            return receipt
        return self.three.report(self.run, self.question.round, messages)

    def _answered(self, users: npt.NDArray[np.int64]) -> Reports:
        assert self.plan is not None
        check = sharing_check(self.question, self.plan)
        reports = answered(self.question, self.step, self.mine, users, check=check)
        if self.keep:
            self.keep(
                self.batches,
                pack_reports(Batch(self.ids[users], self.tokens[users], reports), self.digest),
            )
        return reports

    @staticmethod
    def _names(rows: UInt8s, users: npt.NDArray[np.int64]) -> list[bytes]:
        return [row.tobytes() for row in rows[users]]


def sharing_check(question: Question, plan: Plan) -> Check:
    """What reports must pass to be shared as the plan says; of one aggregator, nothing more.

    A client fails where a report cannot be shared, and the server hears that it did: what a person
    has must not decide it.
    """
    if plan.aggregation != "three-party":
        return lambda reports: None
    shape = plan_layout(question, plan)
    return lambda reports: require_sharable(reports, shape)


def require_shareable(question: Question, plan: Plan) -> None:
    """Raises RefusedError (`WRONG_QUESTION`) where a question cannot be shared, or checks cost more
    than is charged: before anything is."""
    try:
        plan_layout(question, plan)
        noise_mu(question, plan)
    except PrivacyError as failure:
        raise RefusedError(Refusal.WRONG_QUESTION.value, failure.cause, failure.remedy) from None
