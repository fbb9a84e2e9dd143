"""Versions that are published, and versions that are kept: by what people say of the new model and
the one that serves, on the same rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.certificates.writing import FactorizationInputs, read_inputs
from fedrec.errors import SettingsError
from fedrec.evaluation.estimates import estimate
from fedrec.factorization import held_out
from fedrec.factorization.held_out import RELEASE, STEP, longest, measured, reports_of
from fedrec.federation.messages import Question, ReleaseSpec
from fedrec.federation.releases import release
from fedrec.federation.reports import ExactSums, block
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.settings import load
from fedrec.storage import read_json, write_files, write_json
from fedrec_server.main import run
from fedrec_server.runs import Runs, quality_of
from fedrec_server.settings import validated
from fedrec_server.trainings import not_published
from tests.factorization.test_held_out import made_for, people_of, trained
from tests.server.test_server_settings import changed

NewWorld = Callable[..., Any]


def said(rows: np.ndarray, seed: int) -> dict[str, Any]:
    """What a manifest has of these people's numbers, by the product's reports, sums and noise at
    epsilon 5 and a share of .01."""
    made = made_for("dp-popularity", people_of("clicks", 30), "privacy.epsilon=5", share=0.01)
    spec = ReleaseSpec(RELEASE, (block(RELEASE, "linear", rows=1, width=8),))
    question = Question(1, STEP, {"serving.clicks.x": np.array(0.0)}, (spec,))
    sums = ExactSums(question.blocks)
    sums.add(reports_of(question, rows))
    ledger = Ledger(made.plan.guarantee)
    answer, _ = release(question, sums.blocks, made.plan, ledger, noise=Streams(seed))
    length = longest(8, paired=True)
    noise_std = length * answer.noise_std[RELEASE]
    return estimate(length * answer.values[RELEASE][0], noise_std=noise_std).as_dict()


def numbers(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Of (n,) NDCG of the new model and of the one that serves."""
    nothing = np.full(len(new), -0.5)
    columns = [np.ones(len(new)), new - 0.5, new**2 - 0.5, nothing, nothing, nothing]
    return np.column_stack([*columns, new - old, (new - old) ** 2 - 0.5])


def ndcg(rng: np.random.Generator, people: int) -> np.ndarray:
    return np.where(rng.random(people) < 0.4, 1 / np.log2(1 + rng.integers(1, 21, people)), 0.0)


def test_a_spoiled_version_is_refused_in_20_of_20_and_a_good_one_in_at_most_1() -> None:
    """10,000 people. Spoiled: three in ten of those who found their item no longer do. Good: as
    many find it as before, a tenth of them others. Of 20 good ones one in two such tests would
    refuse one with other seeds, and one in eleven two."""
    spoiled = good = 0
    for seed in range(20):
        rng = np.random.default_rng((59, seed))
        old = ndcg(rng, 10_000)
        bad = np.where(rng.random(10_000) < 0.3, 0.0, old)
        other = np.where(rng.random(10_000) < 0.1, ndcg(rng, 10_000), old)
        spoiled += bool(not_published("not-worse", said(numbers(bad, old), seed)))
        good += bool(not_published("not-worse", said(numbers(other, old), seed)))
        assert not_published("better", said(numbers(bad, old), seed))
        assert not not_published("better", said(numbers(old, bad), seed))
        assert not not_published("always", said(numbers(bad, old), seed))
    assert spoiled == 20
    assert good <= 1


def test_the_gain_is_positive_where_the_new_model_is_better() -> None:
    """Lists, whose numbers are better when larger, and errors, which are better when smaller."""
    for name, kind, column in (("dp-item-item", "clicks", 6), ("dp-bias", "ratings", 4)):
        events = people_of(kind, 200)
        recipe, state = trained(name, events, "privacy.epsilon=inf")
        good = recipe.model(state)
        if kind == "clicks":
            bad = replace(good, counts=-good.counts, similar=replace(good.similar, right=-good.similar.right))  # fmt: skip
        else:
            bad = replace(good, bias=good.bias + 2)
        assert measured(events, good, bad)[:, column].sum() > 0
        assert measured(events, bad, good)[:, column].sum() < 0
        assert not measured(events, good, good)[:, column].any()


def test_a_version_that_is_not_better_is_kept_and_what_served_serves(new_world: NewWorld) -> None:
    world = new_world("evaluated", client_limit=20.0)
    heard = list[str]()
    first = world.train(trainings=world.trainings(rule="better", say=heard.append))
    assert not first.runs.entries[0].unpublished  # it is compared with nothing
    serves = (world.folder / "server" / "model").resolve()
    world.train(trainings=world.trainings(rule="better", again=True, say=heard.append))
    runs = world.trainings().runs
    kept = runs.entries[1]
    assert "publish.rule = 'better'" in kept.unpublished
    assert any(line.startswith("kept and not published") for line in heard)
    assert (world.folder / "server" / "model").resolve() == serves
    assert (runs.serving.run, runs.finished.run) == (runs.entries[0].run, kept.run)
    assert (runs.folder(kept.run) / "model" / "manifest.json").exists()
    world.train(trainings=world.trainings(rule="not-worse", again=True, say=heard.append))
    assert (
        not world.trainings().runs.entries[2].unpublished
    )  # 40 people cannot say that it is worse
    assert (world.folder / "server" / "model").resolve() != serves


