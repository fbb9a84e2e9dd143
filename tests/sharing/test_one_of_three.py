"""Three aggregators agree on users, publish once, and give nothing away however messages and
crashes fall, or one of them lies."""

import itertools
import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from fedrec.errors import ProtocolError
from fedrec.federation.reports import exact_sums
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import SystemStreams
from fedrec.sharing.holding import Holding
from fedrec.sharing.layout import layout, plain_numbers
from fedrec.sharing.one_of_three import OneOfThree
from fedrec.sharing.protocol import Standing
from fedrec.sharing.record import SharedUser, addressed, read_output
from fedrec.sharing.servers import ShareSums, total
from fedrec.sharing.shared_users import TOO_FEW, UNEQUAL
from fedrec.sharing.shares import Committed, commitment, held_alike, ticket
from tests.sharing.three_worlds import (
    CHECKED,
    DIGEST,
    NAMES,
    PLAN,
    QUESTION,
    RUN,
    USERS,
    Line,
    World,
    reports_of,
)

SEEDS = 25
"""Scripts in a run of the tests; 1,000 were run once."""


def opened(world: World, attempt: int = 1, needed: int = 1) -> bytes:
    for i in range(3):
        assert world.open(i, attempt, needed)
    for i in range(3):
        world.advance(i)
    (found,) = set(world.tickets())
    assert found
    return found


def send(world: World, user: int, found: bytes, to: tuple[int, ...] = (0, 1, 2)) -> list[str]:
    sent = world.sent(user, found)
    return [world.parties[i].receive(RUN, 1, found, sent[i]) for i in to]


def finish(world: World, rounds: int = 6) -> None:
    for party in world.parties:
        party.close(RUN, 1)
    for _ in range(rounds):
        for i in range(3):
            world.advance(i)
    world.fetch()


def begun(
    *users: int, kind: type[World] = World, plan: Plan = PLAN, needed: int = 1
) -> tuple[World, bytes]:
    """A world in its first attempt, to which these users have sent, and its ticket."""
    world = kind(np.random.default_rng(1), plan=plan)
    found = opened(world, needed=needed)
    for user in users:
        assert send(world, user, found) == [""] * 3
    return world, found


def test_three_outputs_are_the_sums_of_all_users_and_the_same_bytes_for_ever() -> None:
    world, found = begun(*range(USERS))
    assert send(world, 0, found) == [""] * 3  # the same again is the same
    finish(world)
    assert [len(left) for left in world.left] == [1, 1, 1]
    for i in range(3):
        world.restart(i)
    world.fetch()
    world.check()


class Lying(World):
    """Aggregator 0 says anything in its standing, one time in three; what it gives out is its own
    affair."""

    def lies(self, caller: int, callee: int, said: Standing) -> Standing:
        if callee or self.rng.random() > 1 / 3:
            return said
        own = self.parties[caller].standing(RUN, 1)
        other = self.parties[3 - caller].standing(RUN, 1)
        return [
            replace(said, held=said.held[1:] if said.held else ()),
            replace(said, agreed=own.agreed, ticket=own.ticket, ready=own.ready or bytes(32)),
            replace(said, agreed=other.agreed, ticket=other.ticket, ready=other.ready or bytes(32)),
            replace(said, published=not said.published),
            replace(said, attempt=said.attempt + 1),
            replace(said, nonce=self.rng.bytes(32)),
            replace(said, accepted=own.accepted, ready=own.ready or bytes(32)),
            replace(said, accepted=other.accepted, opened=self.rng.bytes(32)),
            replace(said, coin=(self.rng.bytes(32), self.rng.bytes(32))),
        ][int(self.rng.integers(9))]


