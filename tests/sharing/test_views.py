"""Everything that one aggregator hears in a round, of two data sets that could hardly differ more:
as long, told apart by chance."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from fedrec.arrays import UInt64s
from fedrec.federation.reports import RealBlock, bounded
from fedrec.randomness import SystemStreams
from fedrec.sharing import shares
from fedrec.sharing.layout import RowLayout, plain_numbers
from fedrec.sharing.one_of_three import OneOfThree
from fedrec.sharing.protocol import Standing
from fedrec.sharing.record import pack_shares
from tests.sharing.test_one_of_three import finish, opened, send
from tests.sharing.three_worlds import CHECKED, NAMES, USERS, Line, World

ROUNDS = 40
"""Of each data set; half of them train the classifier."""
_FOUND = 37
"""Right of 40: by chance with probability 10^-8."""


@dataclass
class Recorder(Line):
    """A line whose caller's ears are recorded."""

    def _heard(self, content: bytes) -> bytes:
        self.world.heard[self.caller] += content  # type: ignore[attr-defined]
        return content

    def standing(self, run: str, round: int) -> Standing:
        said = super().standing(run, round)
        listed = b"".join(user.packed for user in said.held or ())
        words = (
            said.nonce,
            said.ticket,
            listed,
            said.agreed,
            *(said.coin or ()),
            said.opened,
            said.accepted,
            said.ready,
        )
        self._heard(b"".join(words))
        return said

    def key(self, run: str, round: int, attempt: int) -> bytes:
        return self._heard(super().key(run, round, attempt))

    def openings(self, run: str, round: int, attempt: int) -> bytes:
        return self._heard(super().openings(run, round, attempt))

    def explicit(self, run: str, round: int, attempt: int, first: int, last: int) -> bytes:
        return self._heard(super().explicit(run, round, attempt, first, last))


class Recorded(World):
    """A checked round in which nobody has anything (`empty`), or everybody has three items."""

    def __init__(self, *, empty: bool) -> None:
        self.empty, self.heard = empty, [bytearray() for _ in range(3)]
        super().__init__(np.random.default_rng(0), plan=CHECKED)

    def party(self, i: int) -> OneOfThree:
        peers = {j: Recorder(self, i, j) for j in range(3) if j != i}
        return OneOfThree(i, NAMES, peers, self.disks[i], SystemStreams())

    def numbers(self, user: int, honest: UInt64s, shape: RowLayout) -> UInt64s:
        if not self.empty:
            return honest
        nothing = RealBlock(np.zeros(0), np.zeros((2, 2)))
        reports = bounded(
            np.zeros(2, np.int64), np.zeros(0, np.int32), [nothing], self.question.releases
        )
        return plain_numbers(reports, shape)

    def played(self) -> World:
        found = opened(self, needed=0)
        for user in range(USERS):
            send(self, user, found)
            for i, one in enumerate(self.sent(user, found)):
                self.heard[i] += pack_shares([one], i, found)
        finish(self, rounds=12)
        return self


def views() -> list[tuple[np.ndarray, np.ndarray]]:
    """By aggregator: (2, ROUNDS, bytes) of both data sets.

    Raises ValueError where two views differ in length."""
    played = [[Recorded(empty=empty).played() for _ in range(ROUNDS)] for empty in (True, False)]
    return [
        np.array(
            [
                [np.frombuffer(bytes(world.heard[i]), np.uint8) for world in worlds]
                for worlds in played
            ],
            np.float64,
        )  # type: ignore[attr-defined]
        for i in range(3)
    ]


def told_apart(view: np.ndarray) -> int:
    """How many of the rounds that it was not trained on a classifier gives to the right data set:
    the nearest mean of the 100 bytes whose means lie farthest apart."""
    train, test = view[:, : ROUNDS // 2], view[:, ROUNDS // 2 :]
    spread = train.std(axis=1).mean(axis=0) + 1.0
    best = np.argsort(np.abs(train[0].mean(axis=0) - train[1].mean(axis=0)) / spread)[-100:]
    means = (train / spread)[:, :, best].mean(axis=1)
    far = np.array(
        [
            [((one - mean) ** 2).sum() for mean in means]
            for one in itertools.chain(*(test / spread)[:, :, best])
        ]
    )
    return int((far.argmin(axis=1) == np.repeat([0, 1], ROUNDS // 2)).sum())


def test_what_an_aggregator_hears_is_as_long_and_tells_no_data_set_from_another() -> None:
    """Three classifiers of false alarm 10^-8 each."""
    for view in views():
        assert told_apart(view) < _FOUND


def test_explicit_shares_that_hide_nothing_are_found_by_the_classifier_at_both_who_hold_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        shares, "expanded", lambda seeds, length: np.zeros((len(seeds), length), np.uint64)
    )
    found = views()
    assert told_apart(found[0]) < _FOUND
    assert told_apart(found[1]) == told_apart(found[2]) == ROUNDS
