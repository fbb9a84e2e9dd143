"""Roots and leaves of three parties: they release what three aggregators would, once, and of the
same people, however messages and crashes fall, or one party lies."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedrec.errors import ProtocolError, UnreachableError
from fedrec.federation.leaves import TokenRange
from fedrec.federation.reports import exact_sums
from fedrec.privacy.calibration import Plan
from fedrec.randomness import Streams
from fedrec.sharing.protocol import Standing
from fedrec.sharing.record import read_output
from fedrec.sharing.root_of_three import (
    LISTED_BYTES,
    LeafOfThree,
    ListedRange,
    RangeSums,
    RangeTerm,
    RootOfThree,
    listed_range,
)
from fedrec.sharing.servers import total
from fedrec.sharing.shares import named_range
from tests.sharing.three_worlds import CHECKED, NAMES, PLAN, QUESTION, RUN, USERS, reports_of
from tests.sharing.tree_worlds import LEAVES, RANGES, Between, TreeWorld, tree

SEEDS = 15
"""Scripts in a run of the tests, by plan and kind; 40 were run once."""


def read(world: TreeWorld) -> list[tuple[bytes, int, tuple[np.ndarray, ...]]]:
    return [read_output(next(iter(left)), world.question) for left in world.left]


@pytest.mark.parametrize("plan", [PLAN, CHECKED], ids=["trusted-sites", "checked"])
def test_three_trees_release_the_sum_of_all_users_once(plan: Plan) -> None:
    world = tree(plan=plan)
    assert world.share(0) == [""] * 3
    world.finish()
    assert [len(left) for left in world.left] == [1, 1, 1]
    for i in range(3):
        world.restart(i)
    world.fetch()
    world.check()
    assert {users for _, users, _ in read(world)} == {USERS}
    assert [disk.charged for disk in world.disks] == [1, 1, 1]


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise, so that sums can be compared."""
    zeros = lambda question, plan, source: [  # noqa: E731
        np.zeros((spec.rows, spec.columns), np.int64) for spec in question.blocks
    ]
    monkeypatch.setattr("fedrec.sharing.one_of_three.party_noise", zeros)


def summed(world: TreeWorld) -> np.ndarray:
    (made,) = total([parts for *_, parts in read(world)])
    return made


def expected(*users: int) -> np.ndarray:
    (found,) = exact_sums(reports_of(list(users)), QUESTION.blocks)
    return found


@pytest.mark.usefixtures("silence")
def test_ranges_that_all_list_alike_are_summed_and_no_other() -> None:
    world = tree()
    # the third root has no term of the second range
    world.term = lambda place, term: (  # type: ignore[method-assign]
        replace(term, listed=replace(term.listed, range=TokenRange(1, 2)))
        if place == 2 and term.listed.range == RANGES[1]
        else term
    )
    world.finish()
    assert {users for _, users, _ in read(world)} == {3}
    assert np.array_equal(summed(world), expected(0, 2, 4))


@pytest.mark.usefixtures("silence")
def test_a_range_whose_leaf_was_replaced_is_left_out_and_counts_once_in_the_next_attempt() -> None:
    world = tree(needed=1)
    world.restart_leaf((1, 0))
    world.finish()
    assert np.array_equal(summed(world), expected(1, 3))

    world = tree(needed=4)
    world.restart_leaf((1, 0))
    world.finish()
    assert not any(world.left), "a cohort that is too small"
    assert not any(disk.charged for disk in world.disks)
    world.begin(2, needed=4)
    world.go_on(2)
    for user in range(USERS):
        assert world.share(user) == [""] * 3
    world.finish()
    assert np.array_equal(summed(world), expected(*range(USERS)))


def test_what_a_root_gives_away_is_masked_and_noised() -> None:
    """Two trainings of one term: with its own noise and mask each output is another, and no output
    less the term is near the noise's size."""
    world = tree()
    world.finish()
    for place, (_, _, (output,)) in enumerate(read(world)):
        term = sum(np.frombuffer(world.given[place, number, 1], np.uint64) for number in range(2))
        left = (output.ravel() - term).view(np.int64).astype(float)
        # uniform over 2^64: each number below 2^56 with probability 2^-7
        assert np.mean(np.abs(left) < 2.0**56) < 0.5


def test_a_leaf_that_ends_after_its_term_was_taken_changes_nothing() -> None:
    world = tree()
    for place in range(3):
        world.advance(place)
    world.close_leaves()
    world.go_on()
    for leaf in LEAVES:
        world.restart_leaf(leaf)
    world.finish()
    world.check()
    assert {users for _, users, _ in read(world)} == {USERS}


