"""Sees every message, and checks at that moment what must hold then. What holds only at the end is
in `verdict`.

The auditor counts users itself, from the batches that reached the aggregator, and reads ledgers
from the disk as they are at the moment when something leaves.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrec.errors import FedRecError
from fedrec.federation.messages import BlockSpec, ReleaseSpec
from fedrec.federation.protocol import Opening, Phase, Receipt, Refusal, RoundStatus
from fedrec.federation.wire import read_header
from fedrec.privacy.calibration import Plan
from tests.simulation.network import Message
from tests.simulation.reading import (
    UserReport,
    client_book,
    digest_of,
    named,
    read_batch,
    release_book,
    within_radius,
)
from tests.simulation.script import AGGREGATOR

Round = tuple[str, int]

COUNTED_ONCE = "every accepted user is counted exactly once"
RELEASED_ONCE = "nothing is released twice with different noise"
CHARGED_FIRST = "nothing leaves before its charge is durable"
ONE_ANSWER = "a client answers one question a round, always with the same reports"
REASONS = "whoever is turned away is counted under the right reason"
ATTEMPTS_RISE = "an attempt at a round is counted once"
DEFECTS = "a party fails with words, never with a defect"

_NO_TIME = {Refusal.ROUND_CLOSED, Refusal.ROUND_UNKNOWN, Refusal.RUN_UNKNOWN, Refusal.BUSY}
"""For which a batch may be turned away whole, whoever is in it."""


@dataclass(frozen=True)
class Broken:
    """A rule that did not hold, and what was seen."""

    rule: str
    seen: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.seen}"


@dataclass
class Collected:
    """One attempt at a round as the auditor counts it. tampered: a report in it is not what its
    client sent. rejected: users by code, as clients were told.
    """

    attempt: int
    opening: Opening
    deadline_s: float
    counted: dict[bytes, UserReport] = field(default_factory=dict)
    ids: set[bytes] = field(default_factory=set)
    rejected: Counter[str] = field(default_factory=Counter)
    frozen: bool = False
    tampered: bool = False

    @property
    def named(self) -> str:
        """What a report that belongs in it says it answers."""
        return named(self.opening.digest, self.opening.quorum)

    @property
    def releases(self) -> tuple[ReleaseSpec, ...]:
        """What the round's question asks for."""
        return read_header(self.opening.header).specs()

    @property
    def blocks(self) -> list[BlockSpec]:
        """All of its blocks."""
        return [block for release in self.releases for block in release.blocks]


