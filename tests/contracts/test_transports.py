"""What every transport must do, whatever carries it: calls, Flower's messages, gRPC, or both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from fedrec.errors import RefusedError
from fedrec.federation.messages import Release, train
from fedrec.federation.protocol import Phase, Refusal
from fedrec.federation.wire import pack_release


def same(one: Release, other: Release) -> bool:
    return pack_release(one) == pack_release(other)


class TestTransport:
    """The contract: `found` founds a federation over the transport under test."""

    def test_every_round_of_a_training_releases_the_loopback_s_bytes(
        self, found: Callable[..., Any]
    ) -> None:
        federation = found()
        ours = federation.trained_over(federation.link)
        assert len(ours) == 2
        recipe = federation.prepared.recipe
        *_, last = train(recipe, federation.loopback, recipe.begin())
        for name, array in recipe.model(last.state).arrays().items():
            assert recipe.model(ours[-1].state).arrays()[name].tobytes() == array.tobytes()

    def test_arrays_arrive_as_they_were_sent(self, found: Callable[..., Any]) -> None:
        """A question whose arrays changed on the way would have another digest, and every client
        would refuse it."""
        federation = found()
        question = federation.opened()
        answers = federation.clients.ask(federation.invitation(question))
        assert [answer.refusal for answer in answers] == [""] * 3
        assert sum(answer.accepted for answer in answers) == federation.data.num_users

    def test_a_question_asked_twice_counts_every_user_once(self, found: Callable[..., Any]) -> None:
        # with everybody there the round would end before the second time
        federation = found(unwilling={2})
        question = federation.opened()
        first = federation.clients.ask(federation.invitation(question))
        again = federation.clients.ask(federation.invitation(question))
        assert (
            [answer.accepted for answer in again]
            == [answer.accepted for answer in first]
            == [8, 8, 0]
        )
        status = federation.endpoint.close(federation.terms.run, question.round)
        assert (status.reported, status.rejected.get(Refusal.REPLAYED)) == (16, 16)

    def test_a_released_round_is_the_same_bytes_however_often_it_is_asked_for(
        self, found: Callable[..., Any]
    ) -> None:
        federation = found()
        first = federation.link.answer(federation.first)
        assert same(federation.link.answer(federation.first), first)
        run = federation.terms.run
        round_ = federation.first.round
        assert (
            federation.endpoint.release(run, round_)
            == federation.endpoint.release(run, round_)
            == pack_release(first)
        )

    def test_a_client_that_refuses_says_why_and_does_not_stop_the_round(
        self, found: Callable[..., Any]
    ) -> None:
        federation = found(unwilling={1})
        heard = []
        link = federation.link
        link.watch = lambda status, answers: heard.append((status, answers))
        link.answer(federation.first)
        (status, answers), *_ = heard
        assert [answer.refusal for answer in answers] == ["", Refusal.TOO_LARGE.value, ""]
        assert (status.phase, status.reported, status.enrolled) == (Phase.RELEASED, 16, 24)

    def test_too_few_reports_release_nothing_and_cost_nothing(
        self, found: Callable[..., Any]
    ) -> None:
        federation = found(unwilling={1, 2})
        with pytest.raises(RefusedError, match="8 of 24 users reported") as caught:
            federation.link.answer(federation.first)
        assert caught.value.code == Refusal.TOO_FEW
        assert "Nothing was released or spent" in caught.value.remedy
        with pytest.raises(RefusedError):
            federation.endpoint.release(federation.terms.run, federation.first.round)

    def test_a_client_that_never_heard_of_the_run_is_told_and_takes_part(
        self, found: Callable[..., Any]
    ) -> None:
        federation = found(joined=False)
        assert {
            answer.refusal
            for answer in federation.clients.ask(federation.invitation(federation.first))
        } == {Refusal.RUN_UNKNOWN}
        released = federation.link.answer(federation.first)
        assert same(released, federation.loopback.answer(federation.first))

    def test_a_report_after_the_release_is_turned_away(self, found: Callable[..., Any]) -> None:
        federation = found()
        federation.link.answer(federation.first)
        late = federation.clients.ask(federation.invitation(federation.first))
        assert [answer.accepted for answer in late] == [0, 0, 0]
        assert all(set(answer.rejected) == {Refusal.ROUND_CLOSED} for answer in late)

    def test_another_question_in_a_round_that_was_answered_is_refused_by_clients_and_aggregator(
        self, found: Callable[..., Any]
    ) -> None:
        federation = found()
        federation.link.answer(federation.first)
        question = federation.first
        other = type(question)(
            question.round,
            question.step,
            {**question.public, "more": np.zeros(20)},
            question.releases,
        )
        assert all(
            answer.refusal for answer in federation.clients.ask(federation.invitation(other))
        )
        with pytest.raises(RefusedError) as caught:
            federation.endpoint.open_round(federation.opening(other))
        assert caught.value.code == Refusal.WRONG_QUESTION

    def test_what_the_server_hears_besides_releases_does_not_depend_on_a_rating(
        self, found: Callable[..., Any]
    ) -> None:
        heard = list[list[Any]]()
        for changed_user in (None, 5):
            federation = found(changed_user=changed_user, joined=False)
            said = list[Any]()
            said.append([asdict(answer) for answer in federation.clients.join(federation.terms)])
            link = federation.link
            link.watch = lambda status, answers, said=said: said.append(
                (status, [asdict(answer) for answer in answers])
            )
            for _ in train(federation.prepared.recipe, link, federation.prepared.recipe.begin()):
                pass
            heard.append([said[0], *((facts(status), answers) for status, answers in said[1:])])
        assert heard[0] == heard[1]


def facts(status: Any) -> dict[str, Any]:
    """Of a status, what is no name of a release: its hash, the hash of the question that follows
    from it, and the ledger's head."""
    return {
        key: value
        for key, value in asdict(status).items()
        if key not in {"release_sha256", "ledger_head", "digest", "remaining_s"}
    }
