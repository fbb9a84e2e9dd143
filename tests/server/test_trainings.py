"""One training after the other: what each leaves, what all of them promise together, and what a
server that cheats gets."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedrec.certificates.verifying import verify
from fedrec.errors import RefusedError, RunError, SettingsError, UnreachableError
from fedrec.federation.protocol import Budget, Refusal, refused
from fedrec.operations.metrics import Metrics
from fedrec.operations.party_state import Awaited
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import SystemStreams
from fedrec.serving import bundle
from fedrec.serving.model_bundles import export
from fedrec.settings import load
from fedrec.storage import UnreadableError
from fedrec_server.run_record import only_one
from fedrec_server.runs import Runs, TrainingRun, require_affordable, run_folder, together
from fedrec_server.schedule import REQUEST, TrainingSchedule, ask_standing, duration_s, words_of
from fedrec_server.trainings import earlier_of
from tests.descriptors import none_left

SMALL = ["recipe=published", "model.dimension=3", "model.steps=2", "model.encoder=id"]
World = Any
NewWorld = Callable[..., Any]


def delta_of(mu: float, epsilon: float) -> float:
    """Of mu-GDP (Dong, Roth, Su 2022, Cor. 1), for comparison."""
    return float(
        stats.norm.cdf(mu / 2 - epsilon / mu)
        - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    )


def served(world: World) -> bundle.Bundle:
    return bundle.read(world.folder / "server" / bundle.FILE)


def rate_everything(world: World, rating: float) -> None:
    """What people of all sites hold from now on."""
    for site in world.sites:
        users = site.participant.users
        site.participant.users = replace(
            users, events=replace(users.events, values=np.full_like(users.events.values, rating))
        )


# --- what a training leaves ---


@pytest.mark.slow
def test_a_training_leaves_a_bundle_of_its_model_with_its_guarantee(
    new_world: NewWorld, tmp_path: Path
) -> None:
    world = new_world("default")
    entry = world.train().runs.finished
    found = served(world)
    state = world.folder / "server"
    assert (found.version, found.about.family, found.size) == (
        entry.version,
        "ratings",
        len(world.public.items),
    )
    assert [found.ids[j] for j in range(found.size)] == list(world.public.items)
    # where nothing but ids is known
    assert [found.titles[j] for j in range(found.size)] == list(world.public.items)
    assert found.about.training["epsilon"] == 5.0
    assert found.about.noise == "seeded"  # the aggregator of these tests says so itself
    assert (state / "model").resolve() == (run_folder(state) / "model").resolve()
    for source in (state, state / "model", run_folder(state)):
        export(source, tmp_path / "b.safetensors")
        assert (tmp_path / "b.safetensors").read_bytes() == (state / bundle.FILE).read_bytes()


@pytest.mark.slow
def test_titles_and_categories_of_public_data_reach_the_bundle(new_world: NewWorld) -> None:
    world = new_world("default")
    world.public = replace(
        world.public, titles=tuple(f"title {j}" for j in range(len(world.public.items)))
    )
    world.train()
    assert served(world).titles[3] == "title 3"
    assert served(world).about.categories  # of the planted genres


def test_a_model_that_cannot_be_served_says_why_and_leaves_the_bundle_before_it(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(client_limit=8.0)
    world.train()
    before = (world.folder / "server" / bundle.FILE).read_bytes()

    def refuse(*_: Any, **__: Any) -> None:
        raise SettingsError("its items are all alike", "Train it with a larger epsilon.")

    monkeypatch.setattr("fedrec.serving.model_bundles.factorization_bundle", refuse)
    entry = world.train(again=True).runs.finished
    assert (entry.version, "all alike" in entry.refused) == ("", True)
    assert (world.folder / "server" / bundle.FILE).read_bytes() == before


def test_without_the_aggregators_word_on_its_noise_there_is_no_bundle(new_world: NewWorld) -> None:
    world = new_world()
    trainings = world.trainings()
    trainings.budget = lambda: None
    entry = world.train(trainings=trainings).runs.finished
    assert "does not say where it draws noise" in entry.refused
    assert not (world.folder / "server" / bundle.FILE).exists()


def test_a_crash_at_any_step_of_publishing_leaves_the_old_bundle_or_the_new_one(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(client_limit=8.0)
    world.train()
    state = world.folder / "server"
    saved = world.folder / "saved"
    old = (state / bundle.FILE).read_bytes()
    move = os.replace
    trainings = world.trainings(again=True)
    each = trainings.each(world.time.sleep)
    next(each)
    world.trained_in(trainings)
    shutil.copytree(state, saved, symlinks=True)
    next(each, None)
    new = (state / bundle.FILE).read_bytes()
    runs = trainings.runs.entries
    assert new != old

    class CrashError(Exception):
        pass

    for crash_at in range(100):
        shutil.rmtree(state)
        shutil.copytree(saved, state, symlinks=True)
        steps = iter(range(crash_at))

        def replacing(source: Any, target: Any, steps: Any = steps) -> None:
            if next(steps, None) is None:
                raise CrashError
            move(source, target)

        resumed = world.trainings()
        each = resumed.each(world.time.sleep)
        next(each)
        with monkeypatch.context() as patch:
            patch.setattr("os.replace", replacing)
            try:
                next(each, None)
            except CrashError:
                crashed = True
            else:
                crashed = False
        assert (state / bundle.FILE).read_bytes() in (old, new)
        world.train()  # to the same end
        assert (state / bundle.FILE).read_bytes() == new
        assert [replace(entry, finished_s=0) for entry in Runs(state).entries] == [
            replace(entry, finished_s=0) for entry in runs
        ]
        if not crashed:
            assert crash_at == 5  # bundle, its entry, the current bundle, the link, the end
            return
    raise AssertionError("publishing never ends")


# --- again ---


def test_a_finished_folder_asks_nobody_and_says_what_it_holds(new_world: NewWorld) -> None:
    world = new_world()
    runs = world.train().runs
    said = words_of(runs)
    charges = world.charges
    assert not world.trainings().schedule.due(runs.finished, begun=1)
    assert all(
        word in said
        for word in (runs.finished.run, runs.finished.version, "epsilon 5", "--again", "1970-01-01")
    )
    assert world.charges == charges


@pytest.mark.slow
def test_training_again_is_a_new_run_charged_on_top_by_aggregator_and_clients(
    new_world: NewWorld,
) -> None:
    world = new_world("default", client_limit=8.0, aggregator_limit=8.0)
    first = world.train(name="books").runs.finished
    files = {
        path: path.read_bytes()
        for path in run_folder(world.folder / "server").rglob("*.*")
        if path.is_file()
    }
    second = world.train(name="books", again=True).runs.finished
    assert (first.run, second.run) == ("books", "books-2")
    assert {path: path.read_bytes() for path in files} == files
    for spent in (
        world.endpoint.ledger.spends().epsilon,
        *(site.participant.ledger.epsilon for site in world.sites),
    ):
        assert spent == pytest.approx(second.total.epsilon, rel=1e-6)
    mu = math.sqrt(2) * first.mu  # two runs of the same plan
    assert delta_of(mu, second.total.epsilon) == pytest.approx(1e-5, rel=1e-4)
    found = served(world).about
    assert (found.training["epsilon"], found.training["runs"]) == (second.total.epsilon, 2)
    assert f"{second.total.epsilon}" in replace_noise(found).trained
    assert "2 trainings" in replace_noise(found).trained


def replace_noise(about: bundle.About) -> bundle.About:
    return about.model_copy(update={"noise": "system"})


def test_a_later_training_learns_from_what_devices_hold_then(new_world: NewWorld) -> None:
    world = new_world(client_limit=8.0)
    asked = list[int]()
    world.train()
    world.clients.sites = world.sites[:2]  # a site has left
    rate_everything(world, 5.0)
    trainings = world.trainings(again=True)
    world.train(trainings=trainings)
    for line in (trainings.folder / "rounds.jsonl").read_text().splitlines():
        asked.append(json.loads(line)["reported"])
    assert asked == [27, 27, 27]
    assert (
        trainings.folder.parent / trainings.runs.entries[0].run / "model" / "model.safetensors"
    ).read_bytes() != world.model


def test_an_unfinished_training_goes_on_and_counts_whole(new_world: NewWorld) -> None:
    world = new_world(client_limit=8.0)
    trainings = world.trainings()
    next(trainings.each(world.time.sleep))
    trainings.planned(world.plan)
    dropped = together(trainings.runs.entries)
    assert dropped is not None
    assert dropped.epsilon == 5.0
    said = list[str]()
    finished = world.train(again=True, say=said.append).runs
    # --again goes on with it
    assert [entry.run for entry in finished.entries] == [trainings.entry.run]
    assert said[0].startswith(f"goes on with {trainings.entry.run}: ")
    assert not finished.last.open


def test_a_training_that_is_left_for_good_counts_whole_and_another_begins(
    new_world: NewWorld,
) -> None:
    world = new_world(client_limit=8.0)
    trainings = world.trainings()
    next(trainings.each(world.time.sleep))
    trainings.planned(world.plan)
    trainings.runs.drop()
    runs = world.train().runs
    assert [(entry.dropped, bool(entry.finished_s)) for entry in runs.entries] == [
        (True, False),
        (False, True),
    ]
    assert delta_of(math.sqrt(2) * runs.last.mu, runs.last.total.epsilon) == pytest.approx(
        1e-5, rel=1e-4
    )
    runs.drop()  # a finished one stays
    assert not runs.last.dropped


@pytest.mark.parametrize("mus", [(1.0, 0.0), (0.0, 0.0)])
def test_where_a_training_is_not_of_known_releases_epsilons_and_deltas_add_up(
    mus: tuple[float, float],
) -> None:
    promised = Guarantee(2.0, 1e-5, "click", "replace")
    total = together(
        [TrainingRun(f"r{k}", 0.0, guarantee=promised, mu=mu) for k, mu in enumerate(mus)]
    )
    assert total is not None
    assert (total.epsilon, total.delta, total.unit) == (4.0, 2e-5, "click")


def test_a_folder_of_one_training_is_taken_over_also_after_a_crash(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world()
    world.run(run="old")  # the layout before there were several
    state = world.folder / "server"
    model = world.model
    move = os.replace
    moved = list[str]()

    def crashing(source: Any, target: Any) -> None:
        if len(moved) == 3:
            raise KeyboardInterrupt
        moved.append(str(target))
        move(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("fedrec_server.runs.os.replace", crashing)
        with pytest.raises(KeyboardInterrupt):
            world.trainings()
    charges = world.charges
    runs = world.train().runs
    assert [entry.run for entry in runs.entries] == ["old"]
    assert not (state / "run.json").exists()
    assert (world.model, world.charges) == (model, charges)
    assert runs.finished.total.epsilon == 5.0


# --- what it begins with ---


@pytest.mark.slow
def test_a_second_training_begins_with_the_release_of_the_first_and_asks_for_less(
    new_world: NewWorld,
) -> None:
    world = new_world("default", client_limit=8.0)
    world.endpoint._noise = SystemStreams()  # of seeded noise there is no certificate
    said = list[str]()
    first = world.train().runs.finished
    trainings = world.train(again=True, say=said.append)
    names = [charge.release for charge in world.endpoint.ledger.spends().charges]
    assert names.count("biases") == 1  # of two trainings
    assert (trainings.entry.warm, first.warm) == (first.run, "")
    assert any("starts from the release of" in line for line in said)
    assert trainings.runs.finished.total.epsilon == pytest.approx(
        world.endpoint.ledger.spends().epsilon, rel=1e-6
    )
    for run in (first, trainings.runs.finished):
        found = verify(world.folder / "server" / "runs" / run.run)
        assert (found.difference, found.guarantee.epsilon) == (0.0, 5.0)


@pytest.mark.slow
def test_a_training_that_goes_on_after_a_crash_began_with_the_same(
    new_world: NewWorld, crashing_at: Callable[..., None]
) -> None:
    whole = new_world("default", client_limit=8.0)
    crashed = new_world("default", client_limit=8.0, name="crashed")
    for world in (whole, crashed):
        world.train(name="books")
    trainings = crashed.trainings(again=True, name="books")
    next(trainings.each(crashed.time.sleep))
    crashing_at(crashed, trainings, 3)
    crashed.train(name="books")
    whole.train(again=True, name="books")
    assert crashed.model == whole.model


@pytest.mark.slow
@pytest.mark.parametrize("change", ["an item is new", "nothing is kept", "it is switched off"])
def test_where_the_last_release_is_no_start_a_training_begins_cold(
    change: str, new_world: NewWorld
) -> None:
    world = new_world("default", client_limit=8.0)
    world.train()
    if change == "an item is new":
        world.public = replace(world.public, items=(*world.public.items[:-1], "new"))
    elif change == "nothing is kept":
        shutil.rmtree(run_folder(world.folder / "server") / "checkpoints")
    else:
        world.warm = False
    trainings = world.train(again=True)
    assert trainings.entry.warm == ""
    assert [charge.release for charge in world.endpoint.ledger.spends().charges].count(
        "biases"
    ) == 2


def test_a_last_release_that_cannot_be_read_now_is_waited_for(new_world: NewWorld) -> None:
    world = new_world("default", client_limit=8.0)
    world.train()
    runs = Runs(world.folder / "server")
    with none_left(), pytest.raises((UnreadableError, OSError)):
        earlier_of(runs, runs.folder("next"), world.public.items)
    assert earlier_of(runs, runs.folder("next"), world.public.items) is not None


# --- what cannot be afforded ---


def test_what_the_aggregators_limit_does_not_hold_is_refused_before_anybody_is_asked(
    new_world: NewWorld,
) -> None:
    world = new_world(client_limit=8.0, aggregator_limit=6.0)
    said = list[str]()
    world.train()
    charges = world.charges
    world.clients.join = None  # nobody may be called
    with pytest.raises(
        RefusedError, match=r"epsilon 5 does not fit the aggregator's limit of epsilon 6"
    ) as caught:
        world.train(again=True, say=said.append)
    assert caught.value.code == "budget"
    assert (
        "Still possible: a training of epsilon 2.799. This one fits a limit of epsilon 7.538, "
        in caught.value.remedy
    )
    assert (
        "spent so far epsilon 5 in 1 training, this training epsilon 5, after it epsilon 7.5"
        in said[0]
    )
    assert world.charges == charges
    assert len(Runs(world.folder / "server").entries) == 1


def test_an_aggregator_that_could_not_be_asked_is_asked_before_anybody_else_is(
    new_world: NewWorld,
) -> None:
    world = new_world(client_limit=20.0, aggregator_limit=6.0)
    said = list[str]()
    honest = list[int]()
    world.train()
    trainings = world.trainings(again=True, say=said.append)

    def budget() -> Budget:
        honest.append(1)
        if len(honest) == 1:
            raise UnreachableError("the aggregator does not answer", "Start it.")
        found: Budget = world.endpoint.budget()
        return found

    trainings.budget = budget
    charges = world.charges
    with pytest.raises(
        RefusedError, match=r"epsilon 5 does not fit the aggregator's limit of epsilon 6"
    ):
        world.train(trainings=trainings)
    assert world.charges == charges
    assert (
        sum(line.startswith("aggregator's ledger, over all runs: epsilon 5 of 6") for line in said)
        == 1
    )
    runs = Runs(world.folder / "server")
    assert [(entry.dropped, entry.total and entry.total.epsilon) for entry in runs.entries] == [
        (False, 5.0),
        (True, None),
    ]


def test_what_is_said_to_be_still_possible_is_what_the_ledger_takes(new_world: NewWorld) -> None:
    world = new_world(client_limit=20.0, aggregator_limit=6.0)
    world.train()
    left = world.endpoint.budget().left_epsilon
    require_affordable(Guarantee(left, 1e-5), world.endpoint.budget())
    with pytest.raises(RefusedError):
        require_affordable(Guarantee(left * 1.01, 1e-5), world.endpoint.budget())
    world.scenario = load(None, [*SMALL, f"privacy.epsilon={left * 0.9999}"])
    world.train(again=True)
    assert world.endpoint.ledger.spends().epsilon == pytest.approx(6.0, rel=1e-3)


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 4.7])
def test_a_limit_of_what_is_said_to_be_needed_has_room_and_a_smaller_one_has_none(
    epsilon: float,
) -> None:
    spent = Budget(4.0, 5.0, 1e-5, 0.0, "user", "system")
    with pytest.raises(RefusedError) as caught:
        require_affordable(Guarantee(epsilon, 1e-5), spent)
    needed = float(caught.value.remedy.split("a limit of epsilon ")[1].split(",")[0])
    left = {
        limit: math.sqrt(mu_for(limit, 1e-5) ** 2 - mu_for(4.0, 1e-5) ** 2)
        for limit in (needed, needed * 0.999)
    }
    require_affordable(
        Guarantee(epsilon, 1e-5), replace(spent, left_epsilon=epsilon_of(left[needed], 1e-5))
    )
    with pytest.raises(RefusedError):
        require_affordable(
            Guarantee(epsilon, 1e-5),
            replace(spent, left_epsilon=epsilon_of(left[needed * 0.999], 1e-5)),
        )


def test_a_standing_server_that_cannot_afford_a_training_waits(new_world: NewWorld) -> None:
    world = new_world(client_limit=8.0, aggregator_limit=6.0)
    said = list[str]()

    class OverError(Exception):
        pass

    def sleep(seconds: float) -> None:
        world.time.sleep(60 * seconds)
        if world.time() > 30_000:
            raise OverError

    trainings = world.trainings(every_s=7_200.0, say=said.append)
    each = trainings.each(sleep)
    next(each)
    world.trained_in(trainings)
    with pytest.raises(OverError):
        next(each)
    # once in two hours, of eight
    assert 2 <= sum(line.startswith("not trained") for line in said) <= 4
    assert len(trainings.runs.entries) == 1


def test_a_standing_server_that_is_refused_says_so_and_keeps_its_schedule(
    new_world: NewWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """A ledger that went back is refused rightly; when it is put right, the training goes on."""
    world = new_world(client_limit=20.0)
    metrics = Metrics("server", "1")
    said = list[str]()
    waited = list[str]()

    def sleep(seconds: float) -> None:
        waited.append(metrics.state.awaited)
        world.time.sleep(60 * seconds)

    def refuse() -> None:
        raise refused(Refusal.STALE_LEDGER, "the ledger is older", "Restore the newest backup.")

    trainings = world.trainings(every_s=7_200.0, say=said.append, state=metrics.state)
    each = trainings.each(sleep)
    first = next(each).run
    for _ in range(2):
        trainings.attempt(refuse)
        assert next(each).run == first
    trainings.attempt(lambda: world.trained_in(trainings))
    assert next(each).run != first
    assert trainings.runs.entries[0].finished_s
    stopped = [record for record in caplog.records if record.message == "training-stopped"]
    assert [record.levelname for record in stopped] == ["ERROR", "ERROR"]
    assert stopped[0].fields["code"] == Refusal.STALE_LEDGER  # type: ignore[attr-defined]
    assert sum("Restore the newest backup" in line for line in said) == 2
    assert Awaited.OPERATOR in waited
    assert waited[-1] == Awaited.SCHEDULE


def test_a_server_that_does_not_stand_ends_with_its_refusal(new_world: NewWorld) -> None:
    trainings = new_world().trainings()
    next(trainings.each(lambda _: None))

    def refuse() -> None:
        raise refused(Refusal.STALE_LEDGER, "the ledger is older", "Restore the newest backup.")

    with pytest.raises(RefusedError):
        trainings.attempt(refuse)


# --- when ---


def test_durations_are_a_number_and_a_unit() -> None:
    assert [duration_s(text) for text in ("90s", "15m", "12h", "7d", "2w", "0.5h")] == [
        90,
        900,
        43_200,
        604_800,
        1_209_600,
        1_800,
    ]
    for wrong in ("", "7", "d", "-1d", "0s", "7 days", "1e9d", "inf"):
        with pytest.raises(SettingsError):
            duration_s(wrong)


def test_a_model_is_old_by_the_clock_or_by_how_long_the_process_has_waited(tmp_path: Path) -> None:
    wall = [10_000.0]
    steady = [0.0]
    schedule = TrainingSchedule(tmp_path, 100.0, clock=lambda: wall[0], monotonic=lambda: steady[0])
    last = TrainingRun("r", 0.0, finished_s=9_950.0)
    assert not schedule.due(last, begun=1)
    steady[0] = 49.0
    for shown in (0.0, 10_049.0, 1e6):  # set back, right, set ahead
        wall[0] = shown
        assert not schedule.due(last, begun=1)
    steady[0] = 51.0
    assert schedule.due(last, begun=1)
    schedule.taken()
    wall[0] = 500.0
    last = TrainingRun("r2", 0.0, finished_s=10_051.0)  # set back while it trained
    steady[0] = 150.0
    assert not schedule.due(last, begun=2)
    steady[0] = 152.0
    assert schedule.due(last, begun=2)


@pytest.mark.parametrize("where", ["fedrec_server.runs.write_json", "pathlib.Path.unlink"])
def test_a_crash_when_a_request_is_taken_makes_neither_none_nor_two_of_it(
    where: str, new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(client_limit=20.0)
    world.train()
    state = world.folder / "server"
    with only_one(state):
        (state / "server.json").write_text(json.dumps({"pid": 4711, "stands": True}))
        ask_standing(state)

    def crash(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(where, crash)
        with pytest.raises(KeyboardInterrupt):
            world.train()
    assert len(world.train().runs.entries) == 2
    assert len(world.train().runs.entries) == 2


def test_a_request_that_cannot_be_read_now_makes_no_training(tmp_path: Path) -> None:
    """It may be of a training that has begun already: that would be paid for twice."""
    last = TrainingRun("r", 0.0, finished_s=1e12)
    schedule = TrainingSchedule(tmp_path, 1e9)
    for after, due in ((0, False), (1, True)):
        (tmp_path / REQUEST).write_text(json.dumps({"after": after}))
        with none_left():
            assert not schedule.due(last, begun=1)
        assert schedule.due(last, begun=1) is due


def test_a_training_that_stopped_is_tried_again_soon_and_then_ever_later(tmp_path: Path) -> None:
    now = [0.0]
    schedule = TrainingSchedule(tmp_path, 1e9, monotonic=lambda: now[0])

    def sleep(seconds: float) -> None:
        now[0] += seconds

    ends = []
    for _ in range(9):
        schedule.pause(sleep)
        ends.append(now[0])
    assert list(np.diff([0.0, *ends])) == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0]
    schedule.taken()
    schedule.pause(sleep)
    assert now[0] - ends[-1] == 5.0


def test_a_request_that_says_nothing_is_one(tmp_path: Path) -> None:
    last = TrainingRun("r", 0.0, finished_s=1e12)
    for content in ("", "[]", '{"asked_s": 1}', '{"after": "x"}'):
        (tmp_path / REQUEST).write_text(content)
        assert TrainingSchedule(tmp_path, 1e9).due(last, begun=1), content


def test_a_request_is_taken_once_and_only_where_a_server_stands(
    tmp_path: Path, new_world: NewWorld
) -> None:
    assert ask_standing(tmp_path) == 0
    with only_one(tmp_path):
        with pytest.raises(RunError, match="another server is at work"):
            ask_standing(tmp_path)
        (tmp_path / "server.json").write_text(json.dumps({"pid": 4711, "stands": False}))
        with pytest.raises(RunError, match="another server is at work"):
            ask_standing(tmp_path)
        (tmp_path / "server.json").write_text(json.dumps({"pid": 4711, "stands": True}))
        assert ask_standing(tmp_path) == 4711
    schedule = TrainingSchedule(tmp_path, 1e9)
    last = TrainingRun("r", 0.0, finished_s=1e12)
    assert (tmp_path / REQUEST).exists()
    assert schedule.due(last, begun=0)
    assert not schedule.due(last, begun=1)  # another has begun since
    schedule.taken()
    assert not schedule.due(last, begun=0)


# --- a server that cheats ---


def test_a_run_id_that_comes_again_with_other_public_data_is_refused_by_clients_and_costs_nothing(
    new_world: NewWorld,
) -> None:
    world = new_world(client_limit=8.0)
    world.train(name="books")
    spent = [site.participant.ledger.epsilon for site in world.sites]
    charges = world.charges
    shutil.rmtree(world.folder / "server")
    world.public = replace(world.public, items=world.public.items[::-1])
    with pytest.raises(Exception, match="the terms of run books changed"):
        world.train(name="books")
    assert [site.participant.ledger.epsilon for site in world.sites] == spent
    assert world.charges == charges


def test_the_same_run_again_is_the_same_release_and_the_same_reports(new_world: NewWorld) -> None:
    """Whoever loses its state folder and asks anew under the old name learns nothing new, and
    nobody is charged."""
    world = new_world(client_limit=8.0)
    world.train(name="books")
    spent = [site.participant.ledger.epsilon for site in world.sites]
    charges = world.charges
    model = world.model
    shutil.rmtree(world.folder / "server")
    rate_everything(world, 1.0)
    world.train(name="books")
    assert [site.participant.ledger.epsilon for site in world.sites] == spent
    assert (world.charges, world.model) == (charges, model)
