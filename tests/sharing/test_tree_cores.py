"""Whole rounds over three parties with leaves: real roots and leaves with ledgers on disk, clients
that share by range, and the server's rounds."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from fedrec.errors import ProtocolError, RefusedError, UnreachableError
from fedrec.federation.hostile_clients import ATTEMPTS
from fedrec.federation.leaves import read_partial
from fedrec.federation.protocol import Invitation, Refusal
from fedrec.federation.wire import pack_release
from fedrec_aggregator.leaf_attempt import LeafVisits, ListedLeaf
from tests.sharing.test_three_cores import CHECKED, PUBLISHED
from tests.sharing.three_cores import RUN, USERS, Federation, federation, releases_are_the_loopbacks
from tests.sharing.tree_cores import PLACES, TreeCores

Found = Callable[..., Federation]


@pytest.fixture
def found(tmp_path: Path) -> Iterator[Found]:
    with ExitStack() as stack:

        def make(*sets: str, kind: type[TreeCores] = TreeCores) -> Federation:
            cores = stack.enter_context(closing(kind(tmp_path)))
            made = federation(cores, stack, *sets)
            cores.sleep(0.5)  # roots introduce themselves
            assert not any(answer.refusal for answer in made.join(made.terms))
            return made

        yield make


@pytest.mark.parametrize(
    "sets", [PUBLISHED, (), (*PUBLISHED, *CHECKED)], ids=["published", "default", "checked"]
)
def test_every_round_releases_the_loopbacks_bytes(found: Found, sets: tuple[str, ...]) -> None:
    releases_are_the_loopbacks(found(*sets))


def test_no_root_asks_a_leaf_under_the_lock_that_terms_wait_for(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that ask leaves hand terms in under it: whoever waits for them with it waits for
    ever."""
    there = found(*PUBLISHED)
    held = list[bool]()
    each = LeafVisits.each

    def asked(
        visits: LeafVisits, ask: Callable[[ListedLeaf], str], leaves: Iterable[ListedLeaf]
    ) -> list[str]:
        held.append(any(root._turn._is_owned() for root in there.cores.running if root))  # type: ignore[attr-defined]
        return each(visits, ask, leaves)

    monkeypatch.setattr(LeafVisits, "each", asked)
    there.link(min_share=1.0).answer(there.first)
    assert len(held) > 6
    assert not any(held)


@pytest.mark.parametrize("leaf", PLACES)
def test_a_leaf_that_is_started_again_costs_an_attempt_and_nobody_counts_twice(
    found: Found, leaf: tuple[int, int]
) -> None:
    there = found(*PUBLISHED)
    question = there.first
    there.opened(quorum=USERS)
    there.cores.sleep(0.5)
    there.cores.restart_leaf(leaf)  # type: ignore[attr-defined]
    there.cores.sleep(0.5)
    root = there.cores.running[leaf[0]]
    assert root is not None
    progress = root._party.progress(RUN, question.round)
    assert progress is not None
    assert progress.ended == "a leaf was started again"
    there.released_as_alone()
    assert {ledger.attempt(RUN, question.round).attempt for ledger in there.cores.ledgers} == {2}  # type: ignore[union-attr]
    assert {len(ledger.spends().charges) for ledger in there.cores.ledgers} == {
        len(question.releases)
    }


def test_a_leaf_that_lost_its_folder_enrols_its_users_again(found: Found) -> None:
    there = found(*PUBLISHED)
    cores = there.cores
    assert isinstance(cores, TreeCores)
    cores.restart_leaf((1, 0), name="anew")
    cores.sleep(0.5)
    there.released_as_alone()


def test_a_range_of_which_one_leaf_is_away_is_left_out_if_the_others_reach_the_quorum(
    found: Found,
) -> None:
    there = found(*PUBLISHED)
    cores = there.cores
    question = there.first
    assert isinstance(cores, TreeCores)
    cores.stop_leaf((2, 1))
    release = there.link(min_share=0.2, round_s=20.0).answer(question)
    (status,) = {
        (
            ledger.released(RUN, question.round).reported,
            ledger.released(RUN, question.round).enrolled,
        )  # type: ignore[union-attr]
        for ledger in cores.ledgers[:2]
    }
    first = sum(token[0] < 128 for each in there.participants for token in each._tokens)
    assert status == (first, USERS)
    assert 0 < first < USERS
    assert pack_release(release) != pack_release(there.loopback.answer(question))
    cores.start_leaf((2, 1))


def test_below_the_quorum_nothing_is_released_without_the_missing_range(found: Found) -> None:
    there = found(*PUBLISHED)
    cores = there.cores
    question = there.first
    assert isinstance(cores, TreeCores)
    cores.stop_leaf((0, 0))
    with pytest.raises((RefusedError, UnreachableError)):
        there.link(min_share=1.0, round_s=20.0, attempts=1, short_attempts=1).answer(question)
    assert not any(ledger.spends().charges for ledger in cores.ledgers)
    cores.start_leaf((0, 0))


class Altered(TreeCores):
    """Terms of one leaf are altered on their way to its root."""

    change = ""

    def on_its_way(self, leaf: tuple[int, int], term: bytes) -> bytes:
        question = self.question  # type: ignore[attr-defined]
        if leaf != (1, 1) or not self.change:
            return term
        partial = read_partial(term, question.blocks)
        other: dict[str, object] = {
            "attempt": partial.attempt + 1,
            "epoch": "0" * 32,
            "ticket": "00" * 32,
            "summed": "00" * 32,
            "reported": partial.reported - 1,
        }
        return replace(partial, **{self.change: other[self.change]}).packed()


@pytest.mark.parametrize("change", ["attempt", "epoch", "ticket", "summed", "reported"])
def test_a_term_of_another_attempt_ticket_or_set_of_people_counts_for_nothing(
    found: Found, change: str
) -> None:
    there = found(*PUBLISHED, kind=Altered)
    cores = there.cores
    question = there.first
    assert isinstance(cores, Altered)
    cores.question = question
    cores.change = change  # type: ignore[attr-defined]
    link = there.link(min_share=1.0, round_s=20.0, attempts=1, short_attempts=1)
    with pytest.raises((RefusedError, UnreachableError, ProtocolError)):
        link.answer(question)
    assert not any(ledger.spends().charges for ledger in cores.ledgers)


def test_attempts_at_checked_rounds_are_counted_by_range(found: Found) -> None:
    there = found(*PUBLISHED, *CHECKED)
    cores = there.cores
    question = there.first
    assert isinstance(cores, TreeCores)
    endpoint = there.endpoint()
    for _ in range(ATTEMPTS):
        endpoint.open_run(RUN, there.prepared.plan)
        endpoint.open_round(there.opening(question, quorum=USERS))
        for _ in range(4):
            cores.sleep(0.5)
        answers = there.ask(Invitation(RUN, there.prepared.plan, question, quorum=USERS))
        assert [answer.refusal for answer in answers] == [""] * 3
        assert sum(answer.accepted for answer in answers) == USERS
        cores.restart_leaf((0, 0))
        cores.sleep(0.5)
    endpoint.open_round(there.opening(question, quorum=USERS))
    for _ in range(4):
        cores.sleep(0.5)
    answers = there.ask(Invitation(RUN, there.prepared.plan, question, quorum=USERS))
    assert {answer.refusal for answer in answers} == {Refusal.BUDGET}
    assert not any(answer.accepted for answer in answers)