def script(seed: int, kind: type[World] = World, plan: Plan = PLAN) -> World:
    """One round under a server that opens the next attempt where one has ended, and sometimes too
    early; checked after every step."""
    rng = np.random.default_rng(seed)
    honest = (0, 1, 2) if kind is World else (1, 2)
    world = kind(rng, loss=float(rng.choice([0.0, 0.1, 0.3])), plan=plan)
    attempt = 0
    crashes = float(rng.choice([0.0, 0.02, 0.06]))
    for _ in range(150):
        i = int(rng.integers(3))
        standings = [party.standing(RUN, 1) for party in world.parties]
        if not all(said.nonce or said.ready for said in standings) or rng.random() < 0.01:
            attempt += 1
            for j in rng.permutation(3):
                world.open(int(j), attempt)
        if rng.random() < crashes:
            world.disks[i].at = int(rng.integers(1, 4))
            world.disks[i].after = bool(rng.random() < 0.5)
        if rng.random() < crashes / 2:
            world.restart(i)
        tickets = {said.ticket for said in standings}
        if len(tickets) == 1 and (found := tickets.pop()) and rng.random() < 0.4:
            send(
                world,
                int(rng.integers(USERS)),
                found,
                tuple(j for j in range(3) if rng.random() < 0.9),
            )
        if rng.random() < 0.1:
            world.parties[i].close(RUN, 1)
        world.advance(int(rng.integers(3)))
        world.fetch()
        world.check(honest)
    return world


@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        pytest.param(World, PLAN, id="honest-trusted-sites"),
        pytest.param(World, CHECKED, id="honest-checked", marks=pytest.mark.slow),
        pytest.param(Lying, PLAN, id="lying-trusted-sites", marks=pytest.mark.slow),
        pytest.param(Lying, CHECKED, id="lying-checked"),
    ],
)
def test_however_messages_and_crashes_fall_no_output_is_of_other_users_or_a_second_one(
    kind: type[World], plan: Plan
) -> None:
    ended = [script(seed, kind, plan) for seed in range(SEEDS)]
    # what is looked at happens: rounds that all released, that nobody did, and several attempts
    assert any(not any(world.left[1:]) for world in ended)
    assert kind is Lying or any(w.disks[1].begun > 1 and all(w.left) for w in ended)


def test_after_an_attempt_that_a_crash_ended_the_next_one_is_released() -> None:
    world, found = begun(0)
    world.restart(1)
    second = opened(world, 2)
    assert second != found
    assert send(world, 0, found) == ["another-ticket"] * 3
    assert send(world, 1, second) == [""] * 3
    finish(world)
    world.check()
    assert all(world.left)


def test_users_whom_one_aggregator_lacks_are_summed_by_none() -> None:
    world, found = begun(0)
    send(world, 1, found, (0, 1))
    finish(world)
    assert {read_output(next(iter(left)), QUESTION)[1] for left in world.left} == {1}


def test_a_cohort_that_is_too_small_is_not_released() -> None:
    world, _ = begun(0, 1, needed=3)
    finish(world)
    assert not any(world.left)
    assert not any(disk.charged for disk in world.disks)


# --- one aggregator lies ---


class Splitting(World):
    """Aggregator 0 shows 1 and 2 different lists of users: 2 does not hear of the last one."""

    def lies(self, caller: int, callee: int, said: Standing) -> Standing:
        if (caller, callee) == (2, 0) and said.held:
            return replace(said, held=said.held[:-1])
        return said


class Echoing(Splitting):
    """Aggregator 0 splits, and says to each of the others what it wants to hear."""

    def lies(self, caller: int, callee: int, said: Standing) -> Standing:
        said = super().lies(caller, callee, said)
        if callee == 0 and (own := self.parties[caller].standing(RUN, 1)).agreed:
            return replace(
                said,
                agreed=own.agreed,
                ready=b"x" * 32 if own.ready else b"",
                ticket=own.ticket,
                nonce=said.nonce or b"",
            )
        return said


@pytest.mark.parametrize("kind", [Splitting, Echoing])
def test_honest_aggregators_never_sum_different_users(kind: type[World]) -> None:
    """Two sums that differ by one user give that user's report away, whatever the noise
    (docs/three-party.md)."""
    world, _ = begun(*range(USERS), kind=kind)
    finish(world)
    assert world.left[1:] == [set(), set()]
    assert not any(disk.output or disk.charged for disk in world.disks[1:])


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_in_whatever_order_they_ask_both_honest_ones_find_whose_list_is_another(
    order: tuple[int, ...],
) -> None:
    """Aggregator 0 shows an empty list, and ends its own attempt as the two others agree on
    nobody."""
    world, _ = begun(*range(USERS))
    world.lies = lambda caller, callee, said: said if callee else replace(said, held=())  # type: ignore[method-assign]
    for party in world.parties:
        party.close(RUN, 1)
    for i in 3 * order:
        world.advance(i)
    for party in world.parties[1:]:
        found = party.progress(RUN, 1)
        assert found is not None
        assert (found.ended, found.differ) == (TOO_FEW, {0: USERS})
    assert not any(disk.charged for disk in world.disks)


