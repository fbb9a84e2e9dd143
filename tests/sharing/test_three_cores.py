"""Whole rounds over three aggregators with ledgers on disk, clients that share, and a server that
adds three outputs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.arrays import UInt64s
from fedrec.cli.disclosure.aggregator import aggregator as inspected
from fedrec.errors import RefusedError, RunError, UnreachableError
from fedrec.federation.hostile_clients import ATTEMPTS
from fedrec.federation.messages import Reports
from fedrec.federation.protocol import (
    BETWEEN,
    DIFFER,
    Answer,
    Invitation,
    Phase,
    Refusal,
    RoundStatus,
)
from fedrec.federation.wire import pack_release, refused
from fedrec.sharing.layout import RowLayout, layout
from fedrec.sharing.protocol import Standing
from fedrec.sharing.record import addressed, pack_shares
from fedrec.sharing.three_endpoints import ThreeEndpoints
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.peers import HeardPeer
from fedrec_client import three_way
from fedrec_client.participant import Participant
from fedrec_client.three_way import ThreeWay
from tests.sharing.three_cores import (
    NAMES,
    RUN,
    USERS,
    Cores,
    Federation,
    Line,
    federation,
    releases_are_the_loopbacks,
)

Found = Callable[..., Federation]

CHECKED = ("privacy.hostile_clients=checked",)
PUBLISHED = ("recipe=published", "model.steps=1", "model.encoder=id", "model.dimension=2")


@pytest.fixture
def found(tmp_path: Path) -> Iterator[Found]:
    with ExitStack() as stack:

        def make(*sets: str) -> Federation:
            cores = stack.enter_context(closing(Cores(tmp_path)))
            made = federation(cores, stack, *sets)
            made.join(made.terms)
            return made

        yield make


@pytest.mark.parametrize(
    "sets",
    [PUBLISHED, (), CHECKED, (*PUBLISHED, *CHECKED)],
    ids=["published", "default", "checked", "both"],
)
def test_every_round_of_a_training_releases_the_loopback_s_bytes(
    found: Found, sets: tuple[str, ...]
) -> None:
    releases_are_the_loopbacks(found(*sets))


def test_an_aggregator_of_three_is_inspected_as_one_that_sums_alone(found: Found) -> None:
    there = found(*PUBLISHED)
    there.link().answer(there.first)
    for place in range(3):
        shown = inspected(there.cores.folder / f"aggregator-{place}", None)
        (one,) = shown["rounds"]
        assert (one["reported"], one["release"]["as_recorded"], one["release"]["of_three"]) == (
            USERS,
            True,
            True,
        )


def test_a_round_that_was_released_is_found_again_with_the_same_bytes(found: Found) -> None:
    there = found(*PUBLISHED)
    release = there.link().answer(there.first)
    for place in range(3):
        there.cores.restart(place)
    link = there.link()
    assert pack_release(link.answer(there.first)) == pack_release(release)
    assert link.ledger_head.count(",") == 2


@pytest.mark.parametrize("place", range(3))
def test_an_aggregator_that_forgets_an_open_round_costs_nothing_and_the_round_begins_again(
    found: Found, place: int
) -> None:
    there = found(*PUBLISHED)
    question = there.first
    there.opened(quorum=USERS)
    there.cores.restart(place)
    there.released_as_alone()
    assert {ledger.attempt(RUN, question.round).attempt for ledger in there.cores.ledgers} == {2}  # type: ignore[union-attr]
    assert {len(ledger.spends().charges) for ledger in there.cores.ledgers} == {
        len(question.releases)
    }


def test_an_attempt_that_is_on_disk_and_was_reported_as_failed_is_followed_by_the_next(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = found(*PUBLISHED)
    question = there.first
    endpoint = there.opened(quorum=USERS)
    there.cores.restart(1)  # which has lost it, so that another begins
    honest = ReleaseLedger.begin

    def begin(self: ReleaseLedger, *arguments: Any, **named: Any) -> None:
        honest(self, *arguments, **named)
        monkeypatch.undo()
        raise RunError("the disk is in doubt", "Ask again.")

    monkeypatch.setattr(ReleaseLedger, "begin", begin)
    with pytest.raises(RunError):
        endpoint.open_round(there.opening(question, quorum=USERS))
    there.released_as_alone()


def test_a_share_that_was_lost_after_a_peer_published_ends_the_round_for_good(found: Found) -> None:
    there = found(*PUBLISHED)
    there.link().answer(there.first)
    cores = there.cores
    cores.stop(1)
    for path in sorted((cores.folder / "aggregator-1").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    cores.start(1)
    with pytest.raises(RefusedError) as refusal:
        there.link().answer(there.first)
    assert refusal.value.code == Refusal.LOST_SHARE


def test_a_client_of_three_refuses_the_plan_of_one_and_a_client_of_one_the_plan_of_three(
    found: Found,
) -> None:
    there = found(*PUBLISHED)
    trusted = replace(there.prepared.plan, aggregation="trusted")
    of_three = there.participants[0]
    question = there.first
    answer = of_three.answer(Invitation(RUN, trusted, question))
    assert (answer.refusal, answer.accepted) == (Refusal.WRONG_PLAN, 0)
    of_one = Participant(
        of_three.name,
        of_three.users,
        of_three.ledger,
        there.cores.running[0].client_endpoint("x"),
        there.cores.folder,
    )  # type: ignore[union-attr]
    of_one.join(there.terms)
    answer = of_one.answer(Invitation(RUN, there.prepared.plan, question))
    assert (answer.refusal, answer.accepted) == (Refusal.WRONG_PLAN, 0)
    assert not of_three.ledger.entries


def test_a_client_shares_nothing_where_aggregators_were_asked_another_question_or_name_another_key(
    found: Found,
) -> None:
    there = found(*PUBLISHED)
    question = there.first
    there.opened(quorum=3)
    there.cores.sleep(1.0)
    answers = there.ask(Invitation(RUN, there.prepared.plan, question, quorum=USERS))
    assert {answer.refusal for answer in answers} == {Refusal.WRONG_QUESTION}
    assert [core.collections()[0].reported for core in there.cores.running if core] == [0, 0, 0]
    way = there.participants[0]._endpoint
    assert isinstance(way, ThreeWay)
    way.names = (NAMES[0], NAMES[1], b"another key")
    answer = there.participants[0].answer(Invitation(RUN, there.prepared.plan, question, quorum=3))
    assert answer.refusal == Refusal.WRONG_QUESTION


def test_shares_of_a_user_whom_another_client_enrolled_are_not_taken(found: Found) -> None:
    there = found(*PUBLISHED)
    question = there.first
    core = there.cores.running[0]
    assert core is not None
    there.opened()
    there.cores.sleep(1.0)
    ticket = core.attempt(RUN, question.round).ticket
    of_another = next(token for token, owner in core.ledger.owners().items() if owner == "client-2")
    numbers = np.zeros((1, layout(question).length), np.uint64)
    sent = addressed(numbers, [b"r" * 16], [of_another], ticket, secret=b"s" * 32)[0]
    message = pack_shares(sent, 0, ticket)
    assert core.share_endpoint("client-1").report(RUN, question.round, message).rejected == {
        Refusal.FORBIDDEN: 1
    }
    assert core.share_endpoint("client-2").report(RUN, question.round, message).accepted == 1
    # for another aggregator
    for broken in (message[:-1], b"", message[:36] + b"\1" + message[37:]):
        assert core.share_endpoint("client-2").report(RUN, question.round, broken).rejected == {
            Refusal.MALFORMED: 1
        }


def test_a_peer_that_is_at_another_attempt_is_asked_for_no_list_and_no_key() -> None:
    """Whatever numbers a liar names, its lists are not fetched and kept."""

    class Elsewhere:
        def standing(self, run: str, round: int) -> tuple[Standing, bool]:
            return Standing(attempt=7), True

    peer = HeardPeer(Elsewhere())  # type: ignore[arg-type]
    peer.listen(RUN, 0, attempt=3, wants_key=True)
    assert peer.failure(RUN, 0) is None
    assert peer.standing(RUN, 0) == Standing(attempt=7)


@pytest.mark.parametrize("call", ["held", "key", "openings", "explicit"])
def test_a_peer_that_answers_garbage_keeps_a_round_from_its_end_and_once_it_is_well_the_round_ends(
    found: Found, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = found(*PUBLISHED, *CHECKED)
    with monkeypatch.context() as patched:
        patched.setattr(Line, call, lambda self, *asked: b"garbage")
        with pytest.raises((RefusedError, UnreachableError)):
            there.link(attempts=1, short_attempts=1, round_s=5.0).answer(there.first)
    assert [ledger.released(RUN, there.first.round) for ledger in there.cores.ledgers] == [None] * 3
    there.released_as_alone()


@dataclass
class Hanging:
    """Aggregator 2 answers nobody any more once `since` of its answers are given: whoever asks
    waits until the call's deadline, here of the cores' clock."""

    cores: Cores
    since: int
    answers: int = 0
    waited: int = 0

    def lines(self, patched: pytest.MonkeyPatch) -> None:
        for name in ("standing", "held", "key", "openings", "explicit"):
            patched.setattr(Line, name, self._hangs(getattr(Line, name)))

    def _hangs(self, call: Callable[..., object]) -> Callable[..., object]:
        def called(line: Line, *asked: object) -> object:
            if line.place == 2:
                self.answers += 1
                if self.answers > self.since:
                    self.waited += 1
                    self.cores.time_s += 60.0
                    raise UnreachableError("no answer (DEADLINE_EXCEEDED)", "Check that it runs.")
            return call(line, *asked)

        return called


@pytest.mark.parametrize("since", [0, 5, 7, 15, 25, 34, 36, 37])
def test_a_round_with_a_peer_that_hangs_ends_by_its_time_limit_in_words_and_is_released_once_later(
    found: Found, since: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before a ticket, before its list, its coin, its openings, its verdict and its output, and
    after the two others published."""
    there = found(*PUBLISHED, *CHECKED)
    question = there.first
    ledgers = there.cores.ledgers
    with monkeypatch.context() as patched, caplog.at_level("ERROR"):
        hanging = Hanging(there.cores, since)
        hanging.lines(patched)
        with pytest.raises((RefusedError, UnreachableError)) as failure:
            there.link(attempts=1, short_attempts=1, round_s=300.0).answer(question)
    assert there.cores.time_s < 300.0 + 60.0 * hanging.waited + 60.0
    assert "peer-away" in caplog.text
    everybody_reported = since > 6
    words = "not released within 300 s" if everybody_reported else "0 of 24 users reported"
    assert words in failure.value.cause
    assert failure.value.remedy
    left = [
        (core, core.release(RUN, question.round))
        for core, ledger in zip(there.cores.running, ledgers, strict=True)
        if core is not None and ledger.released(RUN, question.round)
    ]
    assert len(left) == (2 if since == 37 else 0)
    assert all(len(ledger.spends().charges) in {0, len(question.releases)} for ledger in ledgers)
    there.released_as_alone()
    assert all(core.release(RUN, question.round) == output for core, output in left)
    assert {len(ledger.spends().charges) for ledger in ledgers} == {len(question.releases)}