def test_what_learned_rows_that_are_held_out_now_is_no_measure_and_no_start(
    new_world: NewWorld,
) -> None:
    """People are asked from the second training on: the first model knows the rows that they hold
    out, and would win by them."""
    world = new_world("evaluated", client_limit=20.0)
    asked = world.scenario
    plain = asked.privacy.model_copy(update={"evaluation_share": 0.0})
    world.scenario = asked.model_copy(update={"privacy": plain})
    first = world.train()
    assert not first.held_out
    assert first.earlier(world.public.items, evaluated=True) is None
    world.scenario = asked
    heard = list[str]()
    second = world.train(trainings=world.trainings(rule="better", again=True, say=heard.append))
    assert any(line.startswith("compared with nothing") for line in heard)
    assert not second.runs.entries[1].unpublished
    assert second.held_out
    heard.clear()
    third = world.train(trainings=world.trainings(rule="better", again=True, say=heard.append))
    assert third.runs.entries[2].unpublished
    assert not any(line.startswith("compared with nothing") for line in heard)


def test_a_run_that_goes_on_asks_of_the_same_model(
    new_world: NewWorld, crashing_at: Callable[..., None]
) -> None:
    world = new_world("evaluated", client_limit=20.0)
    world.train()
    trainings = world.trainings(rule="not-worse", again=True)
    next(trainings.each(world.time.sleep))
    crashing_at(world, trainings, 1)
    again = world.trainings(rule="not-worse", again=True)
    world.train(trainings=again)
    last = again.runs.entries[1]
    said = read_json(again.runs.folder(last.run) / "model" / "manifest.json")["evaluation"]
    assert said["gain"]["low"] <= said["gain"]["value"] <= said["gain"]["high"]
    assert (again.runs.folder(last.run) / "serving.safetensors").exists()


def test_a_certificate_keeps_the_model_that_was_compared(
    new_world: NewWorld, tmp_path: Path
) -> None:
    world = new_world("evaluated")
    events = people_of("ratings")
    recipe, state = trained("dp-bias", events)
    inputs = FactorizationInputs(world.public, 40, None, recipe.model(state))
    write_files(tmp_path, inputs.files())
    again = read_inputs(tmp_path, 40)
    assert again.files() == inputs.files()
    serving = again.server_side(world.scenario).recipe.serving  # type: ignore[attr-defined]
    assert np.array_equal(serving.item_vectors, recipe.model(state).item_vectors)


def test_a_rule_without_an_evaluation_is_refused_by_name() -> None:
    settings = validated(changed(publish={"rule": "better"}), source="test")
    with pytest.raises(SettingsError, match="evaluation_share"):
        run(load(None, ["recipe=dp-bias"]), settings)


def test_both_models_are_asked_of_the_same_row() -> None:
    events = people_of("clicks")
    recipe, state = trained("dp-item-item", events)
    model = recipe.model(state)
    other = replace(recipe, serving=model)
    question = other.ask({n: a for n, a in state.items() if not n.startswith(RELEASE)})
    assert question.releases[0].blocks[0].width == 8
    report = held_out.report_evaluation(question, events)
    assert not report.blocks[0].vectors[:, 6].any()  # a model is no better than itself


@pytest.mark.parametrize(("metric", "sign"), [("NDCG@20", 1.0), ("RMSE", -1.0)])
def test_a_version_is_behind_the_first_where_its_whole_interval_is_worse(
    tmp_path: Path, metric: str, sign: float
) -> None:
    runs = Runs(tmp_path)
    assert quality_of(runs) == {}

    def finished(value: float) -> float:
        run = runs.begin(name="", now_s=0.0).run
        ends = sorted([value - sign * 0.01, value + sign * 0.01])
        model = {"value": value, "low": ends[0], "high": ends[1]}
        said = {"metric": metric, "model": model, "everybody": 0.1, "people": 99}
        write_json(runs.folder(run) / "model" / "manifest.json", {"evaluation": said})
        return quality_of(runs)["behind_first"]

    assert finished(0.5) < 0  # the first itself
    assert finished(0.5 - sign * 0.019) < 0
    assert finished(0.5 - sign * 0.03) == pytest.approx(0.01)
    assert finished(0.5 + sign * 0.2) < 0
    assert quality_of(runs)["people"] == 99
