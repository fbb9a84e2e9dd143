"""Verdict on a run of three aggregators, by code of its own:

- what leaves an aggregator for a round is the same bytes for ever, and of one attempt at all three;
- the three together are the exact sum of a set of users of the stated size, and the noise of all
  three: nobody twice, no mask left over;
- a round has its quorum, every ledger charged every release once and published every round once;
- a training may stop only where clients are checked: at a round in which a quorum is missed because
  clients shared in `ATTEMPTS` attempts, all for which checks are charged, and of which no output
  left.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedrec.federation.hostile_clients import ATTEMPTS
from fedrec.federation.messages import Question
from fedrec.federation.releases import parties, party_noise
from fedrec.federation.round_driver import Patience
from fedrec.federation.sums import exact_sums
from fedrec.randomness import Streams
from fedrec.recipes import Prepared
from fedrec.sharing.record import read_output
from fedrec.sharing.servers import total
from fedrec_aggregator.chain import Charge
from fedrec_simulations.faults.simulator import population

PLACES = 3


@dataclass
class Record:
    """What was seen of a run in `folder`, and the rules that it broke, in words.

    asked: by round. outputs: what left an aggregator, by its place and the round. refused: clients
    that shared in as many attempts at a round as are charged, by round. stopped: the round at which
    the training did, -1 for none.
    """

    folder: Path
    prepared: Prepared
    min_share: float
    asked: dict[int, Question] = field(default_factory=dict)
    outputs: dict[tuple[int, int], set[bytes]] = field(default_factory=dict)
    refused: dict[int, set[str]] = field(default_factory=dict)
    stopped: int = -1
    broken: list[str] = field(default_factory=list)

    def left(self, place: int, round: int, content: bytes) -> None:
        """An output leaves."""
        seen = self.outputs.setdefault((place, round), set())
        seen.add(content)
        if len(seen) > 1:
            self.broken.append(f"aggregator {place} gave two outputs of round {round}")

    def judge_rounds(self) -> None:
        """Every round that was asked for, by what left of it."""
        for round, question in self.asked.items():
            contents = [
                next(iter(self.outputs.get((place, round), {b""}))) for place in range(PLACES)
            ]
            if round == self.stopped:
                self._judge_stop(round, contents)
            elif all(contents):
                self._judge_round(question, contents)
            else:
                self.broken.append(f"round {round} was not released by all three")

    def judge_charges(self, place: int, charges: Sequence[Charge]) -> None:
        """Every release of the rounds that were asked for, in the ledger of one aggregator."""
        charged = Counter((charge.round, charge.release) for charge in charges)
        expected = {
            (round, spec.name)
            for round, question in self.asked.items()
            for spec in question.releases
        }
        last = {key for key in expected if key[0] == self.stopped}
        if not expected - last <= set(charged) <= expected or not set(charged.values()) <= {1}:
            self.broken.append(f"aggregator {place} charged {dict(charged)}")

    def _judge_round(self, question: Question, contents: Sequence[bytes]) -> None:
        read = [read_output(content, question) for content in contents]
        if len({(ticket, users) for ticket, users, _ in read}) != 1:
            self.broken.append(f"three outputs of round {question.round} are of several attempts")
            return
        users, plan = read[0][1], self.prepared.plan
        if users < max(2, Patience(min_share=self.min_share).quorum(population().num_users)):
            self.broken.append(f"round {question.round} was released with {users} users")
        sums = [part.copy() for part in total([parts for *_, parts in read])]
        for source in parties(Streams(0), plan):
            for part, drawn in zip(sums, party_noise(question, plan, source), strict=True):
                part -= drawn
        if not any(_same(sums, chosen) for chosen in _subsets(self._by_user(question), users)):
            self.broken.append(f"round {question.round} is no exact sum of {users} users")

    def _judge_stop(self, round: int, contents: Sequence[bytes]) -> None:
        if any(contents):
            self.broken.append(f"round {round} cannot be released, and an output of it left")
        for name in self.refused[round]:
            with closing(sqlite3.connect(self.folder / name / "ledger.sqlite")) as ledger:
                (shared,) = ledger.execute(
                    # with leaves, by range
                    "SELECT MAX(n) FROM (SELECT COUNT(*) AS n FROM attempts WHERE round = ? "
                    "GROUP BY run)",
                    (round,),
                ).fetchone()
            if shared != ATTEMPTS:
                self.broken.append(
                    f"{name} refused round {round} after {shared} attempts of {ATTEMPTS}"
                )

    def _by_user(self, question: Question) -> list[list[npt.NDArray[np.int64]]]:
        step, data = self.prepared.steps[question.step], population()
        return [
            list(exact_sums(step(question, data.users_subset(np.array([k]))), question.blocks))
            for k in range(data.num_users)
        ]


def _subsets(
    by_user: Sequence[list[npt.NDArray[np.int64]]], users: int
) -> Iterator[list[npt.NDArray[np.int64]]]:
    for some in itertools.combinations(by_user, users):
        yield [np.sum(parts, axis=0) for parts in zip(*some, strict=True)]


def _same(one: Sequence[npt.NDArray[np.int64]], other: Sequence[npt.NDArray[np.int64]]) -> bool:
    return all(np.array_equal(a.reshape(b.shape), b) for a, b in zip(one, other, strict=True))
