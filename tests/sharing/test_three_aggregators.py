"""Trainings over three aggregators in this process: the bytes of plain sums with the same three
noises, for every recipe."""

import dataclasses
import math
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from fedrec import in_process as in_process
from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.interactions import Interactions
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.errors import SettingsError
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import train
from fedrec.in_process import Loopback, ThreeAggregators
from fedrec.news import central, central_client, text_topics, topics
from fedrec.operations.metrics import Metrics
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import among_three
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, client_recipe, prepare
from fedrec.run import simulate
from fedrec.run.job import RuntimeChoice
from fedrec.run.statement import promises, sentences
from fedrec.settings import load
from fedrec.transport.aggregator_client import Retry
from fedrec_server.aggregation import aggregation_of
from fedrec_server.settings import validated
from tests.torch_modules.registered import TORCH

ITEMS = 30
RECIPES = {
    "default": ["recipe=default"],
    "default, clicks": ["recipe=default", "data.kind=clicks"],
    "convex-ssp, clicks": [
        "recipe=convex-ssp",
        "model.dimension=3",
        "model.steps=2",
        "data.kind=clicks",
    ],
    "published": ["recipe=published", "model.dimension=3", "model.steps=2", "model.encoder=id"],
    "published, clicks": [
        "recipe=published",
        "model.dimension=3",
        "model.steps=2",
        "model.encoder=id",
        "data.kind=clicks",
    ],
    "dp-cmf": ["recipe=dp-cmf", "model.dimension=3", "model.steps=2"],
    "noisy-descent": ["recipe=noisy-descent", "model.dimension=3", "model.steps=2"],
    "dp-gd": ["recipe=dp-gd", "model.dimension=3", "model.steps=2"],
    "am-dpsgd": ["recipe=am-dpsgd", "model.dimension=3", "model.steps=2", "model.encoder=id"],
    "dp-bias": ["recipe=dp-bias"],
    "dp-popularity, clicks": ["recipe=dp-popularity", "data.kind=clicks"],
    "encoder-descent": ["recipe=encoder-descent", "model.dimension=3", "model.steps=2"],
    "torch, clicks": [*TORCH, "data.kind=clicks"],
    "dp-item-item, clicks": ["recipe=dp-item-item", "data.kind=clicks"],
}
THREE = ["privacy.aggregation=three-party"]


def events(kind: str, num_users: int = 40) -> Interactions:
    rng = np.random.default_rng(2)
    held = [np.flatnonzero(rng.random(ITEMS) < rng.random() ** 2) for _ in range(num_users)]
    held[0] = np.arange(ITEMS)
    held[1] = np.arange(0)
    users = np.repeat(np.arange(num_users), [len(h) for h in held])
    items = np.concatenate(held)
    values = rng.integers(1, 6, len(users)).astype(float)
    rated = Interactions.from_columns(
        users, items, values, num_users=num_users, num_items=ITEMS, value_range=(1.0, 5.0)
    )
    if kind == "ratings":
        return rated
    return dataclasses.replace(
        rated, values=np.ones(len(rated), np.float32), value_range=(0.0, 1.0), kind="clicks"
    )


def prepared(keys: list[str], data: Interactions) -> Prepared:
    bag = FeatureBag(
        ("old", "new", "long"),
        sparse.csr_matrix(np.random.default_rng(0).random((ITEMS, 3)) < 0.4, dtype=np.float32),
    )
    facts = PublicFacts(
        data.num_users,
        data.num_items,
        data.kind,
        data.value_range,
        PublicFeatures({"kind": bag}),
        Streams(1),
    )
    return prepare(load(None, keys), facts)


def link(data: Interactions, made: Prepared, **kwargs: Any) -> Loopback:
    return Loopback(data, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee), **kwargs)


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_round_of_shares_is_that_of_plain_sums_with_the_same_three_noises(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "_BATCH_BYTES", 8 * 5 * ITEMS)  # a few users at a time
    data = events("clicks" if "clicks" in name else "ratings")
    made = prepared([*RECIPES[name], *THREE], data)
    plain = link(data, made)
    devices = link(data, made, users_per_batch=17)
    shares = ThreeAggregators(devices)
    state = made.recipe.begin()
    rounds = 0
    for done in train(made.recipe, plain, state):
        answer = shares.answer(done.question)
        assert answer.noise_std == done.answer.noise_std
        for block, value in answer.values.items():
            assert value.tobytes() == done.answer.values[block].tobytes(), (
                done.question.step,
                block,
            )
        rounds += 1
    assert rounds
    assert (plain.bytes_up, plain.ledger) == (devices.bytes_up, devices.ledger)


