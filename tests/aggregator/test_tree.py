"""A root and its leaves: the bytes of one aggregator, leaves that die, and leaves and roots that
must not be believed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.errors import ProtocolError, RefusedError, RunError, UnreachableError
from fedrec.federation.leaves import (
    LeafEndpoint,
    LeafStanding,
    PartialSums,
    TokenRange,
    even_ranges,
    read_partial,
    require_all_once,
    require_within_reach,
)
from fedrec.federation.protocol import LedgerGrowth, LedgerHead, Phase, Refusal
from fedrec.randomness import Streams
from fedrec_aggregator.core import Limits
from fedrec_aggregator.leaf import LeafAggregator
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.root import ListedLeaf, RootAggregator
from tests.aggregator.conftest import USERS, World

RANGES = (TokenRange(0, 0x05FF), TokenRange(0x0600, 0xFFFF))
"""Users 0 to 5, and 6 to 11: their pseudonyms begin with their numbers."""


@dataclass
class Away:
    """A leaf's endpoint that may be cut off, and lie: `lie` turns what it would send into something
    else."""

    leaf: LeafAggregator
    away: bool = False
    lie: Callable[[PartialSums], PartialSums] | None = None
    freezes: int = 0

    def visit(self, *args: Any, **kwargs: Any) -> Any:
        return self._there().visit(*args, **kwargs)

    def open(self, *args: Any) -> Any:
        return self._there().open(*args)

    def freeze(self, run: str, round: int, **named: Any) -> bytes:
        content = self._there().freeze(run, round, **named)
        self.freezes += 1
        if self.lie is None:
            return content
        return self.lie(read_partial(content, self.leaf.collections()[0].question.blocks)).packed()

    def _there(self) -> LeafEndpoint:
        if self.away:
            raise UnreachableError("the leaf does not answer", "Wait.")
        return self.leaf


@dataclass
class Tree:
    """A root over two leaves, with the run and the users of a `World`."""

    world: World
    folder: Path
    stack: ExitStack
    endpoints: list[Away] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.endpoints = [Away(self.leaf(place)) for place in (0, 1)]
        self.start()

    def leaf(self, place: int, folder: str = "") -> LeafAggregator:
        ledger = ReleaseLedger(
            self.folder / (folder or f"leaf-{place}"), limit=None, clock=self.world.clock
        )
        self.stack.callback(ledger.close)
        return LeafAggregator(
            ledger,
            self.world.limits,
            name=f"leaf-{place}",
            range=RANGES[place],
            clock=self.world.clock,
        )

    def start(self) -> None:
        ledger = self.world.kept_in(
            self.folder / "root", limit=self.world.limit, clock=self.world.clock
        )
        self.stack.callback(ledger.close)
        leaves = [
            ListedLeaf(f"leaf-{place}", endpoint, RANGES[place], max_users=6)
            for place, endpoint in enumerate(self.endpoints)
        ]
        self.root = RootAggregator(
            ledger,
            self.world.limits,
            noise=Streams(self.world.seed),
            leaves=leaves,
            clock=self.world.clock,
        )
        self.stack.callback(self.root.shut)

    def restart_root(self) -> None:
        self.root.ledger.close()
        self.start()

    def replace_leaf(self, place: int, folder: str = "") -> None:
        """What kill -9 leaves of a leaf: its folder, or with another folder nothing."""
        self.endpoints[place].leaf.ledger.close()
        self.endpoints[place].leaf = self.leaf(place, folder)

    def enroll(self) -> None:
        for place, endpoint in enumerate(self.endpoints):
            endpoint.leaf.enroll(f"client-{place}", self.world.tokens(self.world.users_of(place)))

    def open(self) -> Phase:
        self.root.open_run(self.world.run, self.world.plan)
        return self.root.open_round(self.world.opening()).phase

    def release_everybody(self) -> None:
        """All report, and the release is the loopback's."""
        assert (self.send(0), self.send(1)) == (6, 6)
        assert self.close() is Phase.RELEASED
        assert self.released == self.world.expected()

    def send(self, place: int) -> int:
        packed = self.world.packed(self.world.users_of(place))
        return (
            self.endpoints[place].leaf.report(f"client-{place}", self.world.run, 0, packed).accepted
        )

    def close(self) -> Phase:
        return self.root.close(self.world.run, 0).phase

    def charges(self) -> list[str]:
        return [charge.release for charge in self.root.ledger.spends().charges]

    @property
    def released(self) -> bytes:
        return self.root.release(self.world.run, 0)


@pytest.fixture
def tree(make: Callable[..., World], tmp_path: Path) -> Iterator[Tree]:
    with ExitStack() as stack:
        one = Tree(make(), tmp_path, stack)
        one.enroll()
        assert one.open() is Phase.OPEN
        yield one


