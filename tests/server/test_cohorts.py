"""Rounds that ask a sample of the clients: who is asked, what is charged, and what the recipe
learns from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedrec.certificates.verifying import verify
from fedrec.errors import RefusedError, SettingsError
from fedrec.federation.protocol import Answer
from fedrec.storage import read_json
from fedrec_server.cohorts import Cohorts

NewWorld = Callable[..., Any]


def lines(world: Any) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (world.folder / "server" / "rounds.jsonl").read_text().splitlines()
    ]


def of(sizes: dict[str, int], share: float, run: str = "run") -> Cohorts:
    cohorts = Cohorts(run, share)
    cohorts.heard([Answer(name, users) for name, users in sizes.items()])
    return cohorts


def test_a_cohort_has_its_share_of_the_users_is_the_same_again_and_another_in_every_round() -> None:
    phones = {f"phone-{k}": 1 for k in range(1_000)}
    cohorts = of(phones, 0.3)
    again = of(dict(reversed(phones.items())), 0.3)
    rounds = [cohorts.asked(t) for t in range(20)]
    assert all(len(asked) == cohorts.num_users(t) == 300 for t, asked in enumerate(rounds))
    assert rounds == [again.asked(t) for t in range(20)]
    assert rounds[0] != of(phones, 0.3, run="other").asked(0)
    times = Counter(name for asked in rounds for name in asked)
    # binomial(20, .3) for each of 1,000 phones: never asked has chance .0008, above 16 times 2e-6;
    # 11 phones never asked has 1e-10
    assert len(phones) - len(times) <= 10
    assert max(times.values()) <= 16


def test_sites_of_any_size_are_asked_until_the_share_is_there_and_one_that_refused_never() -> None:
    cohorts = of({"a": 50, "b": 30, "c": 20}, 0.5)
    cohorts.heard([Answer("d", 1_000, refusal="budget")])
    assert all(
        cohorts.num_users(t) >= 50 and cohorts.asked(t) <= {"a", "b", "c"} for t in range(30)
    )
    assert {frozenset("a"), frozenset("bc")} <= {cohorts.asked(t) for t in range(60)}


def test_only_who_is_asked_reports_and_pays_and_the_aggregator_charges_every_round(
    new_world: NewWorld,
) -> None:
    world = new_world("default")
    told = list[str]()
    world.run(cohort=0.5, tell=told.append)
    assert told[0] == (
        "every round asks 50% of the users; the guarantee is charged as if everybody were in "
        "every round"
    )
    sizes = {site.participant.name: site.participant.users.num_users for site in world.sites}
    rounds = lines(world)
    run = read_json(world.folder / "server" / "run.json")
    for line in rounds:
        answered = {answer["client"] for answer in line["answers"]}
        assert line["reported"] == line["asked"] == sum(sizes[name] for name in answered)
        assert 20 <= line["asked"] <= 40 == line["joined"]
        assert line["quorum"] == int(np.ceil(0.8 * line["asked"]))
        for site in world.sites:
            charged = {entry.round for entry in site.participant.ledger.entries}
            assert (line["round"] in charged) == (site.participant.name in answered)
    assert any(line["asked"] < 40 for line in rounds)
    assert set(world.charges) == {release["name"] for release in run["plan"]["releases"]}
    manifest = (world.folder / "server" / "model" / "manifest.json").read_text()
    assert all(f'"asked": {line["asked"]}' in manifest for line in rounds)
    assert verify(world.folder / "server").difference == 0


def test_a_run_with_cohorts_that_is_stopped_goes_on_to_the_same_bytes(new_world: NewWorld) -> None:
    whole = new_world("default")
    stopped = new_world("default", name="stopped")
    whole.run(cohort=0.5, run="one")
    honest = stopped.clients.ask_some

    def ends(invitation: Any, clients: Any) -> Any:
        if invitation.question.round == 2:
            raise KeyboardInterrupt
        return honest(invitation, clients)

    stopped.clients.ask_some = ends
    with pytest.raises(KeyboardInterrupt):
        stopped.run(cohort=0.5, run="one")
    stopped.clients.ask_some = honest
    stopped.run(cohort=0.5, run="one")
    assert stopped.model == whole.model


def test_who_was_not_asked_is_not_waited_for(new_world: NewWorld) -> None:
    world = new_world("default")
    before_s = world.time.now_s
    world.run(cohort=0.5, absent_s=1_000.0)
    assert world.time.now_s - before_s < 1_000.0  # on the test's own clock


def test_the_quorum_is_of_those_asked(new_world: NewWorld) -> None:
    world = new_world("default")
    honest = world.clients.ask_some

    def cut(invitation: Any, clients: Any) -> Any:
        for site in world.sites:
            site.absent = (
                10**6 if invitation.question.round == 1 and site.participant.name in clients else 0
            )
        return honest(invitation, clients)

    world.clients.ask_some = cut
    with pytest.raises(RefusedError, match=r"round 1: 0 of (2\d|3\d|40) users reported") as caught:
        world.run(cohort=0.5)
    assert caught.value.code == "too-few"


def test_a_recipe_that_needs_the_same_users_again_refuses_cohorts(new_world: NewWorld) -> None:
    world = new_world("published")
    with pytest.raises(
        SettingsError, match=r'rounds.cohort below 1 with recipe = "published" on ratings'
    ):
        world.run(cohort=0.5)