def test_every_round_of_news_is_that_of_plain_sums_with_the_same_three_noises() -> None:
    """`central`: a dense square block, and a block in which every user has every row."""
    planted = planted_news(
        PlantedNewsShape(
            users=60, news=300, history_mean=6, impressions_mean=3, candidates=5, strength=5.0
        ),
        seed=2,
    )
    vectors = topics.public_vectors(planted.news, PublicFeatures({}), seed=2, dimension=8)
    table = text_topics.text_topics(vectors, topics=4, rng=np.random.default_rng(2))
    settings = central.CentralSettings(rounds=2)
    plan = among_three(
        central.plan_of(Guarantee(5.0, 1e-5), settings), calibrated_for="one-corrupt"
    )
    recipe = central.CentralRecipe.of(plan, settings, table, vectors, 10)
    plain, devices = (
        Loopback(
            planted.log.train,
            central_client.client_steps(10),
            plan,
            Streams(1),
            Ledger(plan.guarantee),
        )
        for _ in range(2)
    )
    shares = ThreeAggregators(devices)
    for done in train(recipe, plain, recipe.begin()):
        for block, value in shares.answer(done.question).values.items():
            assert value.tobytes() == done.answer.values[block].tobytes(), (
                done.question.step,
                block,
            )
    assert (
        plain.bytes_up
        == devices.bytes_up
        == planted.log.train.num_users * recipe.done(done.state).bytes_up
    )


def test_without_noise_three_aggregators_give_the_trusted_sums() -> None:
    data = events("ratings")
    trusted, three = (prepared(["privacy.epsilon=inf", *more], data) for more in ([], THREE))
    *_, plain = train(trusted.recipe, link(data, trusted), trusted.recipe.begin())
    *_, shared = train(three.recipe, ThreeAggregators(link(data, three)), three.recipe.begin())
    for name, array in plain.state.items():
        assert np.asarray(array).tobytes() == np.asarray(shared.state[name]).tobytes(), name


def test_a_planted_favourite_is_found() -> None:
    """300 of 400 people have item 7, everything else one in twenty: among three aggregators at
    epsilon 5 it is most popular."""
    rng = np.random.default_rng(1)
    held = [
        np.flatnonzero(np.where(np.arange(ITEMS) == 7, k < 300, rng.random(ITEMS) < 0.05))
        for k in range(400)
    ]
    users = np.repeat(np.arange(400), [len(h) for h in held])
    items = np.concatenate(held)
    data = Interactions.from_columns(
        users, items, None, num_users=400, num_items=ITEMS, value_range=(0.0, 1.0), kind="clicks"
    )
    made = prepared(["recipe=dp-popularity", "data.kind=clicks", *THREE], data)
    *_, last = train(made.recipe, ThreeAggregators(link(data, made)), made.recipe.begin())
    assert int(np.argmax(last.answer.values["counts"][:, 0])) == 7


def test_the_recipes_own_choices_are_those_of_the_scenarios_epsilon_whoever_is_calibrated_for() -> None:  # fmt: skip
    data = events("ratings")
    plans = [
        prepared([*more], data).plan
        for more in ([], THREE, [*THREE, "privacy.calibrate_for=outsiders"])
    ]
    assert len({tuple(release.name for release in plan.releases) for plan in plans}) == 1
    trusted, one, outsiders = plans
    assert one.guarantee.epsilon == 5.0
    assert outsiders.for_outsiders.epsilon == pytest.approx(5.0)
    assert one.drawn_multiplier("counts") == pytest.approx(
        math.sqrt(1.5) * trusted.drawn_multiplier("counts")
    )
    assert outsiders.drawn_multiplier("counts") == pytest.approx(trusted.drawn_multiplier("counts"))


def test_recipes_and_keys_that_do_not_fit_are_refused() -> None:
    for keys in (
        ["recipe=privaterec", "data.format=planted-news", "privacy.unit=click"],
        ["recipe=published", "privacy.unit=example"],
    ):
        with pytest.raises(SettingsError, match="protects whole users"):
            load(None, [*keys, *THREE])
    with pytest.raises(SettingsError, match=r"privacy\.shares needs"):
        load(None, ["privacy.shares=real"])
    with pytest.raises(SettingsError, match=r"privacy\.calibrate_for needs"):
        load(None, ["privacy.calibrate_for=outsiders"])
    with pytest.raises(SettingsError, match=r"privacy\.aggregation"):
        load(None, ["privacy.aggregation=two-party"])


def test_a_trusted_scenario_is_sent_and_hashed_as_before_there_were_three() -> None:
    trusted = load(None)
    three = load(None, THREE)
    assert "aggregation" not in client_recipe(trusted)
    assert "three-party" in client_recipe(three)
    assert "shares" not in client_recipe(load(None, [*THREE, "privacy.shares=real"]))
    assert (
        three.digest() == load(None, [*THREE, "privacy.shares=real"]).digest() != trusted.digest()
    )