@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("place", range(3))
def test_a_root_that_ends_at_any_durable_step_releases_once_and_of_one_set_of_people(
    place: int, after: bool, at: int
) -> None:
    world = TreeWorld(np.random.default_rng(3))
    world.disks[place].at = at
    world.disks[place].after = after
    for attempt in range(1, 5):
        world.begin(attempt)
        world.go_on(2)
        for user in range(USERS):
            world.share(user)
        world.finish()
        world.check()
    assert all(world.left)
    assert [disk.charged for disk in world.disks] == [1, 1, 1]


# --- a leaf's rules ---


def test_a_leaf_takes_users_of_its_own_range_alone() -> None:
    world = tree()
    found = world.leaves[0, 0].standing(RUN, 1).ticket
    assert world.leaves[0, 0].receive(RUN, 1, found, world.sent(1, found)[0]) == "unknown-user"
    assert world.leaves[0, 0].receive(RUN, 1, found, world.sent(0, found)[0]) == ""


def test_a_leafs_ticket_names_range_and_attempt() -> None:
    named = [
        named_range(of, first, last, attempt)
        for of in (bytes(32), b"1" * 32)
        for first, last in ((0, 1), (1, 1), (0, 2))
        for attempt in (1, 2)
    ]
    assert len(set(named)) == len(named)
    nonces = iter(range(1, 100))
    tickets = set()
    for of in (TokenRange(0, 1), TokenRange(0, 2)):
        for attempt in (1, 2):
            world = TreeWorld(np.random.default_rng(next(nonces)))
            for leaf in [(place, 0) for place in range(3)]:
                world.leaves[leaf].range = of
                world.open_leaf(leaf, attempt)
                # the same nonces everywhere: what else the ticket names is compared
                world.leaves[leaf]._attempts[RUN, 1].nonce = bytes([leaf[0]]) * 32
            world.leaves[0, 0].advance(RUN, 1)
            tickets.add(world.leaves[0, 0].standing(RUN, 1).ticket)
    assert len(tickets) == 4
    assert b"" not in tickets


def test_a_term_is_given_once_it_is_final_and_stays_whatever_sisters_say() -> None:
    world = tree(plan=CHECKED)
    leaf = world.leaves[0, 0]
    assert leaf.term(RUN, 1, 1) is None
    with pytest.raises(ProtocolError, match="not open here"):
        leaf.term(RUN, 1, 2)
    world.close_leaves()
    seen = [leaf.term(RUN, 1, 1)]
    for _ in range(8):
        for each in world.leaves.values():
            each.advance(RUN, 1)
        seen.append(leaf.term(RUN, 1, 1))
    given = [term for term in seen if term is not None]
    assert given[0].listed.people == 3
    world.restart_leaf((1, 0))
    world.leaves[1, 0].open(RUN, world.question, world.plan, b"q" * 32, attempt=2)
    leaf.advance(RUN, 1)
    again = leaf.term(RUN, 1, 1)
    assert again is not None
    assert all(np.array_equal(a, b) for a, b in zip(given[0].blocks, again.blocks, strict=True))