def test_who_ended_an_attempt_with_others_lets_no_peer_go_on_to_a_charge() -> None:
    """Aggregator 0 says one digest to 1 and another one to 2, which asks before 1."""
    world, _ = begun(*range(USERS))
    world.lies = lambda caller, callee, said: (  # type: ignore[method-assign]
        replace(said, agreed=bytes(32)) if (caller, callee) == (2, 0) and said.agreed else said
    )
    for party in world.parties:
        party.close(RUN, 1)
    for i in 3 * (0, 2, 1):
        world.advance(i)
    found = world.parties[2].progress(RUN, 1)
    assert found is not None
    assert found.ended.startswith(UNEQUAL)
    assert not any(disk.charged for disk in world.disks[1:])


@pytest.mark.parametrize("name", ["ticket", "accepted"])
def test_an_output_stays_where_a_peer_keeps_one_of_other_users_or_another_attempt(
    name: str,
) -> None:
    world, _ = begun(0)

    def lies(caller: int, callee: int, said: Standing) -> Standing:
        return (
            replace(said, **{name: bytes(32)})
            if callee == 2 and world.disks[caller].output
            else said
        )  # type: ignore[arg-type]

    world.lies = lies  # type: ignore[method-assign]
    finish(world)
    assert world.disks[1].output is not None
    assert not world.left[1]


def test_a_second_nonce_ends_the_attempt_and_makes_no_second_ticket() -> None:
    world, found = begun()
    world.lies = lambda caller, callee, said: (
        replace(said, nonce=bytes(32)) if callee == 0 and said.nonce else said
    )  # type: ignore[method-assign]
    world.advance(1)
    assert world.parties[1].standing(RUN, 1).ticket == b""
    assert world.parties[1].receive(RUN, 1, found, world.sent(0, found)[1]) == "another-ticket"


def test_an_attempt_is_begun_once_and_nothing_follows_a_published_one() -> None:
    world, found = begun()
    world.restart(2)
    with pytest.raises(ProtocolError, match="begun before"):
        world.parties[2].open(RUN, QUESTION, PLAN, DIGEST, attempt=1, needed=1)
    found = opened(world, 2)
    send(world, 0, found)
    finish(world)
    world.lies = lambda caller, callee, said: replace(said, published=False)  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="no other attempt"):
        world.parties[0].open(RUN, QUESTION, PLAN, DIGEST, attempt=3, needed=1)


def test_a_crash_of_one_after_the_others_published_releases_the_round_all_the_same_and_gives_no_second_attempt() -> None:  # fmt: skip
    world, _ = begun(0)
    for party in world.parties:
        party.close(RUN, 1)
    world.disks[1].at = 3
    world.disks[1].after = False  # charge, keep, and then publish is not done
    for _ in range(4):
        for i in (0, 2, 1):
            world.advance(i)
    world.restart(1)
    assert world.disks[1].output is not None
    assert not world.open(1, 2) or not world.disks[0].is_published
    for i in range(3):
        world.advance(i)
    world.fetch()
    world.check()
    assert all(world.left)
    assert [disk.charged for disk in world.disks] == [1, 1, 1]


def test_keys_are_told_to_the_aggregator_before_and_to_nobody_else() -> None:
    world, _ = begun()
    for owner, caller in itertools.permutations(range(3), 2):
        if caller == (owner - 1) % 3:
            assert len(world.parties[owner].key(RUN, 1, 1, caller=caller)) == 32
        else:
            with pytest.raises(ProtocolError, match="gets no key"):
                world.parties[owner].key(RUN, 1, 1, caller=caller)


def test_a_trusted_plan_and_three_of_one_name_are_refused() -> None:
    world = World(np.random.default_rng(1))
    with pytest.raises(ProtocolError, match="one trusted"):
        world.parties[0].open(
            RUN, QUESTION, calibrate(Guarantee(5.0, 1e-5), {"s": 1.0}), DIGEST, attempt=1, needed=1
        )
    with pytest.raises(ValueError, match="three different names"):
        type(world.parties[0])(
            0, (b"a", b"a", b"c"), {1: world.parties[1], 2: world.parties[2]}, world.disks[0], PLAN
        )  # type: ignore[arg-type,dict-item]