def test_three_ways_need_three_different_keys() -> None:
    with pytest.raises(ValueError, match="three different"):
        ThreeWay([None] * 3, (b"a", b"b", b"b"))  # type: ignore[list-item]


def test_a_client_that_shares_too_long_a_report_is_counted_by_nobody_and_the_others_are(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = found(*PUBLISHED, *CHECKED)
    honest = three_way.plain_numbers
    hostile = there.participants[0]

    def longer(reports: Reports, shape: RowLayout) -> UInt64s:
        numbers = honest(reports, shape)
        numbers[:, 0] += np.uint64(2**40)
        return numbers

    link = there.link(min_share=0.5)
    whole = there.ask

    def ask(invitation: Invitation) -> Sequence[Answer]:
        with monkeypatch.context() as patched:
            patched.setattr(three_way, "plain_numbers", longer)
            answers = [hostile.answer(invitation)]
        return [*answers, *(each.answer(invitation) for each in there.participants[1:])]

    monkeypatch.setattr(there, "ask", ask)
    assert whole is not ask
    link.answer(there.first)
    counted = [ledger.released(RUN, there.first.round).reported for ledger in there.cores.ledgers]  # type: ignore[union-attr]
    assert counted == [USERS - hostile.users.num_users] * 3


def test_a_client_shares_in_as_many_attempts_at_a_round_as_checks_are_charged_for_and_in_no_more(
    found: Found,
) -> None:
    there = found(*PUBLISHED, *CHECKED)
    endpoint = there.endpoint()
    question = there.first
    client = there.participants[0]
    endpoint.open_run(RUN, there.prepared.plan)
    for attempt in range(1, ATTEMPTS + 2):
        endpoint.open_round(there.opening(question, quorum=USERS))
        there.cores.sleep(1.0)
        there.cores.sleep(1.0)
        for _ in range(2):  # the same again is the same attempt
            answer = client.answer(Invitation(RUN, there.prepared.plan, question, quorum=USERS))
        assert (answer.refusal, bool(answer.accepted)) == (
            ("", True) if attempt <= ATTEMPTS else (Refusal.BUDGET, False)
        )
        there.cores.restart(0)


def test_a_client_refuses_a_question_whose_checks_cost_more_than_is_charged(found: Found) -> None:
    there = found(*PUBLISHED, *CHECKED)
    fine = tuple(
        replace(
            r,
            blocks=tuple(
                replace(
                    b, coefficient_step=b.coefficient_step / 2**9, vector_step=b.vector_step / 2**9
                )
                for b in r.blocks
            ),
        )
        for r in there.first.releases
    )
    answer = there.participants[0].answer(
        Invitation(RUN, there.prepared.plan, replace(there.first, releases=fine))
    )
    assert answer.refusal in {Refusal.WRONG_QUESTION, Refusal.MALFORMED}
    assert not there.participants[0].ledger.entries


class Saying:
    """An aggregator that says this of every round, or refuses."""

    def __init__(self, place: int, others: tuple[int, ...], refusal: Refusal | None) -> None:
        self.refusal = refusal
        self.said = RoundStatus(
            RUN, 0, "", Phase.SHORT, rejected={f"{DIFFER}{other + 1}": USERS for other in others}
        )
        self.place = place

    def status(self, run: str, round: int, *, wait_s: float = 0.0) -> RoundStatus:
        if self.refusal:
            raise refused(self.refusal, f"{self.place} refuses", "")
        return self.said


@pytest.mark.parametrize("refusal", [None, *Refusal])
@pytest.mark.parametrize("liar", range(3))
def test_one_that_ended_its_attempt_hides_no_lists_that_differ_and_every_other_refusal_is_raised(
    liar: int, refusal: Refusal | None
) -> None:
    ways: Any = [Saying(i, (liar,) if i != liar else (), refusal if i == liar else None)
                 for i in range(3)]  # fmt: skip
    if refusal in {None, Refusal.ROUND_UNKNOWN}:
        pairs = [sorted((i, liar)) for i in range(3) if i != liar]
        named = {f"{DIFFER}{a + 1}{BETWEEN}{b + 1}": USERS for a, b in pairs}
        assert ThreeEndpoints(ways).status(RUN, 0).rejected == named
    else:
        with pytest.raises(RefusedError, match=f"{liar} refuses"):
            ThreeEndpoints(ways).status(RUN, 0)