def test_a_tree_releases_the_bytes_of_one_aggregator_and_charges_once(tree: Tree) -> None:
    assert (tree.send(0), tree.send(1)) == (6, 6)
    status = tree.root.status(tree.world.run, 0)
    assert (status.phase, status.reported, status.enrolled) == (Phase.RELEASED, USERS, USERS)
    assert tree.released == tree.world.expected()
    assert tree.charges() == ["s/0", "m/0"]
    assert [endpoint.leaf.ledger.spends().charges for endpoint in tree.endpoints] == [(), ()]


def test_leaves_hold_nothing_once_the_round_is_released(tree: Tree) -> None:
    tree.send(0), tree.send(1)
    tree.close()
    assert all(
        collection.sums is None
        for endpoint in tree.endpoints
        for collection in endpoint.leaf.collections()
    )
    assert tree.endpoints[0].leaf.report(
        "client-0", tree.world.run, 0, tree.world.packed([0])
    ).rejected == {Refusal.ROUND_CLOSED: 1}


def test_quorum_and_cohort_are_of_all_leaves_together(
    make: Callable[..., World], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        tree = Tree(make(limits=Limits(min_cohort=7)), tmp_path, stack)
        tree.enroll()
        tree.open()
        tree.send(0)
        assert tree.close() is Phase.SHORT  # six of one leaf
        assert tree.charges() == []
        assert tree.open() is Phase.OPEN
        assert (tree.send(0), tree.send(1)) == (6, 6)
        assert tree.close() is Phase.RELEASED


def test_a_leaf_killed_before_it_froze_ends_the_attempt_and_everybody_is_counted_once_in_the_next(
    tree: Tree,
) -> None:
    tree.send(0), tree.root.status(tree.world.run, 0)
    tree.replace_leaf(0)
    with pytest.raises(RefusedError) as caught:
        tree.root.status(tree.world.run, 0)
    assert caught.value.code == Refusal.ROUND_UNKNOWN
    assert tree.open() is Phase.OPEN
    tree.release_everybody()
    assert tree.charges() == ["s/0", "m/0"]


def test_what_a_living_leaf_holds_goes_on_in_the_next_attempt(tree: Tree) -> None:
    tree.send(0), tree.send(1)
    tree.endpoints[0].away = True  # or the round would be released: everybody has reported
    tree.root.tick()
    tree.endpoints[0].away = False
    tree.root._rounds.clear()  # what a root's crash forgets
    tree.open()
    assert tree.endpoints[1].leaf.report(
        "client-1", tree.world.run, 0, tree.world.packed([7])
    ).rejected == {Refusal.REPLAYED: 1}
    assert tree.close() is Phase.RELEASED
    assert tree.released == tree.world.expected()


def test_a_leaf_killed_after_it_froze_and_before_its_sums_were_taken_ends_the_attempt(
    tree: Tree,
) -> None:
    tree.send(0), tree.root.status(tree.world.run, 0), tree.send(1)
    tree.endpoints[1].away = True
    # the first froze and was taken, the second is waited for
    assert tree.close() is Phase.RELEASING
    tree.replace_leaf(1)
    tree.endpoints[1].leaf.open_run(tree.world.run, tree.world.plan)
    tree.endpoints[1].away = False
    with pytest.raises(RefusedError, match="not open here"):
        tree.close()
    tree.open()
    # the first leaf's frozen sums are not in the next attempt
    tree.release_everybody()


def test_a_leaf_whose_sums_are_held_may_die(tree: Tree) -> None:
    tree.send(0), tree.send(1)
    tree.endpoints[1].away = True
    tree.close()
    tree.replace_leaf(0)
    tree.endpoints[1].away = False
    assert tree.close() is Phase.RELEASED
    assert tree.released == tree.world.expected()


def test_a_leaf_on_a_machine_without_its_folder_takes_its_users_again(tree: Tree) -> None:
    tree.send(0), tree.root.status(tree.world.run, 0)
    tree.replace_leaf(0, "elsewhere")
    with pytest.raises(RefusedError):
        tree.root.status(tree.world.run, 0)
    tree.open()
    leaf = tree.endpoints[0].leaf
    assert leaf.report("client-0", tree.world.run, 0, tree.world.packed([0])).rejected == {
        Refusal.NOT_ENROLLED: 1
    }
    leaf.enroll("client-0", tree.world.tokens(tree.world.users_of(0)))
    tree.release_everybody()


def test_a_leaf_that_stays_away_is_left_out_where_the_quorum_is_there(tree: Tree) -> None:
    tree.send(0), tree.send(1)
    tree.endpoints[1].away = True
    assert tree.close() is Phase.RELEASING
    tree.world.clock.now_s += 31.0
    assert tree.close() is Phase.RELEASED  # six users, the cohort is five
    assert tree.root.status(tree.world.run, 0).reported == 6
    tree.endpoints[1].away = False
    tree.root.tick()
    assert tree.charges() == ["s/0", "m/0"]


def test_a_leaf_that_was_away_when_the_round_opened_is_opened_when_it_answers(
    make: Callable[..., World], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        tree = Tree(make(), tmp_path, stack)
        tree.enroll()
        tree.endpoints[0].away = True
        tree.open()
        assert tree.send(0) == 0
        tree.endpoints[0].away = False
        tree.root.tick()
        tree.release_everybody()


def test_freezing_again_gives_the_same_bytes_and_a_frozen_leaf_takes_nothing(tree: Tree) -> None:
    tree.send(0)
    leaf = tree.endpoints[0].leaf
    opening = tree.world.opening()
    named = {"digest": opening.digest, "attempt": 1, "epoch": leaf.epoch}
    first = leaf.freeze(tree.world.run, 0, **named)
    assert leaf.report("client-0", tree.world.run, 0, tree.world.packed([0], salt=1)).rejected == {
        Refusal.ROUND_CLOSED: 1
    }
    assert leaf.freeze(tree.world.run, 0, **named) == first
    for wrong in ({"attempt": 2}, {"epoch": "0" * 32}, {"digest": "0" * 64}):
        with pytest.raises(RefusedError) as caught:
            leaf.freeze(tree.world.run, 0, **(named | wrong))
        assert caught.value.code == Refusal.ROUND_UNKNOWN


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lambda sums: replace(sums, reported=sums.reported - 1), "said that 6 users reported"),
        (lambda sums: replace(sums, reported=7), "of 6 that are enrolled"),
        (
            lambda sums: replace(sums, blocks=tuple(10 * block for block in sums.blocks)),
            "are larger",
        ),
        (lambda sums: replace(sums, attempt=sums.attempt + 1), "asked for were those of"),
        (lambda sums: replace(sums, round=3), "asked for were those of"),
        (lambda sums: replace(sums, digest="0" * 64), "asked for were those of"),
        (lambda sums: replace(sums, epoch="0" * 32), "asked for were those of"),
        (lambda sums: replace(sums, quorum=1), "asked for were those of"),
        (lambda sums: replace(sums, leaf="leaf-1"), "asked for were those of"),
    ],
)
def test_a_lie_that_shows_is_refused_and_nothing_is_charged_or_released(
    tree: Tree, lie: Callable[[PartialSums], PartialSums], words: str
) -> None:
    tree.send(0), tree.root.status(tree.world.run, 0)
    tree.endpoints[0].lie = lie
    with pytest.raises(ProtocolError, match=words):
        tree.close()
    assert tree.charges() == []
    with pytest.raises(RefusedError):
        tree.released  # noqa: B018