def test_a_leaf_passes_explicit_shares_on_after_its_own_term_is_final(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = tree()
    asked = [0]
    passed_on = Between.explicit

    def late(line: Between, *piece: Any) -> bytes:
        asked[0] += 1
        if asked[0] < 8:  # until the second leaves have their terms
            raise UnreachableError("lost", "Ask again.")
        return passed_on(line, *piece)

    monkeypatch.setattr(Between, "explicit", late)
    world.close_leaves()
    for _ in range(8):
        for leaf in world.leaves.values():
            with suppress(UnreachableError):
                leaf.advance(RUN, 1)
    assert asked[0] > 8
    assert all(leaf.term(RUN, 1, 1) is not None for leaf in world.leaves.values())


def test_a_leaf_begins_an_attempt_once() -> None:
    world = tree()
    world.restart_leaf((0, 0))
    with pytest.raises(ProtocolError, match="begun before"):
        world.leaves[0, 0].open(RUN, QUESTION, PLAN, b"q" * 32, attempt=1)


def test_keys_of_leaves_are_of_one_range_and_one_attempt() -> None:
    world = tree()
    keys = {leaf._attempts[RUN, 1].key for leaf in world.leaves.values()}
    world.begin(2)
    keys |= {leaf._attempts[RUN, 1].key for leaf in world.leaves.values()}
    keys |= {root._attempts[RUN, 1].key for root in world.parties}
    assert len(keys) == 2 * len(LEAVES) + 3


# --- a root's rules ---

LISTED = ListedRange(RANGES[0], b"t" * 32, b"d" * 32, 3)
BLOCKS = (np.arange(16, dtype=np.uint64).reshape(4, 4),)


def sums() -> RangeSums:
    return RangeSums(RANGES, [(4, 4)])


def test_a_listed_range_reads_back_and_every_part_of_it_counts() -> None:
    assert listed_range(LISTED.packed) == LISTED
    others = [
        replace(LISTED, range=RANGES[1]),
        replace(LISTED, ticket=bytes(32)),
        replace(LISTED, summed=bytes(32)),
        replace(LISTED, people=4),
    ]
    assert len({one.packed for one in [LISTED, *others]}) == 5
    for other in others:
        assert sums().alike([[LISTED], [LISTED], [other]]) == ()
    with pytest.raises(ValueError, match=str(LISTED_BYTES)):
        listed_range(LISTED.packed[1:])


def test_a_range_counts_once_and_another_term_of_it_is_refused() -> None:
    batch = sums()
    batch.take(RangeTerm(LISTED, 1, BLOCKS))
    batch.take(RangeTerm(LISTED, 1, BLOCKS))
    assert batch.everybody() == (LISTED,)
    assert batch.count(batch.everybody()) == 3
    with pytest.raises(ProtocolError, match="none to take"):
        batch.take(RangeTerm(replace(LISTED, summed=bytes(32)), 1, BLOCKS))
    with pytest.raises(ProtocolError, match="none to take"):
        batch.take(RangeTerm(replace(LISTED, range=TokenRange(0, 1)), 1, BLOCKS))
    with pytest.raises(ProtocolError, match="other shapes"):
        sums().take(RangeTerm(LISTED, 1, (BLOCKS[0][:3],)))


def test_a_root_takes_terms_of_its_attempt_alone_and_none_after_it_listed_them() -> None:
    world = tree()
    for place in range(3):
        world.advance(place)
    root = world.parties[0]
    with pytest.raises(ProtocolError, match="not open"):
        root.take(RUN, 1, RangeTerm(LISTED, 2, BLOCKS))  # type: ignore[attr-defined]
    root.close(RUN, 1)
    with pytest.raises(ProtocolError, match="after the list"):
        root.take(RUN, 1, RangeTerm(LISTED, 1, BLOCKS))  # type: ignore[attr-defined]


def test_a_roots_ranges_hold_every_pseudonym_once() -> None:
    world = tree()
    with pytest.raises(ValueError, match="two leaves own"):
        RootOfThree(
            0, NAMES, world.parties[0]._peers, world.disks[0], Streams(1),
            [TokenRange(0, 0x8000), TokenRange(0x8000, 0xFFFF)],
        )  # fmt: skip


def test_a_root_takes_no_shares_and_a_leaf_has_no_output() -> None:
    world = tree()
    for place in range(3):
        world.advance(place)
    found = world.parties[0].standing(RUN, 1).ticket
    assert world.parties[0].receive(RUN, 1, found, world.sent(0, found)[0]) == "another-ticket"
    with pytest.raises(ProtocolError):
        world.parties[1].explicit(RUN, 1, 1, 0, 1, caller=2)
    assert not hasattr(LeafOfThree, "output")


# --- scripts of losses, crashes and a lying party ---


class LyingTree(TreeWorld):
    """Party 0 says one honest root and leaf one thing, and the others another: in lists, digests,
    tickets, nonces, attempts, openings."""

    def says(self, level: int, caller: int, callee: int, said: Standing) -> Standing:
        if callee != 0 or self.rng.random() < 0.95:
            return said
        here = self.parties if level < 0 else [self.leaves[i, level] for i in range(3)]
        own = here[caller].standing(RUN, 1)
        other = here[3 - caller].standing(RUN, 1)
        return [
            replace(said, held=said.held[1:] if said.held else ()),
            replace(said, held=own.held),
            replace(said, agreed=own.agreed, ticket=own.ticket, ready=own.ready or bytes(32)),
            replace(said, agreed=other.agreed, ticket=other.ticket, ready=other.ready or bytes(32)),
            replace(said, published=not said.published),
            replace(said, attempt=said.attempt + 1),
            replace(said, nonce=self.rng.bytes(32)),
            replace(said, accepted=own.accepted, ready=own.ready or bytes(32)),
            replace(said, accepted=other.accepted, opened=self.rng.bytes(32)),
            replace(said, coin=(self.rng.bytes(32), self.rng.bytes(32))),
        ][int(self.rng.integers(10))]

    def term(self, place: int, term: RangeTerm) -> RangeTerm:
        if place or self.rng.random() < 0.5:
            return term
        listed = [
            replace(term.listed, people=term.listed.people + 7),
            replace(term.listed, summed=self.rng.bytes(32)),
            replace(term.listed, range=RANGES[int(self.rng.integers(2))]),
        ]
        return replace(term, listed=listed[int(self.rng.integers(3))])


def script(seed: int, kind: type[TreeWorld], plan: Plan) -> TreeWorld:
    """One round, checked after every step."""
    rng = np.random.default_rng(seed)
    honest = (0, 1, 2) if kind is TreeWorld else (1, 2)
    world = kind(rng, loss=float(rng.choice([0.0, 0.1])), plan=plan)
    attempt = 0
    crashes = float(rng.choice([0.0, 0.01, 0.03]))
    for step in range(160):
        standings = [party.standing(RUN, 1) for party in world.parties]
        over = not all(said.nonce or said.ready for said in standings)
        if over or rng.random() < 0.01:
            attempt = attempt + 1
            closing = step + 15 + int(rng.integers(15))
            world.begin(attempt)
        if rng.random() < crashes:
            disk = world.disks[int(rng.integers(3))]
            disk.at = int(rng.integers(1, 4))
            disk.after = bool(rng.random() < 0.5)
        if rng.random() < crashes:
            world.restart_leaf(LEAVES[int(rng.integers(len(LEAVES)))])
        if rng.random() < crashes / 2:
            world.restart(int(rng.integers(3)))
        if rng.random() < 0.6:
            world.share(int(rng.integers(USERS)), tuple(j for j in range(3) if rng.random() < 0.95))
        for leaf in LEAVES:
            if step >= closing and rng.random() < 0.5:
                world.leaves[leaf].close(RUN, 1)
            if rng.random() < 0.6:
                _quietly(world, leaf)
        place = int(rng.integers(3))
        world.hand_over(place)
        if step >= closing + 12 and rng.random() < 0.3:
            world.parties[place].close(RUN, 1)
        world.advance(int(rng.integers(3)))
        world.fetch()
        world.check(honest)
        _same_people(world, honest)
    return world


def _quietly(world: TreeWorld, leaf: tuple[int, int]) -> None:
    with suppress(ProtocolError):
        world.leaves[leaf].advance(RUN, 1)


def _same_people(world: TreeWorld, honest: tuple[int, ...]) -> None:
    """Honest leaves that list a range alike summed users whose hashes are the same."""
    for number in range(len(RANGES)):
        found: dict[tuple[bytes, bytes], set[object]] = {}
        for place in honest:
            attempt = world.leaves[place, number]._attempts.get((RUN, 1))
            if attempt is not None and attempt.summed:
                key = attempt.ticket, attempt.summed
                users = attempt.batch.accepted or attempt.alike  # type: ignore[attr-defined]
                found.setdefault(key, set()).add(users)
        assert all(len(one) == 1 for one in found.values())


@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        pytest.param(TreeWorld, PLAN, id="honest-trusted-sites"),
        pytest.param(TreeWorld, CHECKED, id="honest-checked", marks=pytest.mark.slow),
        pytest.param(LyingTree, PLAN, id="lying-trusted-sites", marks=pytest.mark.slow),
        pytest.param(LyingTree, CHECKED, id="lying-checked"),
    ],
)
def test_however_messages_and_crashes_fall_trees_release_one_sum_of_one_set_of_people(
    kind: type[TreeWorld], plan: Plan
) -> None:
    ended = [script(seed, kind, plan) for seed in range(SEEDS)]
    # what is looked at happens: released by all, by none, and after several attempts
    assert sum(all(world.left[i] for i in (1, 2)) for world in ended) >= 2
    assert any(not any(world.left) for world in ended)
    assert any(world.disks[1].begun > 1 and world.left[1] for world in ended)