@dataclass
class Auditor:
    """`attempts`: all of every round, oldest first; `served`: bytes that left; `heads`: heads of
    the aggregator's ledger that were told."""

    folder: Path
    clock: Callable[[], float]
    max_round_s: float
    min_cohort: int
    broken: list[Broken] = field(default_factory=list)
    attempts: dict[Round, list[Collected]] = field(default_factory=dict)
    served: dict[Round, bytes] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    heads: set[str] = field(default_factory=set)
    _open: dict[Round, Collected] = field(default_factory=dict)
    _hashes: dict[Round, str] = field(default_factory=dict)
    _asked: dict[tuple[str, str, int], str] = field(default_factory=dict)
    _reports: dict[bytes, UserReport] = field(default_factory=dict)
    sent_in: defaultdict[Round, dict[bytes, UserReport]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    # that each client was told, damaged ones too
    _quorums: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def report_ids(self) -> set[bytes]:
        """Of everything that any client sent."""
        return set(self._reports)

    # --- what the network tells ---

    def sent(self, message: Message) -> None:
        """A report must be in its client's ledger by now."""
        if message.name == "report":
            self._check_leaving(message.sender, *message.arguments)

    def arrived(self, message: Message) -> None:
        """What a client is asked, as it finds it."""
        if message.name == "ask":
            self._quorums[message.receiver].add(message.arguments[-1])

    def failed(self, message: Message, failure: Exception) -> None:
        """A party has only `FedRecError` to say no with."""
        self._require(
            False,
            DEFECTS,
            f"{message.receiver} at {message.name}: {type(failure).__name__}: {failure}",
        )

    def handled(self, message: Message, answer: Any) -> None:
        """What the aggregator did."""
        if message.receiver != AGGREGATOR:
            return
        match message.name:
            case "report" if isinstance(answer, Receipt):
                self._check_counting(message, answer)
            case "open_run" if not isinstance(answer, FedRecError):
                self.plans[message.arguments[0]] = message.arguments[1]
            case "close":
                self._freeze(message.arguments)
            case "release" if isinstance(answer, bytes):
                self._check_release(message.arguments, answer)
        if isinstance(answer, RoundStatus):
            self._note_status(message, answer)

    def stopped(self, party: str) -> None:
        """An aggregator that ends forgets what it collected."""
        if party == AGGREGATOR:
            self._open.clear()

    # --- checks ---

    def _require(self, holds: bool, rule: str, seen: str) -> None:
        if not holds:
            self.broken.append(Broken(rule, seen))

    def _check_leaving(self, client: str, run: str, round: int, batch: bytes) -> None:
        digest = digest_of(batch)
        entries = [
            entry
            for entry in client_book(self.folder / client)
            if (entry.run, entry.round) == (run, round)
        ]
        self._require(
            len(entries) == 1
            and digest in {named(entries[0].question, quorum) for quorum in self._quorums[client]},
            CHARGED_FIRST,
            (
                f"a report of {client} for round {round} of {run} left with {len(entries)} "
                "entries in its ledger"
            ),
        )
        question = entries[0].question if entries else digest
        before = self._asked.setdefault((client, run, round), question)
        self._require(
            before == question,
            ONE_ANSWER,
            f"{client} answered two questions in round {round} of {run}",
        )
        for one in self._read(run, round, batch):
            known = self._reports.setdefault(one.id, one)
            self.sent_in[run, round][one.token] = one
            self._require(
                _same(known, one),
                ONE_ANSWER,
                f"{client} sent two reports under one id in round {round} of {run}",
            )

    def _read(self, run: str, round: int, batch: bytes) -> list[UserReport]:
        attempts = self.attempts.get((run, round), [])
        if not attempts or attempts[-1].named != digest_of(batch):
            return []
        return read_batch(batch, attempts[-1].blocks) or []

    def _check_counting(self, message: Message, receipt: Receipt) -> None:
        run, round, batch = message.arguments
        collected = self._open.get((run, round))
        where = f"round {round} of {run}"
        if collected is None:
            self._require(
                receipt.accepted == 0,
                COUNTED_ONCE,
                f"{receipt.accepted} users were accepted in {where}, which is not open",
            )
            return
        collected.rejected.update(receipt.rejected)
        if self.clock() >= collected.deadline_s:
            collected.frozen = True
        if collected.frozen:
            self._require(
                receipt.accepted == 0,
                COUNTED_ONCE,
                f"{receipt.accepted} users were accepted in {where} after it closed",
            )
            return
        new, away = self._new(collected, message.sender, batch)
        if not receipt.accepted and set(receipt.rejected) <= _NO_TIME:
            return
        seen = (
            f"{receipt.accepted} users of {message.sender} were accepted in {where}, {len(new)} "
            "are new"
        )
        self._require(receipt.accepted == len(new), COUNTED_ONCE, seen)
        self._require(
            away is None or away == receipt.rejected,
            REASONS,
            f"in {where}: {dict(receipt.rejected)}, should be {away}",
        )
        if receipt.accepted:
            self._count(collected, new, altered=message.altered)

    def _new(
        self, collected: Collected, sender: str, batch: bytes
    ) -> tuple[list[UserReport], dict[str, int] | None]:
        """Users of a sound batch who are the sender's and not counted yet, and why others are not;
        None where it is no sound batch."""
        reports = (
            read_batch(batch, collected.blocks) if digest_of(batch) == collected.named else None
        )
        if reports is None:
            return [], None
        owners = release_book(self.folder / AGGREGATOR).owners
        new = list[UserReport]()
        away = Counter[str]()
        ids = set(collected.ids)
        tokens = set(collected.counted)
        for report in reports:
            if owners.get(report.token) != sender:
                away[Refusal.FORBIDDEN if report.token in owners else Refusal.NOT_ENROLLED] += 1
            elif report.id in ids or report.token in tokens:
                away[Refusal.REPLAYED if report.id in ids else Refusal.ALREADY_REPORTED] += 1
            else:
                new.append(report)
                ids.add(report.id)
                tokens.add(report.token)
        return new, dict(away)

    def _count(self, collected: Collected, new: list[UserReport], *, altered: bool) -> None:
        collected.counted |= {
            report.token: within_radius(report, collected.releases) for report in new
        }
        collected.ids |= {report.id for report in new}
        collected.tampered |= altered
        everybody = len(release_book(self.folder / AGGREGATOR).owners)
        collected.frozen = len(collected.counted) >= max(
            everybody, self.min_cohort, collected.opening.quorum
        )

    def _check_release(self, asked: tuple[Any, ...], content: bytes) -> None:
        run, round = asked
        where = f"round {round} of {run}"
        sha256 = hashlib.sha256(content).hexdigest()
        self._require(
            self.served.setdefault((run, round), content) == content,
            RELEASED_ONCE,
            f"two releases of {where} left",
        )
        self._require(
            self._hashes.setdefault((run, round), sha256) == sha256,
            RELEASED_ONCE,
            f"{where} was announced otherwise",
        )
        book = release_book(self.folder / AGGREGATOR)
        attempts = self.attempts.get((run, round), [])
        charged = {
            name
            for of_run, of_round, name, _ in book.charges()
            if (of_run, of_round) == (run, round)
        }
        asked_for = (
            {release.name for release in attempts[-1].releases} if attempts else {"(unknown)"}
        )
        self._require(
            charged == asked_for,
            CHARGED_FIRST,
            f"the release of {where} left, charged were {sorted(charged)}",
        )
        entry = book.released().get((run, round))
        self._require(
            entry is not None and entry["release_sha256"] == sha256,
            CHARGED_FIRST,
            f"the release of {where} left before its entry was durable",
        )

    # --- where rounds are ---

    def _note_status(self, message: Message, status: RoundStatus) -> None:
        where: Round = (status.run, status.round)
        if status.ledger_head:
            self.heads.add(status.ledger_head)
        if status.release_sha256:
            known = self._hashes.setdefault(where, status.release_sha256)
            self._require(
                known == status.release_sha256,
                RELEASED_ONCE,
                f"round {where[1]} of {where[0]} was announced with two hashes",
            )
        if message.name == "open_round" and status.phase is Phase.OPEN:
            self._note_open(where, status, message.arguments[0])
        elif status.phase is not Phase.OPEN:
            self._freeze(where)

    def _note_open(self, where: Round, status: RoundStatus, opening: Opening) -> None:
        collected = self._open.get(where)
        attempts = self.attempts.setdefault(where, [])
        if (
            collected is not None
            and collected.attempt == status.attempt
            and not collected.frozen
            and collected.opening.quorum == opening.quorum
        ):
            return  # found as it was
        last = attempts[-1].attempt if attempts else 0
        self._require(
            status.attempt > last,
            ATTEMPTS_RISE,
            f"attempt {status.attempt} at round {where[1]} of {where[0]} follows {last}",
        )
        attempts.append(
            Collected(
                status.attempt, opening, self.clock() + min(opening.timeout_s, self.max_round_s)
            )
        )
        self._open[where] = attempts[-1]

    def _freeze(self, where: tuple[Any, ...]) -> None:
        collected = self._open.get((where[0], where[1]))
        if collected is not None:
            collected.frozen = True


def _same(one: UserReport, other: UserReport) -> bool:
    parts = zip(
        (*one.coefficients, *one.vectors), (*other.coefficients, *other.vectors), strict=True
    )
    return (one.token, one.items) == (other.token, other.items) and all(
        a.tolist() == b.tolist() for a, b in parts
    )
