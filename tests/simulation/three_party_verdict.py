"""Verdict on a run of three aggregators, by code of its own, from all messages and from the ledgers
on disk."""

from __future__ import annotations

import itertools
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.arrays import Int64s
from fedrec.federation.hostile_clients import ATTEMPTS
from fedrec.federation.messages import Question
from fedrec.federation.protocol import Refusal, RoundStatus
from fedrec.federation.releases import parties, party_noise
from fedrec.federation.reports import exact_sums
from fedrec.federation.round_driver import Patience
from fedrec.federation.wire import read_answer, read_invitation
from fedrec.randomness import Streams
from fedrec.sharing.record import read_output
from fedrec.sharing.servers import total
from tests.simulation.auditor import DEFECTS, RELEASED_ONCE, Broken, Round
from tests.simulation.network import Message
from tests.simulation.reading import release_book
from tests.simulation.script import Setup
from tests.simulation.verdict import CHARGED_ONCE, EXACT_PLUS_NOISE, LEDGER_KEPT, QUORUM, Trained

ONE_ATTEMPT = "what leaves three aggregators is of one attempt at all of them"
STOPS = "a training stops only where clients have shared as often as is charged, and nothing left"


@dataclass
class ThreePartyVerdict:
    """asked: by round. outputs: what left an aggregator. refused: clients that shared in as many
    attempts at a round as are charged. may_stop: whether the training
    may have stopped."""

    folder: Path
    setup: Setup
    broken: list[Broken] = field(default_factory=list)
    asked: dict[Round, Question] = field(default_factory=dict)
    outputs: defaultdict[tuple[Round, str], set[bytes]] = field(
        default_factory=lambda: defaultdict(set)
    )
    heads: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    refused: defaultdict[Round, set[str]] = field(default_factory=lambda: defaultdict(set))
    complete: set[str] = field(default_factory=set)
    released: int = 0
    may_stop: bool = False

    # --- what the network tells ---

    def sent(self, message: Message) -> None:
        """Nothing is to be seen in shares."""

    def arrived(self, message: Message) -> None:
        """What clients are asked."""
        if message.name == "ask":
            *question, quorum = message.arguments
            invitation = read_invitation(*question, quorum=quorum)
            self.asked[invitation.run, invitation.question.round] = invitation.question

    def failed(self, message: Message, failure: Exception) -> None:
        """A party has only `FedRecError` to say no with."""
        self._say(DEFECTS, f"{message.receiver} at {message.name}: {failure!r}")

    def handled(self, message: Message, answer: Any) -> None:
        """What aggregators told and gave, and which clients refused."""
        if isinstance(answer, RoundStatus) and answer.ledger_head:
            self.heads[message.receiver].add(answer.ledger_head)
        elif message.name == "release" and isinstance(answer, bytes):
            run, round = message.arguments
            self.outputs[(run, round), message.receiver].add(answer)
        elif message.name == "ask" and read_answer(answer).refusal == Refusal.BUDGET:
            invitation = read_invitation(*message.arguments[:-1], quorum=message.arguments[-1])
            round = invitation.question.round
            self.refused[invitation.run, round].add(message.receiver)

    def stopped(self, party: str) -> None:
        """What it collected is gone, which is no news here."""

    def _say(self, rule: str, seen: str) -> None:
        self.broken.append(Broken(rule, seen))

    # --- what must hold in the end ---

    def judge(self, clients: Sequence[str], runs: Sequence[Trained]) -> list[Broken]:
        """Everything that does not hold."""
        for trained in runs:
            rounds = sorted(where for where in self.asked if where[0] == trained.run)
            for where in rounds:
                contents = [self.outputs[where, root] for root in self.setup.topology.aggregators]
                if any(len(seen) > 1 for seen in contents):
                    self._say(RELEASED_ONCE, f"two outputs of {where} left an aggregator")
                elif all(contents):
                    self._judge_round(trained, where, [next(iter(seen)) for seen in contents])
                elif where == rounds[-1] and self.refused[where]:
                    self._judge_stop(where, left=any(contents))
            self._judge_ledgers(rounds)
        return self.broken

    def _judge_round(self, trained: Trained, where: Round, contents: Sequence[bytes]) -> None:
        """The exact sum of a set of users of the stated size, and the noise of all three: nobody
        twice, no mask left over."""
        self.released += 1
        question = self.asked[where]
        plan = trained.prepared.plan
        read = [read_output(content, question) for content in contents]
        if len({(ticket, users) for ticket, users, _ in read}) != 1:
            self._say(ONE_ATTEMPT, f"three outputs of {where} are of several attempts")
            return
        users = read[0][1]
        quorum = Patience(min_share=trained.min_share).quorum(trained.num_users)
        if users < max(self.setup.min_cohort, quorum):
            self._say(QUORUM, f"{where} was released with {users} users")
        sums = [part.copy() for part in total([parts for *_, parts in read])]
        for source in parties(Streams(0), plan):
            for part, drawn in zip(sums, party_noise(question, plan, source), strict=True):
                part -= drawn
        if not any(_same(sums, chosen) for chosen in _subsets(_by_user(trained, question), users)):
            self._say(EXACT_PLUS_NOISE, f"{where} is no exact sum of {users} users")

    def _judge_stop(self, where: Round, *, left: bool) -> None:
        """A quorum is missed because clients shared in `ATTEMPTS` attempts, all for which checks
        are charged, and no output left."""
        self.may_stop = True
        if left:
            self._say(STOPS, f"{where} cannot be released, and an output of it left")
        for name in self.refused[where]:
            with closing(sqlite3.connect(self.folder / name / "ledger.sqlite")) as ledger:
                [shared] = ledger.execute(
                    "SELECT MAX(n) FROM (SELECT COUNT(*) AS n FROM attempts WHERE round = ? "
                    "GROUP BY run)",
                    where[1:],
                ).fetchone()
            if shared != ATTEMPTS:
                self._say(STOPS, f"{name} refused {where} after {shared} attempts of {ATTEMPTS}")

    def _judge_ledgers(self, rounds: Sequence[Round]) -> None:
        """Every release is charged once by each aggregator."""
        for name in self.setup.topology.aggregators:
            book = release_book(self.folder / name)
            charged = Counter((run, round, release) for run, round, release, _ in book.charges())
            expected = {
                (*where, spec.name) for where in rounds for spec in self.asked[where].releases
            }
            last = {key for key in expected if not self.outputs[key[:2], name]}
            if not expected - last <= set(charged) <= expected or set(charged.values()) - {1}:
                self._say(CHARGED_ONCE, f"{name} charged {dict(charged)}")
            if lost := self.heads[name] - book.heads:
                self._say(LEDGER_KEPT, f"{len(lost)} heads that {name} told are not in its chain")


def _by_user(trained: Trained, question: Question) -> list[list[Int64s]]:
    step = trained.prepared.steps[question.step]
    data = trained.data
    return [
        list(exact_sums(step(question, data.users_subset(np.array([k]))), question.blocks))
        for k in range(data.num_users)
    ]


def _subsets(by_user: Sequence[list[Int64s]], users: int) -> Iterator[list[Int64s]]:
    for some in itertools.combinations(by_user, users):
        yield [np.sum(parts, axis=0) for parts in zip(*some, strict=True)]


def _same(one: Sequence[Int64s], other: Sequence[Int64s]) -> bool:
    return all(np.array_equal(a.reshape(b.shape), b) for a, b in zip(one, other, strict=True))