# --- explicit shares, passed on ---


class Altering(World):
    """Aggregator 1 passes on other explicit shares than the clients': each plus what makes
    aggregator 2 count its user a thousand times."""

    def passed_on(self, content: bytes) -> bytes:
        numbers = (
            np.frombuffer(content, np.uint8).reshape(-1, 32 + 8 * layout(QUESTION).length).copy()
        )
        numbers[:, 32] ^= 1
        return numbers.tobytes()


def test_explicit_shares_that_are_not_those_of_the_hashes_end_the_attempt_before_anything_leaves() -> None:  # fmt: skip
    world, _ = begun(0, kind=Altering)
    finish(world)
    assert world.disks[2].output is None
    assert not any(world.left)
    assert "not those of their hashes" in world.parties[2].progress(RUN, 1).ended  # type: ignore[union-attr]


def test_a_share_that_was_altered_on_its_way_would_multiply_one_users_part_of_the_sum() -> None:
    """Why it is compared: aggregator 1 adds d to share 2 of one coefficient, and the sum has d
    times that user's vector."""
    rng = np.random.default_rng(2)
    length = layout(QUESTION).length
    part = layout(QUESTION).parts[0]
    numbers = plain_numbers(reports_of([0]), layout(QUESTION))
    shares = [rng.integers(0, 2**64, (1, length), np.uint64, endpoint=False) for _ in range(2)]
    shares.append(numbers - shares[0] - shares[1])
    altered = shares[2].copy()
    by = np.uint64(2**40)
    altered[0, part.left.start] += by
    sums = [ShareSums(layout(QUESTION)) for _ in range(3)]
    for i, one in enumerate(sums):
        own = shares[i]
        following = shares[(i + 1) % 3]
        # aggregator 1's own output moves by what it knows
        one.add(altered if i == 2 else own, following)
    nothing = [np.zeros(part.shape, np.int64)]
    keys = [bytes([i]) * 32 for i in range(3)]
    (found,) = total(
        [one.output(nothing, (keys[i], keys[(i + 1) % 3]), b"x") for i, one in enumerate(sums)]
    )
    (honest,) = exact_sums(reports_of([0]), QUESTION.blocks)
    y = [share[0, part.right][:2] for share in shares]
    known = by * y[1]  # what aggregator 1 holds of the vector, and takes off
    assert ((found[0] - honest[0]).view(np.uint64) + known == by * numbers[0, part.right][:2]).all()


def test_explicit_shares_are_passed_on_to_aggregator_2_alone_and_of_agreed_users_alone() -> None:
    world, _ = begun(*range(3))
    asked = [(place, caller) for place in range(3) for caller in range(3) if caller != place]
    for place, caller in asked:
        with pytest.raises(ProtocolError, match="no explicit shares"):  # nothing is agreed yet
            world.parties[place].explicit(RUN, 1, 1, 0, 1, caller=caller)
    for party in world.parties:
        party.close(RUN, 1)
    world.advance(1)
    for place, caller in asked:
        if (place, caller) != (1, 2):
            with pytest.raises(ProtocolError, match="no explicit shares"):
                world.parties[place].explicit(RUN, 1, 1, 0, 1, caller=caller)
    size = 32 + 8 * layout(QUESTION).length
    assert len(world.parties[1].explicit(RUN, 1, 1, 0, 3, caller=2)) == 3 * size
    for first, last in ((0, 4), (-1, 1), (2, 2)):
        with pytest.raises(ProtocolError, match="no users"):
            world.parties[1].explicit(RUN, 1, 1, first, last, caller=2)


def test_an_attempt_whose_explicit_shares_were_lost_ends_and_the_next_is_released() -> None:
    world, _ = begun(0)
    for party in world.parties:
        party.close(RUN, 1)
    # 2 agreed before the others, so that 1 keeps its output and ends before 2 asks it for shares
    for i in (2, 0, 1):
        world.advance(i)
    assert world.disks[1].output is not None
    world.restart(1)
    world.advance(2)
    assert world.parties[2].progress(RUN, 1).ended == "a peer has lost the attempt"  # type: ignore[union-attr]
    second = opened(world, 2)
    send(world, 1, second)
    finish(world)
    world.check()
    assert all(world.left)


