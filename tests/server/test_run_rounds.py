"""The server's run: as good as one process, byte for byte, whatever crashes, stays away or
refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedrec.data.features import PublicFeatures
from fedrec.errors import ProtocolError, RefusedError, RunError, SettingsError, UnreachableError
from fedrec.factorization.released import load as load_model
from fedrec.federation.protocol import Phase, RoundStatus
from fedrec.settings import load
from fedrec.storage import read_json
from fedrec_server.run_record import only_one
from tests.cases import slow_but

World = Any
NewWorld = Callable[..., Any]


@pytest.mark.parametrize(
    "recipe",
    slow_but(
        ["published", "evaluated"], ["default", "published", "published, id only", "evaluated"]
    ),
)
def test_every_state_equals_the_loopbacks_byte_for_byte(recipe: str, new_world: NewWorld) -> None:
    world = new_world(recipe)
    assert [
        {name: array.tobytes() for name, array in step.state.items()} for step in world.run()
    ] == world.loopback()
    assert world.states() == world.loopback()


def test_the_model_says_what_it_promises_and_where_its_noise_came_from(new_world: NewWorld) -> None:
    world = new_world()
    world.run()
    _, manifest = load_model(world.folder / "server" / "model")
    assert manifest["guarantee"]["epsilon"] == 5.0
    assert manifest["plan"] == read_json(world.folder / "server" / "run.json")["plan_digest"]
    assert (manifest["noise"], manifest["items"]) == ("aggregator", list(world.public.items))


def test_every_round_leaves_one_line_with_counts_and_answers(new_world: NewWorld) -> None:
    world = new_world()
    world.run()
    lines = [
        json.loads(line)
        for line in (world.folder / "server" / "rounds.jsonl").read_text().splitlines()
    ]
    assert [line["round"] for line in lines] == [0, 1, 2]
    assert [(line["reported"], line["enrolled"], line["attempt"]) for line in lines] == [
        (40, 40, 1)
    ] * 3
    assert [[answer["accepted"] for answer in line["answers"]] for line in lines] == [
        [13, 14, 13]
    ] * 3
    assert [name for line in lines for name in line["releases"]] == world.charges


# --- crashes ---


@pytest.mark.slow
@pytest.mark.parametrize("aggregator_too", [False, True], ids=["server", "server and aggregator"])
def test_a_crash_at_any_step_ends_in_the_same_model_and_costs_nothing(
    aggregator_too: bool, new_world: NewWorld, crashing_run: Callable[[World, int], int]
) -> None:
    whole = new_world("published, one step", name="whole")
    steps = crashing_run(whole, -1)
    expected = whole.loopback()
    charges = whole.charges
    assert steps > 40
    for crash_at in range(steps):
        world = new_world("published, one step", name=f"crash-{crash_at}")
        crashing_run(world, crash_at)
        if aggregator_too:
            world.start_aggregator()
        world.run()
        assert (crash_at, world.states()) == (crash_at, expected)
        assert (crash_at, world.model, world.charges) == (crash_at, whole.model, charges)
        lines = (world.folder / "server" / "rounds.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == [0, 1]


def test_a_crash_in_the_default_recipe_ends_in_the_same_states(
    new_world: NewWorld, crashing_run: Callable[[World, int], int]
) -> None:
    world = new_world("default")
    crashing_run(world, 70)
    assert 0 < len(world.states()) < len(world.loopback())
    world.run()
    assert world.states() == world.loopback()


@pytest.mark.slow
@pytest.mark.parametrize("kept", [{}, {"checkpoints": 2}], ids=["all kept", "two kept"])
def test_after_a_crash_questions_still_stand_on_those_before(
    kept: dict[str, int], new_world: NewWorld, crashing_run: Callable[..., int]
) -> None:
    """What clients have follows from the checkpoints: a server that starts again sends what
    differs, in the bytes of one that did not."""

    def ended(world: World) -> tuple[bytes, list[int]]:
        lines = (world.folder / "server" / "rounds.jsonl").read_text().splitlines()
        assert len(world.states()) == kept.get("checkpoints", len(lines))
        return world.model, [json.loads(line)["bytes_down"] for line in lines]

    whole = new_world("default", name="whole")
    steps = crashing_run(whole, -1, **kept)
    for crash_at in (steps // 2, steps - 9, steps - 5):  # each in or after the vectors' rounds
        world = new_world("default", name=f"crash-{crash_at}")
        crashing_run(world, crash_at, **kept)
        world.run(**kept)
        assert ended(world) == ended(whole)


def test_a_round_that_the_aggregator_forgot_is_collected_again_and_charged_once(
    new_world: NewWorld,
) -> None:
    world = new_world()
    honest = world.clients.ask
    calls = list[int]()

    def ask(invitation: Any) -> Any:
        calls.append(invitation.question.round)
        answers = (
            honest(invitation)
            if calls.count(1) != 1
            else [site.answer(invitation) for site in world.sites[:2]]
        )
        if calls == [0, 1]:
            world.start_aggregator()  # two of three sites had reported
        return answers

    world.clients.ask = ask
    progress = run_following_the_endpoint(world)
    # the missing site is asked again, then all of them, of a round that had to be opened again
    assert calls == [0, 1, 1, 1, 2]
    assert [step.line.attempt for step in progress] == [1, 2, 1]
    assert world.states() == world.loopback()
    assert len(world.charges) == len(set(world.charges))


def test_a_finished_run_asks_nobody_and_keeps_its_model(new_world: NewWorld) -> None:
    world = new_world()
    world.run()
    model = world.model
    for site in world.sites:
        site.absent = 10**6
    assert world.run() == []
    assert world.model == model


# --- clients ---


def test_a_run_waits_for_late_clients(new_world: NewWorld) -> None:
    world = new_world()
    world.sites[2].absent = 5
    world.run()
    assert world.states() == world.loopback()


def test_a_run_without_enough_clients_says_who_refused_and_why_and_costs_nothing(
    new_world: NewWorld,
) -> None:
    world = new_world()
    world.sites[1].refusal = "wrong-plan"
    with pytest.raises(
        UnreachableError,
        match=r"2 clients with 26 users, 26 enrolled.*site-1: wrong-plan \(as the test wants\)",
    ):
        world.run()
    assert world.charges == []


def test_who_has_no_budget_for_a_run_is_not_to_be_brought_up(new_world: NewWorld) -> None:
    world = new_world()
    world.sites[1].refusal = "budget"
    with pytest.raises(UnreachableError) as caught:
        world.run()
    assert "lower privacy.epsilon" in caught.value.remedy
    assert "--drop-unfinished --again" in caught.value.remedy


def test_an_aggregator_that_comes_late_is_waited_for(new_world: NewWorld) -> None:
    world = new_world()
    missed = iter(range(3))

    class Late:
        def __getattr__(self, name: str) -> Any:
            if next(missed, None) is not None:
                raise UnreachableError("the aggregator does not answer", "Start it.")
            return getattr(world.endpoint, name)

    world.run(endpoint=Late())
    assert world.states() == world.loopback()


def test_a_client_restarted_in_the_middle_of_a_round_still_takes_part(new_world: NewWorld) -> None:
    world = new_world()
    honest = world.clients.ask
    asked = list[int]()

    def ask(invitation: Any) -> Any:
        asked.append(invitation.question.round)
        if asked.count(1) == 1 and len(asked) == 2:
            world.sites[0].absent = 3
        return honest(invitation)

    world.clients.ask = ask
    world.run()
    assert asked == [0, 1, 1, 1, 1, 2]
    assert world.states() == world.loopback()


def test_a_client_that_stays_away_is_waited_for_in_one_round_only(new_world: NewWorld) -> None:
    world = new_world()
    honest = world.clients.ask
    asked = list[int]()

    def ask(invitation: Any) -> Any:
        asked.append(invitation.question.round)
        if invitation.question.round == 1:
            world.sites[0].absent = 10**6
        return honest(invitation)

    world.clients.ask = ask
    progress = world.run(min_share=0.5)
    assert [step.line.reported for step in progress] == [40, 27, 27]
    assert asked.count(1) > 1
    assert asked.count(2) == 1


def test_a_client_that_lost_its_notes_is_told_again(new_world: NewWorld) -> None:
    world = new_world()
    honest = world.clients.ask
    asked = list[int]()

    def ask(invitation: Any) -> Any:
        asked.append(invitation.question.round)
        if len(asked) == 2:
            world.sites[1].lose_its_notes()
        return honest(invitation)

    world.clients.ask = ask
    world.run()
    assert world.states() == world.loopback()


def test_after_a_restart_a_run_goes_on_with_those_who_are_there(
    new_world: NewWorld, crashing_run: Callable[[World, int], int]
) -> None:
    world = new_world()
    crashing_run(world, 40)
    done = len(world.states())
    assert 0 < done < 3
    world.sites[0].absent = 10**6
    assert [step.line.reported for step in world.run(min_share=0.5)][-1] == 27


def test_too_few_users_for_the_aggregator_are_no_release_and_no_charge(new_world: NewWorld) -> None:
    world = new_world(min_cohort=41)
    with pytest.raises(RefusedError, match="40 of 40 users reported, too few") as caught:
        world.run()
    assert caught.value.code == "too-few"
    assert world.charges == []


# --- the same run, or none ---


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("privacy.epsilon=6", "privacy.epsilon: 5.0, now 6.0"),
        ("model.steps=3", "model.steps: 2, now 3"),
        ("seed=2", "seed: 1, now 2"),
        ("data.features=false", "features: True, now False"),
    ],
)
def test_a_folder_goes_on_with_its_own_scenario_only(
    override: str, named: str, new_world: NewWorld
) -> None:
    world = new_world()
    world.run()
    changed = load(
        None,
        ["recipe=published", "model.dimension=3", "model.steps=2", "model.encoder=id", override],
    )
    with pytest.raises(RunError, match=named):
        world.run(scenario=changed)


def test_what_decides_nothing_may_change(new_world: NewWorld) -> None:
    world = new_world()
    world.run()
    same = ["recipe=published", "model.dimension=3", "model.steps=2", "model.encoder=id"]
    assert (
        world.run(scenario=load(None, [*same, "run.directory=elsewhere", "compare.als=false"]))
        == []
    )


def test_a_folder_goes_on_with_its_own_public_data_plan_and_id_only(new_world: NewWorld) -> None:
    world = new_world()
    world.run(run="one")
    with pytest.raises(RunError, match="holds run one, not two"):
        world.run(run="two")
    notes = read_json(world.folder / "server" / "run.json")
    (world.folder / "server" / "run.json").write_text(
        json.dumps({**notes, "plan_digest": "0" * 64})
    )
    with pytest.raises(RunError, match="another privacy plan"):
        world.run()
    world.public = replace(world.public, features=PublicFeatures({}))
    with pytest.raises(RunError, match="another public data"):
        world.run()


def test_a_run_id_never_leads_out_of_a_folder(new_world: NewWorld) -> None:
    world = new_world()
    for run in ("../x", "a/b", ".", "-x", "x" * 101):
        with pytest.raises(ValueError, match="run id"):
            world.run(run=run)


def test_notes_that_are_not_notes_are_refused_with_a_remedy(new_world: NewWorld) -> None:
    world = new_world()
    world.run()
    for content in ("[]", "{}", '{"format": "fedrec-run/1"}', "x"):
        (world.folder / "server" / "run.json").write_text(content)
        with pytest.raises(RunError):
            world.run()


def test_two_servers_never_share_a_folder(new_world: NewWorld) -> None:
    world = new_world()
    with only_one(world.folder / "server"), pytest.raises(RunError, match="another server"):
        world.run()


def test_scenarios_that_real_clients_cannot_run_are_refused_before_anybody_is_asked(
    new_world: NewWorld,
) -> None:
    world = new_world()
    with pytest.raises(SettingsError, match="whole user"):
        world.run(scenario=load(None, ["recipe=published", "privacy.unit=example"]))
    with pytest.raises(SettingsError, match="announces ratings"):
        world.run(scenario=load(None, ["data.kind=clicks"]))
    assert not (world.folder / "server").exists()


# --- an aggregator that cannot be trusted with its own past ---


def test_an_aggregator_put_back_in_time_is_refused(
    new_world: NewWorld, crashing_run: Callable[[World, int], int]
) -> None:
    world = new_world()
    crashing_run(world, 27)
    world.endpoint.ledger.close()
    shutil.copytree(world.folder / "aggregator", world.folder / "backup")
    world.start_aggregator()
    crashing_run(world, 27)
    assert len(world.states()) > 0
    world.endpoint.ledger.close()
    shutil.rmtree(world.folder / "aggregator")
    shutil.move(world.folder / "backup", world.folder / "aggregator")
    world.start_aggregator()
    with pytest.raises(RefusedError) as caught:
        world.run()
    assert caught.value.code == "stale-ledger"


def test_a_round_released_again_with_other_noise_ends_the_run(
    new_world: NewWorld, crashing_run: Callable[[World, int], int]
) -> None:
    world = new_world()
    crashing_run(world, 22)
    kept = world.folder / "server" / "releases" / "round-000.safetensors"
    assert kept.exists()
    assert not world.states()
    kept.write_bytes(kept.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ProtocolError, match="twice, with different noise"):
        world.run()


# --- what an untrusted server gets to know ---


def without_hashes_of_the_release(heard: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Everything but releases and what is computed from them: their hashes, and digests of the
    questions asked after them."""
    return [
        (
            name,
            replace(result, release_sha256="", ledger_head="", digest="")
            if isinstance(result, RoundStatus)
            else result,
        )
        for name, result in heard
        if name != "release"
    ]