def test_a_party_that_splits_the_roots_lists_makes_nobody_publish() -> None:
    """It shows root 1 two ranges and root 2 one: their sums would differ by a range of people."""
    world = tree()

    def says(level: int, caller: int, callee: int, said: Standing) -> Standing:
        if (level, callee) != (-1, 0):
            return said
        if caller == 2 and said.held:
            said = replace(said, held=said.held[:1])
        own = world.parties[caller].standing(RUN, 1)
        return replace(said, agreed=own.agreed, ready=b"x" * 32) if own.agreed else said

    world.says = says  # type: ignore[method-assign]
    world.finish()
    assert not world.left[1]
    assert not world.left[2]
    assert not any(disk.output for disk in world.disks[1:])


def test_a_leaf_that_splits_its_sisters_lists_has_its_range_left_out() -> None:
    world = tree()

    def says(level: int, caller: int, callee: int, said: Standing) -> Standing:
        if (level, callee, caller) == (0, 0, 2) and said.held:
            return replace(said, held=said.held[:1])
        return said

    world.says = says  # type: ignore[method-assign]
    world.finish()
    assert {users for _, users, _ in read(world)} == {2}  # of the other range


def test_a_lie_about_how_many_people_a_range_has_drops_it() -> None:
    world = tree()
    world.term = lambda place, term: (  # type: ignore[method-assign]
        replace(term, listed=replace(term.listed, people=1_000))
        if place == 0 and term.listed.range == RANGES[0]
        else term
    )
    world.finish()
    assert {users for _, users, _ in read(world)} == {2}