def test_what_lies_on_the_disk_is_not_the_shares_and_a_full_disk_takes_no_user(
    tmp_path: Path,
) -> None:
    world = World(np.random.default_rng(1))
    found = bytes(32)
    length = layout(QUESTION).length
    users = [world.sent(user, found)[1] for user in range(3)]
    holding = Holding(1, length, tmp_path)
    plain = Holding(1, length)
    for user in users:
        holding.add(user)
        plain.add(user)
    everybody = holding.everybody()
    assert holding.explicit(everybody) == plain.explicit(everybody)
    assert all(
        (a == b).all() for a, b in zip(holding.rows(everybody), plain.rows(everybody), strict=True)
    )
    assert not list(tmp_path.iterdir())
    on_disk = os.pread(holding._file.fileno(), 10**6, 0)  # type: ignore[union-attr]
    assert len(on_disk) == 3 * (32 + 8 * length)
    for user in users:
        assert user.shares[1][:16] not in on_disk
        assert user.blind[:16] not in on_disk
    again = Holding(1, length, tmp_path)
    key = holding._key
    again.add(users[0])
    assert again._key != key
    holding.close()
    assert (len(holding), holding._key) == (0, b"")
    with (
        patch("os.pwrite", side_effect=OSError(28, "no room")),
        pytest.raises(OSError, match="no room"),
    ):
        again.add(users[1])
    assert again.committed(users[1].committed.report) is None
    again.add(users[1])
    assert again.explicit([users[1].committed]) == plain.explicit([users[1].committed])
    world.parties[1] = OneOfThree(
        1,
        NAMES,
        {j: Line(world, 1, j) for j in (0, 2)},
        world.disks[1],
        SystemStreams(),
        folder=tmp_path,
    )
    ticket_now = opened(world)
    with patch("os.pwrite", side_effect=OSError(28, "no room")):
        assert send(world, 0, ticket_now) == ["", "no-room", ""]
    assert send(world, 0, ticket_now) == [""] * 3


def test_no_two_users_on_the_disk_have_one_key_stream(tmp_path: Path) -> None:
    holding = Holding(1, 4, tmp_path)
    for number in range(2):
        ids = Committed(bytes([number]) * 16, bytes([number]) * 16, (bytes(32),) * 3)
        holding.add(SharedUser(ids, (bytes(32), bytes(32)), bytes(32)))
    on_disk = os.pread(holding._file.fileno(), 200, 0)  # type: ignore[union-attr]
    assert on_disk[:64] != on_disk[64:]


# --- one client lies ---


def hostile(name: str, sent: tuple[SharedUser, ...], found: bytes) -> list[SharedUser]:
    """What a client that means harm sends to each aggregator, by what it does."""
    zero, one, two = sent
    match name:
        case "another explicit share for one":
            return [zero, replace(one, shares=(one.shares[0], bytes(len(one.shares[1])))), two]
        case "another explicit share for one, committed to":
            content = bytes(len(one.shares[1]))
            hashes = (
                *one.committed.hashes[:2],
                commitment(found, one.committed.report, 2, one.blind, content),
            )
            return [
                zero,
                replace(
                    one,
                    shares=(one.shares[0], content),
                    committed=replace(one.committed, hashes=hashes),
                ),
                two,
            ]
        case "seeds exchanged for one":
            return [replace(zero, shares=zero.shares[::-1]), one, two]
        case "short row":
            return [zero, replace(one, shares=(one.shares[0], one.shares[1][:-8])), two]
        case "no blind":
            return [zero, replace(one, blind=b""), two]
        case _:
            return [replace(zero, committed=replace(zero.committed, user=bytes(16))), one, two]


@pytest.mark.parametrize(
    "name",
    [
        "another explicit share for one",
        "another explicit share for one, committed to",
        "seeds exchanged for one",
        "short row",
        "no blind",
        "another pseudonym for one",
    ],
)
def test_inconsistent_shares_are_summed_by_nobody_and_honest_users_are(name: str) -> None:
    world, found = begun(0)
    for i, one in enumerate(hostile(name, world.sent(1, found), found)):
        world.parties[i].receive(RUN, 1, found, one)
    finish(world)
    assert {read_output(next(iter(left)), QUESTION)[1] for left in world.left} == {1}


