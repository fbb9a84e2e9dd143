"""Participants towards the real aggregator's rules: what is released is what one process would have
released."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.errors import UnreachableError
from fedrec.federation.protocol import Answer, Opening, Phase, Receipt
from fedrec.federation.wire import pack_release, question_digest, question_header
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.ledger import ReleaseLedger

RUNS: dict[str, dict[str, Any]] = {
    "default": {},
    "default, no features": {"features": False, "overrides": ("privacy.epsilon=20",)},
    "default, clicks": {"kind": "clicks"},
    "published": {
        "overrides": ("recipe=published", "model.dimension=3", "model.steps=2", "model.encoder=id")
    },
}


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[Aggregator]:
    ledger = ReleaseLedger(tmp_path / "aggregator", limit=None, clock=lambda: 1e9)
    yield Aggregator(ledger, Limits(min_cohort=5), noise=Streams(1), clock=lambda: 1e9)
    ledger.close()


class Flaky:
    """Loses a third of the messages, on their way there or the receipts on their way back, and the
    first of each."""

    def __init__(self, endpoint: Any) -> None:
        self.endpoint = endpoint
        self.rng = np.random.default_rng(1)
        self.lost = ["there", "back"]

    def __getattr__(self, call: str) -> Any:
        return getattr(self.endpoint, call)

    def report(self, run: str, round: int, batch: bytes) -> Receipt:
        fate = self.lost.pop() if self.lost else self.rng.choice(["there", "back", "", "", "", ""])
        if fate == "there":
            raise UnreachableError("lost on the way there", "Send it again.")
        receipt = self.endpoint.report(run, round, batch)
        if fate == "back":
            raise UnreachableError("lost on the way back", "Send it again.")
        return receipt


@pytest.mark.parametrize("which", RUNS)
def test_two_sites_release_the_bytes_that_one_process_releases(
    make_run, make_site, aggregator, which: str
) -> None:
    arguments = dict(RUNS[which])
    run = make_run(*arguments.pop("overrides", ()), **arguments)
    sites = list(two_sites(run, make_site, aggregator))
    for site in sites:
        assert site.participant.join(run.terms).refusal == ""
    aggregator.open_run(run.name, run.prepared.plan)
    for done in run.rounds():
        opened(aggregator, run, done.question)
        answers = [site.participant.answer(run.invitation(done.question)) for site in sites]
        assert [answer.accepted for answer in answers] == [12, 18]
        status = aggregator.close(run.name, done.question.round)
        assert (status.phase, status.reported, status.clipped, dict(status.rejected)) == (
            Phase.RELEASED,
            30,
            0,
            {},
        )
        assert aggregator.release(run.name, done.question.round) == pack_release(done.answer)


def test_lost_messages_and_restarts_count_every_user_once(make_run, make_site, aggregator) -> None:
    run = make_run()
    site = make_site(
        run.users,
        endpoint=Flaky(aggregator.client_endpoint("site")),
        options={"users_per_batch": 20},
    )
    site.participant.join(run.terms)
    aggregator.open_run(run.name, run.prepared.plan)
    for done in run.rounds():
        opened(aggregator, run, done.question)
        while site.participant.answer(run.invitation(done.question)).refusal:
            site.restart()
        status = aggregator.close(run.name, done.question.round)
        assert (status.phase, status.reported) == (Phase.RELEASED, 30)
        assert aggregator.release(run.name, done.question.round) == pack_release(done.answer)
    assert site.participant.ledger.epsilon == pytest.approx(
        run.prepared.plan.guarantee.epsilon, rel=1e-9
    )


def test_users_whose_reports_cannot_be_made_are_counted_as_any_others(
    make_run, make_site, aggregator
) -> None:
    run = make_run()
    site = make_site(
        run.users, endpoint=aggregator.client_endpoint("site"), limit=Guarantee(50.0, 1e-5)
    )
    site.participant.join(run.terms)
    aggregator.open_run(run.name, run.prepared.plan)
    question = next(asked for asked in run.questions() if "variance" in asked.public)
    variance = np.array(question.public["variance"])
    variance[5:] = -1e30  # more items than the invented users have
    hostile = replace(question, public={**question.public, "variance": variance})
    opened(aggregator, run, hostile)
    assert site.participant.answer(run.invitation(hostile)) == Answer("site", 30, accepted=30)


def two_sites(run: Any, make_site: Any, aggregator: Aggregator) -> Iterator[Any]:
    for name, some in (("one", np.arange(12)), ("other", np.arange(12, 30))):
        ids = tuple(f"user {k}" for k in some)
        users = replace(run.users, events=run.events.users_subset(some), user_ids=ids)
        options = {"users_per_batch": 5}
        yield make_site(
            users,
            name,
            endpoint=aggregator.client_endpoint(name),
            limit=Guarantee(50.0, 1e-5),
            options=options,
        )


def opened(aggregator: Aggregator, run: Any, question: Any) -> None:
    header = question_header(question, run=run.name, plan=run.prepared.plan.digest())
    aggregator.open_round(Opening(run.name, question.round, header, question_digest(header), 100.0))
