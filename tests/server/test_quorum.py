"""The quorum at the server: it waits, warns, tries again, and ends with a reason; a smaller round
is never silent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fedrec.certificates.verifying import verify
from fedrec.errors import ProtocolError, RefusedError
from fedrec.federation.protocol import Answer
from fedrec.federation.round_driver import Patience
from fedrec.storage import read_json

NewWorld = Callable[..., Any]
FOR_GOOD = 10**6


def cut_off(world: Any, *, in_round: int, calls: int = FOR_GOOD) -> None:
    """Two of three sites, 27 of 40 users, do not answer so many calls from that round on."""
    honest = world.clients.ask
    done = list[int]()

    def ask(invitation: Any) -> Any:
        if invitation.question.round == in_round and not done:
            done.append(1)
            for site in world.sites[:2]:
                site.absent = calls
        return honest(invitation)

    world.clients.ask = ask


def lines(world: Any) -> list[dict[str, Any]]:
    path = world.folder / "server" / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_site_cut_off_in_the_middle_ends_the_run_with_a_reason_and_no_smaller_round(
    new_world: NewWorld,
) -> None:
    world = new_world()
    told = list[str]()
    cut_off(world, in_round=1)
    with pytest.raises(
        RefusedError,
        match=r"round 1: 13 of 40 users reported, too few to release: 32 must \(min_share 0.8\)",
    ) as caught:
        world.run(tell=told.append)
    assert caught.value.code == "too-few"
    assert "rounds.min_share of at most 0.32 goes on without them" in caught.value.remedy
    assert [line["reported"] for line in lines(world)] == [40]
    assert set(world.charges) == set(lines(world)[0]["releases"])
    assert (
        sum("round 1 is short and was not released, nothing was spent" in words for words in told)
        == 3
    )
    assert any("round 1 waits: 13 of 40 users reported, 32 must" in words for words in told)
    assert not (world.folder / "server" / "model").exists()


def test_a_round_is_tried_for_its_whole_time_in_each_attempt(new_world: NewWorld) -> None:
    world = new_world()
    cut_off(world, in_round=0)
    before_s = world.time.now_s
    with pytest.raises(RefusedError):
        world.run(absent_s=0.0)
    assert 300 <= world.time.now_s - before_s < 400  # three attempts of 100 s, and pauses


def test_a_site_that_comes_back_within_the_round_is_waited_for(new_world: NewWorld) -> None:
    world = new_world()
    cut_off(world, in_round=1, calls=4)
    world.run(absent_s=0.0)
    assert [(line["attempt"], line["reported"]) for line in lines(world)] == [(1, 40)] * 3
    assert world.states() == world.loopback()


def test_a_site_that_comes_back_after_a_short_attempt_takes_part_in_the_next(
    new_world: NewWorld,
) -> None:
    world = new_world()
    cut_off(world, in_round=1, calls=10)
    world.run(absent_s=0.0)
    assert [(line["attempt"], line["reported"]) for line in lines(world)] == [
        (1, 40),
        (2, 40),
        (1, 40),
    ]
    assert world.states() == world.loopback()


def test_the_operator_goes_on_without_those_who_left_and_every_page_says_so(
    new_world: NewWorld,
) -> None:
    world = new_world()
    cut_off(world, in_round=1)
    with pytest.raises(RefusedError):
        world.run()
    plan = read_json(world.folder / "server" / "run.json")["plan_digest"]
    charges = list(world.charges)
    world.run(min_share=0.32)
    assert read_json(world.folder / "server" / "run.json")["plan_digest"] == plan
    assert [(line["joined"], line["quorum"], line["reported"]) for line in lines(world)] == [
        (40, 32, 40),
        (40, 13, 13),
        (40, 13, 13),
    ]
    assert len(world.charges) == len(set(world.charges)) > len(charges)
    manifest = read_json(world.folder / "server" / "model" / "manifest.json")
    assert [(one["reported"], one["joined"]) for one in manifest["rounds"]] == [
        (40, 40),
        (13, 40),
        (13, 40),
    ]


def test_a_site_that_enrols_ten_times_its_users_and_reports_none_is_named_and_nothing_is_spent(
    new_world: NewWorld,
) -> None:
    """It can keep a run from beginning, as anybody can who does not answer; it cannot make one
    smaller."""
    world = new_world()
    tokens = [n.to_bytes(16, "big") for n in range(1, 131)]

    class Crowd:
        absent = 0

        def join(self, terms: Any) -> Answer:
            world.endpoint.client_endpoint("crowd").enroll(tokens)
            return Answer("crowd", len(tokens))

        def answer(self, invitation: Any) -> Answer:
            # it says so; the aggregator counts
            return Answer("crowd", len(tokens), accepted=len(tokens))

    crowd = Crowd()
    world.clients = type(world.clients)([*world.sites, crowd])
    before_s = world.time.now_s
    with pytest.raises(
        RefusedError, match=r"40 of 170 users reported, too few to release: 136 must"
    ):
        world.run()
    assert world.charges == []
    assert world.time.now_s - before_s < 100  # all have said their last word: nobody is waited for


def test_without_a_share_the_aggregators_minimum_cohort_is_all(new_world: NewWorld) -> None:
    world = new_world()
    cut_off(world, in_round=1)
    world.run(min_share=0.0)
    assert [(line["quorum"], line["reported"]) for line in lines(world)] == [
        (0, 40),
        (0, 13),
        (0, 13),
    ]
    assert verify(world.folder / "server").difference == 0


@pytest.mark.parametrize(
    ("share", "users", "needed"),
    [(0.8, 40, 32), (0.8, 41, 33), (1.0, 7, 7), (0.7, 10, 7), (0.1, 30, 3), (0.0, 9, 0)],
)
def test_the_quorum_is_the_share_rounded_up_and_no_more(
    share: float, users: int, needed: int
) -> None:
    assert Patience(min_share=share).quorum(users) == needed


def test_an_aggregator_that_releases_below_the_quorum_it_was_given_ends_the_run(
    new_world: NewWorld,
) -> None:
    world = new_world()
    cut_off(world, in_round=1)
    honest = world.endpoint._opened

    def opened(opening: Any) -> Any:
        collection = honest(opening)
        collection.needed = 1
        return collection

    world.endpoint._opened = opened
    with pytest.raises(ProtocolError, match="released with 13 users, below its quorum of 32"):
        world.run(absent_s=0.0)