def test_sums_are_taken_once_for_a_leaf_however_often_it_sends_them(tree: Tree) -> None:
    tree.send(0), tree.send(1)
    tree.endpoints[1].away = True
    tree.close(), tree.close()
    tree.endpoints[1].away = False
    tree.close()
    assert tree.endpoints[0].freezes == 1
    assert tree.root.status(tree.world.run, 0).reported == USERS


def test_sums_of_an_old_round_are_refused(tree: Tree) -> None:
    tree.send(0), tree.send(1)
    kept = list[PartialSums]()
    tree.endpoints[0].lie = lambda sums: kept.append(sums) or sums  # type: ignore[func-returns-value]
    tree.close()
    tree.endpoints[0].lie = lambda _: kept[0]
    tree.root.open_round(tree.world.opening(tree.world.question(1)))
    with pytest.raises(ProtocolError, match="asked for were those of"):
        tree.root.close(tree.world.run, 1)


def test_ranges_that_overlap_or_leave_a_gap_are_refused(tree: Tree) -> None:
    for ranges in [
        (TokenRange(0, 10), TokenRange(10, 0xFFFF)),
        (TokenRange(0, 10), TokenRange(12, 0xFFFF)),
        (TokenRange(0, 0xFFFE),),
    ]:
        with pytest.raises(ValueError, match="pseudonyms that begin with"):
            require_all_once(ranges)
    require_all_once(even_ranges(10))
    with pytest.raises(RefusedError, match="owns pseudonyms"):
        tree.endpoints[0].leaf.enroll("client-1", tree.world.tokens([7]))