def test_what_the_server_hears_does_not_depend_on_a_users_ratings_except_through_a_release(
    new_world: NewWorld, everything_the_server_hears: Callable[[World], list[tuple[str, Any]]]
) -> None:
    events = new_world().dataset.interactions
    values = events.values.copy()
    mine = slice(events.user_ptr[7], events.user_ptr[8])
    values[mine] = 6 - values[mine]
    one, other = (
        everything_the_server_hears(new_world(name=name, data=data))
        for name, data in (("one", events), ("other", replace(events, values=values)))
    )
    assert without_hashes_of_the_release(one) == without_hashes_of_the_release(other)
    assert [content for name, content in one if name == "release"] != [
        content for name, content in other if name == "release"
    ]
    before = next(
        n
        for n, (_, result) in enumerate(one)
        if isinstance(result, RoundStatus) and result.phase is Phase.RELEASED
    )
    assert {name for name, _ in one[:before]} == {
        "join",
        "enrolled",
        "open_run",
        "open_round",
        "ask",
    }
    assert one[:before] == other[:before]


def test_what_the_server_hears_does_not_tell_how_much_a_user_has_rated(
    new_world: NewWorld, everything_the_server_hears: Callable[[World], list[tuple[str, Any]]]
) -> None:
    events = new_world().dataset.interactions
    fewer = events.select(~((events.users == 7) & (np.arange(len(events)) % 2 == 0)))
    assert len(fewer) < len(events)
    one, other = (
        everything_the_server_hears(new_world(name=name, data=data))
        for name, data in (("one", events), ("other", fewer))
    )
    assert without_hashes_of_the_release(one) == without_hashes_of_the_release(other)


def run_following_the_endpoint(world: World) -> Any:
    """The server's run over whichever aggregator is up at the moment."""

    class Current:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.endpoint, name)

    return world.run(endpoint=Current())