def test_sentences_name_both_epsilons_and_are_none_for_a_trusted_aggregator() -> None:
    data = events("ratings")
    assert promises(prepared([], data).plan) == ()
    outside, one, two, *_ = promises(prepared(THREE, data).plan)
    assert "epsilon 3.954 at delta 1e-05" in outside.promise
    assert "epsilon 5 whatever any one of them does" in outside.promise
    assert one.promise.startswith(
        "epsilon 5 at delta 1e-05 per user (report replaced by the empty one)"
    )
    assert two.promise.startswith("nothing")
    assert len(sentences("a", "b", "c")) == 6


def test_the_page_has_every_sentence_of_a_plan_of_epsilon_5() -> None:
    text = (Path(__file__).parents[2] / "docs" / "three-party.md").read_text()
    for one in promises(prepared(THREE, events("ratings")).plan):
        assert f"| {one.against} | {one.promise} |" in text


@pytest.mark.parametrize("page", ["privacy.md", "three-party.md", "deploy.md"])
def test_every_page_that_tells_of_three_aggregators_says_that_nobody_reviewed_them(
    page: str,
) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    assert "not yet reviewed from outside" in text.lower()


def test_every_rule_names_a_test_that_exists() -> None:
    root = Path(__file__).parents[2]
    named = re.findall(
        r"`(tests/[\w/]+\.py)::(\w+)`", (root / "docs" / "three-party.md").read_text()
    )
    assert len(named) > 5
    for path, test in named:
        assert f"def {test}(" in (root / path).read_text(), test


@pytest.mark.parametrize("page", ["three-party.md", "review.md"])
def test_a_page_says_how_much_a_reviewer_has_to_read(page: str) -> None:
    """Within one in fifty: files change."""
    root = Path(__file__).parents[2]
    section = (
        (root / "docs" / page)
        .read_text()
        .partition("## Files to read")[2]
        .partition("need not be read" if page == "three-party.md" else "A recipe decides")[0]
    )
    (said,) = re.findall(r"rests on ([\d,]+) lines", section)
    lines = sum(
        len((root / name).read_text().splitlines())
        for name in re.findall(r"`([\w/]+\.py)`", section)
    )
    assert lines == pytest.approx(int(said.replace(",", "")), rel=0.02)


def test_rows_of_squares_are_the_matrices_of_a_trusted_aggregator_up_to_their_rounding() -> None:
    """Without noise both say the same statistics, to the grid of the vectors: 2^-11 of each user's
    norm, at most 40 users."""
    data = events("ratings")
    keys = [*RECIPES["published"], "privacy.epsilon=inf"]
    found = []
    for more in ([], THREE):
        made = prepared([*keys, *more], data)
        state = made.recipe.tell(made.recipe.begin(), *_first(made, data))
        question = made.recipe.ask(state)
        assert question is not None
        found.append(made.recipe.statistics(0, 0, link(data, made).answer(question)))  # type: ignore[attr-defined]
    trusted, three = found
    assert np.abs(trusted.moment - three.moment).max() < 1e-6
    assert 0 < np.abs(trusted.gram - three.gram).max() < 40 * 2 * 2.0**-10
    assert np.abs(trusted.gram).max() > 0.2


def _first(made: Prepared, data: Interactions) -> tuple[Any, Any]:
    question = made.recipe.ask(made.recipe.begin())
    assert question is not None
    return question, link(data, made).answer(question)


def test_a_server_runs_a_scenario_with_the_aggregators_that_it_names_and_no_others(
    tmp_path: Path,
) -> None:
    table = {"address": "127.0.0.1:1", "insecure": True}
    three = [table | {"address": f"127.0.0.1:{port}"} for port in (1, 2, 3)]
    words = [
        (THREE, {"aggregator": table}),
        (["privacy.aggregation=trusted"], {"aggregators": three}),
    ]
    for sets, tables in words:
        content = {
            "state": str(tmp_path),
            "public": {"path": "x"},
            "link": {"insecure": True},
            **tables,
        }
        settings = validated(content, source="test")
        metrics = Metrics("server", "0")
        with ExitStack() as stack, pytest.raises(SettingsError, match="name aggregators for"):
            aggregation_of(load(None, sets).privacy, settings, metrics, Retry(), stack)


def test_a_simulation_of_processes_needs_no_word_on_shares() -> None:
    with pytest.raises(SettingsError, match="always shares"):
        simulate.run(
            load(None, [*THREE, "privacy.shares=real"]),
            name="x",
            choice=RuntimeChoice("parties"),
            quiet=True,
        )