def test_a_leaf_that_owns_another_range_than_listed_is_not_opened(
    make: Callable[..., World], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        tree = Tree(make(), tmp_path, stack)
        tree.enroll()
        tree.endpoints[1].leaf.range = TokenRange(0, 0xFFFF)
        tree.open()
        assert tree.send(1) == 0
        assert tree.close() is Phase.SHORT


def test_a_root_killed_between_charge_and_release_charges_once_and_releases_the_same(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.send(0), tree.send(1)

    def full(*_: object) -> str:
        raise RunError("no space left", "Free some.")

    monkeypatch.setattr(tree.root.ledger, "store", full)
    with pytest.raises(RunError):
        tree.close()
    assert tree.charges() == ["s/0", "m/0"]
    tree.restart_root()
    assert tree.open() is Phase.OPEN  # the second attempt: nobody saw anything of the first
    tree.release_everybody()
    assert tree.charges() == ["s/0", "m/0"]


def test_a_root_killed_before_the_charge_collects_again(tree: Tree) -> None:
    tree.send(0)
    tree.restart_root()
    assert tree.open() is Phase.OPEN
    assert tree.send(0) == 0  # counted in the attempt before, and carried on
    assert tree.send(1) == 6
    assert tree.close() is Phase.RELEASED
    assert tree.released == tree.world.expected()


def test_a_root_with_an_older_ledger_is_not_served(tree: Tree, tmp_path: Path) -> None:
    tree.send(0), tree.send(1)
    tree.close()
    tree.root.ledger.close()
    tree.folder = tmp_path / "restored"  # a ledger that knows nothing of the round
    tree.start()
    tree.open()
    assert tree.root.collections()[0].reported == 0
    assert tree.close() is Phase.SHORT
    assert tree.charges() == []


def test_clients_of_a_leaf_follow_the_root_s_ledger(tree: Tree) -> None:
    leaf = tree.endpoints[0].leaf
    head = tree.root.ledger.end()
    assert leaf.growth(LedgerHead()).head == head
    tree.send(0), tree.send(1)
    tree.close()
    assert leaf.growth(head) == tree.root.ledger.growth(head)
    assert leaf.ledger.end() != leaf.growth(head).head
    with pytest.raises(RefusedError) as caught:
        leaf.growth(LedgerHead(head.number, "0" * 64))
    assert caught.value.code == Refusal.STALE_LEDGER
    with pytest.raises(RefusedError) as caught:
        leaf.visit(LedgerHead(), LedgerGrowth(LedgerHead(1, "0" * 64), ("0" * 64,)))
    assert caught.value.code == Refusal.STALE_LEDGER


def test_the_root_takes_no_reports(tree: Tree) -> None:
    assert tree.root.report("client-0", tree.world.run, 0, tree.world.packed([0])).rejected == {
        Refusal.FORBIDDEN: 1
    }
    for ask in (
        lambda: tree.root.enroll("client-0", []),
        lambda: tree.root.client_endpoint("client-0"),
    ):
        with pytest.raises(RefusedError):
            ask()


def test_sums_are_bounded_by_what_so_many_reports_can_make(tree: Tree) -> None:
    """The bound is met by reports that all point one way, and by nothing above."""
    question = tree.world.question()
    mean = question.releases[1]
    spec = mean.blocks[0]
    most = round(5 * mean.radius / spec.step)
    at = lambda number: PartialSums(  # noqa: E731
        "a", "b", "c", 0, "d", 0, 1, 5, 0, 0, {}, (np.full((1, 1), number, np.int64),)
    )
    require_within_reach(at(most), [mean])
    with pytest.raises(ProtocolError):
        require_within_reach(at(most + most // 1_000), [mean])


def test_what_is_no_partial_sum_is_refused() -> None:
    for content in (b"", b"FRP1", b"FRP1" + bytes(100)):
        with pytest.raises(ProtocolError):
            read_partial(content, [])


@pytest.mark.parametrize(
    "lie",
    [{"rejected": {"x": x}} for x in ("y", None, 1.5, -1, 2**60, True)]
    + [{"rejected": [1]}, {"clipped": 10**400}, {"reported": -1}],
)
def test_counts_that_are_none_are_refused(lie: dict[str, Any]) -> None:
    sound = PartialSums("leaf", "e", "run", 0, "d", 0, 1, 2, 0, 10, {"replayed": 1}, ())
    assert read_partial(sound.packed(), []) == sound
    with pytest.raises(ProtocolError):
        read_partial(replace(sound, **lie).packed(), [])


def test_a_leaf_that_forgets_what_it_is_told_is_left_out_and_does_not_hold_up_its_root(
    tree: Tree,
) -> None:
    """It would be told for ever."""
    tree.send(0), tree.send(1), tree.close()
    assert tree.charges()
    told = tree.endpoints[1].leaf.visit
    calls = list[int]()

    def forgetful(*asked: Any, **named: Any) -> LeafStanding:
        calls.append(1)
        if len(calls) > 50:
            raise UnreachableError("told for ever", "End here.")
        return replace(told(*asked, **named), head=LedgerHead())

    tree.endpoints[1].leaf.visit = forgetful
    tree.root.tick(), tree.root.tick()
    assert len(calls) <= 4
