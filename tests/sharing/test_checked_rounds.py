"""Rounds with checks of hostile clients: who is summed, and what an aggregator that lies can make
of it."""

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedrec.arrays import UInt64s
from fedrec.errors import ProtocolError
from fedrec.sharing.layout import RowLayout, plain_numbers, plan_layout, with_own_noise
from fedrec.sharing.protocol import Standing
from fedrec.sharing.record import noise_keys, read_output
from fedrec.sharing.servers import coin_term
from fedrec.sharing.shared_users import TOO_FEW
from tests.sharing.test_one_of_three import begun, finish
from tests.sharing.three_worlds import CHECKED, RUN, USERS, World, reports_of

LONG = {1, 3}


class WithCheaters(World):
    """Users of `LONG` share a coefficient of 2^40."""

    def numbers(self, user: int, honest: UInt64s, shape: RowLayout) -> UInt64s:
        if user in LONG:
            honest[:, 0] = np.uint64(2**40)
        return honest


def run(kind: type[World] = World, *, needed: int = 1) -> World:
    world, _ = begun(*range(USERS), kind=kind, plan=CHECKED, needed=needed)
    finish(world, 20)
    return world


def ended(world: World) -> set[str]:
    seen = (party.progress(RUN, 1) for party in world.parties)
    return {progress.ended for progress in seen if progress is not None and progress.ended}


def test_a_checked_round_of_honest_users_is_the_sum_of_them_all() -> None:
    world = run()
    world.check()
    assert {read_output(next(iter(left)), world.question)[1] for left in world.left} == {USERS}


def test_users_who_are_refused_are_taken_off_the_sums_again() -> None:
    world = run(WithCheaters)
    honest = run()
    counted = [read_output(next(iter(left)), world.question) for left in world.left]
    assert {users for _, users, _ in counted} == {USERS - len(LONG)}
    made = sum(parts[0].astype(object) for *_, parts in counted)
    wrapped = (
        np.array([[(int(x) + 2**63) % 2**64 - 2**63 for x in row] for row in made], float)
        * world.question.blocks[0].step
    )
    world.check()
    # 2^40 would be seen
    assert np.abs(wrapped).max() < 8 * math.sqrt(1.5) / CHECKED["s"].mu * 1.02 + USERS
    assert all(honest.left)


def test_where_too_few_pass_nothing_leaves() -> None:
    world = run(WithCheaters, needed=USERS - 1)
    assert not any(world.left)
    assert TOO_FEW in ended(world)
    assert not any(disk.charged for disk in world.disks)


@pytest.mark.parametrize("word", ["coin", "opened", "accepted"])
@pytest.mark.parametrize("to", [(1,), (1, 2)])
def test_an_aggregator_that_lies_to_one_or_both_about_a_check_ends_the_attempt_and_nothing_leaves(
    word: str, to: tuple[int, ...]
) -> None:
    class Lying(World):
        def lies(self, caller: int, callee: int, said: Standing) -> Standing:
            if callee or caller not in to or not getattr(said, word):
                return said
            return replace(
                said,
                **{word: (bytes(32), said.coin[1]) if word == "coin" and said.coin else bytes(32)},
            )  # type: ignore[arg-type]

    world = run(Lying)
    assert not any(world.left)
    assert ended(world)
    # with another coin projections would not add up to C x, and every honest user would be refused
    if word == "coin":
        assert "peers did not agree on the coin" in ended(world)


def test_openings_that_differ_from_one_honest_aggregator_to_the_other_give_them_other_verdicts_and_nothing_leaves() -> None:  # fmt: skip
    """Aggregator 0 tells 1 and 2 different terms: each takes what it said for true, judges
    otherwise, and compares."""

    class TwoFaced(World):
        def opened(self, callee: int, content: bytes) -> bytes:
            self.told = getattr(self, "told", 0) + (callee == 0)
            return content if callee or self.told % 2 else bytes(len(content))

        def lies(self, caller: int, callee: int, said: Standing) -> Standing:
            if callee == 0 and said.opened and caller == 2:
                return replace(said, opened=hashlib.sha256(bytes(self.size())).digest())
            return said

        def size(self) -> int:
            return len(self.parties[0].openings(RUN, 1, 1))

    world = run(TwoFaced)
    assert not any(world.left)


def test_nobody_tells_a_term_of_the_coin_or_opens_before_all_three_fixed_the_users() -> None:
    world, _ = begun(0, plan=CHECKED)
    for party in world.parties[:2]:
        party.close(RUN, 1)
    for _ in range(5):
        for i in range(3):
            world.advance(i)
    assert all(party.standing(RUN, 1).coin is None for party in world.parties)
    for party in world.parties:
        with pytest.raises(ProtocolError, match="opened nothing"):
            party.openings(RUN, 1, 1)
    world.parties[2].close(RUN, 1)
    world.advance(0)
    # the others have not said that they agree
    assert world.parties[0].standing(RUN, 1).coin is None
    finish(world, 20)
    assert all(world.left)


def test_the_coin_is_of_all_three_keys_the_ticket_and_the_batch() -> None:
    terms = {
        coin_term(key, ticket, batch)
        for key in (b"1" * 32, b"2" * 32)
        for ticket in (b"a" * 32, b"b" * 32)
        for batch in (b"c", b"d")
    }
    assert len(terms) == 8


def test_an_attempt_opens_once_and_the_next_one_is_under_other_noise() -> None:
    """With the noise of one attempt in the next, the difference of two openings is free of it:
    thirteen attempts give a report away."""
    world = World(np.random.default_rng(1), plan=CHECKED)
    shape = plan_layout(world.question, CHECKED)
    row = plain_numbers(reports_of([0], world.question), shape)
    drawn = []
    for ticket in (b"a" * 32, b"b" * 32):
        keys = noise_keys(row, [b"r" * 16], ticket, secret=b"s" * 32)
        assert keys == noise_keys(row, [b"r" * 16], ticket, secret=b"s" * 32)
        drawn.append(with_own_noise(row, shape, keys))
    noise = shape.checked.noise  # type: ignore[union-attr]
    assert (drawn[0][:, : noise.start] == drawn[1][:, : noise.start]).all()
    assert (drawn[0][:, noise] != drawn[1][:, noise]).all()
    row[0, 0] += np.uint64(1)
    assert noise_keys(row, [b"r" * 16], b"a" * 32, secret=b"s" * 32) != noise_keys(
        row - row, [b"r" * 16], b"a" * 32, secret=b"s" * 32
    )


def test_what_aggregators_tell_each_other_of_checks_is_uniform_but_for_its_sum() -> None:
    """One aggregator's openings of two data sets, by chi-square of bytes: each below 10^-6 once in
    a million."""
    for kind in (World, WithCheaters):
        world = run(kind)
        for party in world.parties:
            told = np.frombuffer(party.openings(RUN, 1, 1), np.uint8)
            counts = np.bincount(told, minlength=256)
            assert stats.chisquare(counts).pvalue > 1e-6