def test_one_user_reports_once_in_a_round() -> None:
    world, found = begun(0)
    (first, *_), (second, *_) = world.sent(0, found), world.sent(1, found)
    again = replace(second, committed=replace(second.committed, user=first.committed.user))
    assert world.parties[0].receive(RUN, 1, found, again) == "replayed"
    assert world.parties[0].receive(RUN, 1, found, replace(first, blind=b"x")) == "replayed"
    assert (
        world.parties[0].receive(RUN, 1, found, replace(first, shares=first.shares[::-1]))
        == "replayed"
    )


def test_what_was_shared_in_an_earlier_attempt_is_taken_in_no_later_one() -> None:
    world, earlier = begun()
    sent = world.sent(0, earlier)
    later = opened(world, attempt=2)
    assert [world.parties[i].receive(RUN, 1, earlier, sent[i]) for i in range(3)] == [
        "another-ticket"
    ] * 3
    assert [world.parties[i].receive(RUN, 1, later, sent[i]) for i in range(3)] == ["malformed"] * 3
    assert send(world, 0, later) == [""] * 3


def test_shares_of_numbers_that_changed_within_an_attempt_have_other_seeds() -> None:
    world = World(np.random.default_rng(1))
    found = bytes(32)
    numbers = np.zeros((2, layout(QUESTION).length), np.uint64)
    numbers[1, 0] = 1
    sent = [
        addressed(row[None], [b"r" * 16], [b"u" * 16], found, secret=world.secrets[0])
        for row in numbers
    ]
    again = addressed(numbers[:1], [b"r" * 16], [b"u" * 16], found, secret=world.secrets[0])
    other = addressed(numbers[:1], [b"r" * 16], [b"u" * 16], b"t" * 32, secret=world.secrets[0])
    assert sent[0] == again
    for one in (sent[1], other):
        assert not {*one[0][0].shares} & {*sent[0][0][0].shares}
        assert one[1][0].blind != sent[0][1][0].blind


def test_the_explicit_shares_hash_is_blinded() -> None:
    """Aggregator 0 has both seeds: of a guessed report it knows share 2, and must not know its
    hash."""
    world = World(np.random.default_rng(1))
    zero, one, _ = world.sent(0, bytes(32))
    assert zero.blind == b""
    assert (
        commitment(bytes(32), one.committed.report, 2, one.blind, one.shares[1])
        == zero.committed.hashes[2]
    )
    assert (
        commitment(bytes(32), one.committed.report, 2, bytes(32), one.shares[1])
        != zero.committed.hashes[2]
    )
    with pytest.raises(ValueError, match="blind"):
        commitment(bytes(32), one.committed.report, 2, b"", one.shares[1])


def test_users_held_twice_or_differently_are_not_held_alike() -> None:
    def of(report: str, user: str, tail: str = "h") -> Committed:
        return Committed(report.encode(), user.encode(), (b"0", b"1", tail.encode()))

    good = of("a", "1")
    twice = [of("b", "2"), of("b", "2", "g")]
    odd = of("c", "3")
    lists = [[good, odd, *twice], [odd, good, twice[0]], [good, replace(odd, user=b"4"), twice[0]]]
    assert held_alike(lists) == [good]
    assert held_alike([[of("a", "1"), of("b", "1")]] * 3) == []


def test_a_ticket_is_of_everything_that_must_not_be_mixed_up() -> None:
    nonces = [bytes([i]) * 32 for i in range(3)]
    changed = [
        ticket("other", 1, DIGEST, NAMES, nonces),
        ticket(RUN, 2, DIGEST, NAMES, nonces),
        ticket(RUN, 1, bytes(32), NAMES, nonces),
        ticket(RUN, 1, DIGEST, NAMES[::-1], nonces),
        ticket(RUN, 1, DIGEST, NAMES, nonces[::-1]),
    ]
    assert len({ticket(RUN, 1, DIGEST, NAMES, nonces), *changed}) == 6
    with pytest.raises(ValueError, match="three"):
        ticket(RUN, 1, DIGEST, NAMES[:2], nonces)


def test_an_output_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="another length"):
        read_output(bytes(100), QUESTION)
    assert total([()] * 3) == ()
