"""The five tests of a private algorithm, for every recipe: federated SSP2 (AM-SSP Alg. 8) and the
default, of ratings and of clicks."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse, stats

from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.interactions import Interactions
from fedrec.data.kinds import Kind
from fedrec.data.planted import SHAPES, planted
from fedrec.data.public_sources import PUBLIC_USERS
from fedrec.evaluation.ranking import evaluate_ranking
from fedrec.evaluation.toplists import Scores, dot_product, same_for_everyone
from fedrec.factorization.default_clicks import settings as click_settings
from fedrec.factorization.default_clicks import worth
from fedrec.factorization.facts import PublicFacts, predict
from fedrec.federation import releases
from fedrec.federation.messages import Question, train
from fedrec.federation.releases import noise_stds, release
from fedrec.federation.reports import ExactSums
from fedrec.in_process import Loopback
from fedrec.privacy import discrete_gaussian, gaussian
from fedrec.privacy.accounting import Ledger, epsilon_of
from fedrec.randomness import Streams, SystemStreams
from fedrec.recipes import Prepared, prepare
from fedrec.settings import load
from tests.cases import slow_but
from tests.torch_modules.registered import TORCH

ITEMS = 30
BAG = FeatureBag(
    ("old", "new", "long"),
    sparse.csr_matrix(np.random.default_rng(0).random((ITEMS, 3)) < 0.4, dtype=np.float32),
)
FEATURES = PublicFeatures({"kind": BAG})

RECIPES: dict[str, list[str]] = {
    "published, features": ["recipe=published", "model.dimension=3", "model.steps=2"],
    "published, id only": [
        "recipe=published",
        "model.dimension=3",
        "model.steps=2",
        "model.encoder=id",
    ],
    "published, clipped weights": [
        "recipe=published",
        "model.dimension=3",
        "model.steps=1",
        "model.weights=clipped",
    ],
    "published, resampled": [
        "recipe=published",
        "model.dimension=2",
        "model.steps=1",
        "model.resamples=3",
    ],
    "published, batches": [
        "recipe=published",
        "model.dimension=2",
        "model.steps=1",
        "model.resamples=2",
        "model.example_share=0.5",
    ],
    "published, per example": [
        "recipe=published",
        "model.dimension=2",
        "model.steps=1",
        "privacy.unit=example",
    ],
    "default, features": ["recipe=default"],
    "default, no features": ["recipe=default", "model.encoder=id"],
    "default, public users": [
        "recipe=default",
        'collective.sides=["metadata", "public-users"]',
        "collective.users_share=0.5",
    ],
    "default, public users alone": [
        "recipe=default",
        'collective.sides=["public-users"]',
        "collective.users_share=0.5",
    ],
    "published, clicks": [
        "recipe=published",
        "model.dimension=3",
        "model.steps=1",
        "model.encoder=id",
    ],
    "default, clicks": ["recipe=default"],
    "default, clicks, few people": ["recipe=default"],
    "default, clicks, one Gram": ["recipe=default"],
    "default, clicks, public users": [
        "recipe=default",
        'collective.sides=["public-users"]',
        "collective.users_values=binary",
        "collective.users_share=0.5",
    ],
    "noisy-descent": ["recipe=noisy-descent", "model.dimension=3", "model.steps=2"],
    "dp-gd": ["recipe=dp-gd", "model.dimension=3", "model.steps=2"],
    "dp-gd, no biases": [
        "recipe=dp-gd",
        "model.dimension=3",
        "model.steps=2",
        "model.biases=false",
    ],
    "am-dpsgd, features": ["recipe=am-dpsgd", "model.dimension=3", "model.steps=2"],
    "encoder-descent, features": [
        "recipe=encoder-descent",
        "model.dimension=3",
        "model.steps=2",
    ],
    "encoder-descent, id only": [
        "recipe=encoder-descent",
        "model.dimension=3",
        "model.steps=1",
        "model.encoder_steps=2",
        "model.encoder=id",
    ],
    "encoder-descent, clipped": [
        "recipe=encoder-descent",
        "model.dimension=3",
        "model.steps=2",
        "model.biases=false",
        "model.own_vectors=false",
        "model.gradient_radius=0.5",
        "model.item_ridge=0.01",
        "model.learning_rate=0.02",
    ],
    "dp-cmf": ["recipe=dp-cmf", "model.dimension=3", "model.steps=2"],
    "convex-ssp, clicks": ["recipe=convex-ssp", "model.dimension=3", "model.steps=2"],
    "convex-ssp, weighed clicks": [
        "recipe=convex-ssp",
        "model.dimension=3",
        "model.steps=2",
        "model.click_weight=4",
    ],
    "convex-ssp, clicks by squares": [
        "recipe=convex-ssp",
        "model.dimension=3",
        "model.steps=2",
        "model.loss=quadratic",
        "model.click_weight=20",
    ],
    "dp-gd, clicks": ["recipe=dp-gd", "model.dimension=3", "model.steps=2"],
    "encoder-descent, clicks": [
        "recipe=encoder-descent",
        "model.dimension=3",
        "model.steps=1",
        "model.encoder_steps=2",
        "model.own_vectors=false",
    ],
    "dp-bias": ["recipe=dp-bias"],
    "dp-popularity, clicks": ["recipe=dp-popularity"],
    "dp-item-item, clicks": ["recipe=dp-item-item"],
    "torch, clicks": TORCH,
    "dp-cmf, clicks": ["recipe=dp-cmf", "model.dimension=3", "model.steps=1"],
    "dp-bias, evaluated": ["recipe=dp-bias", "privacy.evaluation_share=0.2"],
    "dp-item-item, clicks, evaluated": ["recipe=dp-item-item", "privacy.evaluation_share=0.2"],
}
USER_LEVEL = [name for name in RECIPES if "example" not in name]
every_recipe = pytest.mark.parametrize("name", list(RECIPES))


@pytest.fixture(autouse=True)
def _clicks_of_few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of clicks too few people would get counts alone: that is "few people"; here steps are asked
    for as well, or the Gram again."""
    if "default, clicks" in request.node.name:
        monkeypatch.setattr(worth, "PART", 1.0)  # a third of eight people would not be asked
        monkeypatch.setattr(worth, "LEAST_TOLD", 1.0)  # nor all of them
    if "default, clicks" in request.node.name and "few people" not in request.node.name:
        monkeypatch.setattr(click_settings, "LEAST_TOLD", 0.0)
        monkeypatch.setattr(click_settings, "FEW_CLICKS", 0.0)
        monkeypatch.setattr(click_settings, "MANY", math.inf)
        least = math.inf if "one Gram" in request.node.name else -math.inf
        monkeypatch.setattr(click_settings, "LITTLE", least)


def some_ratings(seed: int, num_users: int = 8) -> Interactions:
    """A few users of very different sizes: some rate nothing or one item, some nearly all."""
    rng = np.random.default_rng(seed)
    pairs = [
        (k, j)
        for k in range(num_users)
        for j in np.flatnonzero(rng.random(ITEMS) < rng.random() ** 2)
    ]
    users, items = np.array(pairs, np.int64).reshape(-1, 2).T
    values = rng.integers(1, 6, len(users)).astype(float)
    return Interactions.from_columns(
        users, items, values, num_users=num_users, num_items=ITEMS, value_range=(1.0, 5.0)
    )


def some_people(num_items: int, people: int = 12) -> FeatureBag:
    """Public users who rate a third of the items anyhow."""
    rng = np.random.default_rng(9)
    rated = rng.integers(1, 6, (num_items, people)) * (rng.random((num_items, people)) < 1 / 3)
    return FeatureBag(tuple(map(str, range(people))), sparse.csr_matrix(rated, dtype=np.float32))


def kind_of(name: str) -> Kind:
    return "clicks" if "clicks" in name else "ratings"


def some_events(name: str, seed: int) -> Interactions:
    """The same as ratings or, for a recipe of clicks, without their values."""
    ratings = some_ratings(seed)
    if kind_of(name) == "ratings":
        return ratings
    return dataclasses.replace(
        ratings, values=np.ones(len(ratings), np.float32), value_range=(0.0, 1.0), kind="clicks"
    )


def prepared_for(
    name: str, ratings: Interactions, epsilon: float | str, features: PublicFeatures = FEATURES
) -> Prepared:
    if "public users" in name and PUBLIC_USERS not in features.bags:
        features = PublicFeatures({**features.bags, PUBLIC_USERS: some_people(ratings.num_items)})
    return prepared([*RECIPES[name], f"privacy.epsilon={epsilon}"], ratings, features)


def prepared(
    keys: list[str], events: Interactions, features: PublicFeatures | None = None
) -> Prepared:
    facts = PublicFacts(
        events.num_users, events.num_items, events.kind, events.value_range, features, Streams(1)
    )
    return prepare(load(None, keys), facts)


def loopback(ratings: Interactions, made: Prepared, **kwargs: Any) -> Loopback:
    return Loopback(
        ratings, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee), **kwargs
    )


def questions_of(ratings: Interactions, made: Prepared) -> list[Question]:
    return [
        done.question for done in train(made.recipe, loopback(ratings, made), made.recipe.begin())
    ]


def full(packed: np.ndarray, width: int) -> np.ndarray:
    rows, columns = np.triu_indices(width)
    square = np.zeros((len(packed), width, width))
    square[:, rows, columns] = square[:, columns, rows] = packed
    return square.reshape(len(packed), -1)


def plain_sums(question: Question, ratings: Interactions, made: Prepared) -> list[np.ndarray]:
    """What a round's reports add up to, one event after the other, matrices in full: second code."""
    reports = made.steps[question.step](question, ratings)
    totals = []
    for spec, part in zip(question.blocks, reports.blocks, strict=True):
        users = np.arange(reports.num_users)
        rows = np.zeros(reports.num_users, np.int64)
        if spec.rows > 1:
            users = np.repeat(users, np.diff(reports.user_ptr))
            rows = np.asarray(reports.items, np.int64)
        X = part.vectors[users * spec.folds + rows % spec.folds] * spec.vector_step
        if spec.kind == "outer":
            X = (X[:, :, None] * X[:, None, :]).reshape(len(X), spec.width**2)
        total = np.zeros((spec.rows, X.shape[1]))
        np.add.at(total, rows, (part.coefficients * spec.coefficient_step)[:, None] * X)
        totals.append(total)
    return totals


@every_recipe
def test_with_an_infinite_budget_releases_are_the_plain_sums(name: str) -> None:
    ratings = some_events(name, 1)
    made = prepared_for(name, ratings, "inf")
    for done in train(made.recipe, loopback(ratings, made), made.recipe.begin()):
        for spec, plain in zip(
            done.question.blocks, plain_sums(done.question, ratings, made), strict=True
        ):
            released = done.answer.values[spec.name]
            np.testing.assert_allclose(
                full(released, spec.width) if spec.kind == "outer" else released,
                plain,
                rtol=0,
                atol=1e-10,
            )


@pytest.mark.parametrize("name", USER_LEVEL)
@settings(max_examples=2)
@given(seed=st.integers(0, 10_000), epsilon=st.sampled_from(["5", "inf"]))
def test_every_release_moves_by_at_most_its_radius_when_a_user_leaves(
    name: str, seed: int, epsilon: str
) -> None:
    """Whichever of the eight leaves: a training costs more than all of its neighbours' sums."""
    ratings = some_events(name, seed)
    made = prepared_for(name, ratings, epsilon)
    owners = np.repeat(np.arange(8), np.diff(ratings.user_ptr))
    # the same public state for both neighbours, as in adaptive composition
    for question in questions_of(ratings, made):
        whole = plain_sums(question, ratings, made)
        for leaver in range(8):
            rest = plain_sums(question, ratings.select(owners != leaver), made)
            moved = [float(np.sum((a - b) ** 2)) for a, b in zip(whole, rest, strict=True)]
            for spec in question.releases:
                assert math.fsum(moved.pop(0) for _ in spec.blocks) <= spec.radius**2


def test_one_example_is_bounded_where_the_unit_is_an_example() -> None:
    """With user vectors frozen, as Thm 1 assumes: every event is a report of its own, of norm at
    most the radius."""
    ratings = some_ratings(5)
    made = prepared_for("published, per example", ratings, "inf")
    question = questions_of(ratings, made)[1]
    reports = made.steps[question.step](question, ratings)
    assert reports.num_users == len(ratings)
    from fedrec.federation.reports import within_radius

    assert within_radius(reports, question.releases).all()


def noise_of(
    question: Question, sums: Sequence[np.ndarray], made: Prepared, noise: Streams | SystemStreams
) -> dict[str, np.ndarray]:
    """(answer - exact sum) / std of each block, rows of numbers; of a matrix its diagonal and the
    rest apart."""
    answer, _ = release(question, sums, made.plan, Ledger(made.plan.guarantee), noise=noise)
    stds = noise_stds(question, made.plan)
    exact = iter(sums)
    found = {}
    for spec in question.releases:
        for block in spec.blocks:
            excess = (answer.values[block.name] - next(exact) * block.step) / stds[spec.name]
            if block.kind != "outer":
                found[f"{question.round}/{block.name}"] = excess
                continue
            diagonal = np.equal(*np.triu_indices(block.width))
            found[f"{question.round}/{block.name}/diagonal"] = excess[:, diagonal]
            if not diagonal.all():
                found[f"{question.round}/{block.name}/rest"] = excess[:, ~diagonal] * (
                    math.sqrt(2) if spec.isometric else 1
                )
    return found


@functools.cache
def asked_and_summed(name: str) -> tuple[Prepared, list[tuple[Question, tuple[np.ndarray, ...]]]]:
    if name == "three aggregators":
        made, asked = asked_and_summed("default, features")
        plan = dataclasses.replace(made.plan, aggregation="three-party")
        return dataclasses.replace(made, plan=plan), asked
    ratings = some_events(name, 3)
    made = prepared_for(name, ratings, 5)
    asked = []
    for question in questions_of(ratings, made):
        sums = ExactSums(question.blocks)
        sums.add(made.steps[question.step](question, ratings))
        asked.append((question, sums.blocks))
    return made, asked


def ways(asked: Sequence[tuple[Question, Any]]) -> set[str]:
    """In how many ways blocks of a training are noised: what `releases` decides by but the std."""
    return {
        f"{'one row' if block.rows == 1 else 'rows'}"
        + (f" of matrices, isometric {spec.isometric}" if block.form.matrix else "")
        for question, _ in asked
        for spec in question.releases
        for block in spec.blocks
    }


NOT_ISOMETRIC = {"rows of matrices, isometric False", "one row of matrices, isometric False"}
WAYS: dict[str, set[str]] = {
    "published, features": {"rows of matrices, isometric False"},
    "published, clicks": {"rows", "one row", *NOT_ISOMETRIC},
    "default, features": {"rows", "one row"},
    "default, clicks": {"rows", "one row", "one row of matrices, isometric True"},
    "convex-ssp, clicks": {"one row of matrices, isometric True"},
    "dp-bias": {"rows", "one row"},
    "dp-popularity, clicks": {"rows"},
    "three aggregators": {"rows", "one row"},
}
"""Trainings whose noise is looked at, number by number, and what each must show."""


@pytest.mark.parametrize("name", WAYS)
def test_the_noise_of_every_block_of_every_release_has_the_planned_distribution_and_no_other(
    name: str,
) -> None:
    """Of blocks as they ship, one row where they have one, under many keys of the operating system:
    the mean square of 1,500 numbers or more of each block at level 1e-7 of chi-squared, which a
    standard deviation a seventh off fails; Kolmogorov-Smirnov at 1e-9, which a third off fails.

    Every recipe's blocks are drawn at exactly the planned deviation, by the test below; here the
    numbers themselves are looked at. False alarms: below 1e-5 for all recipes together.
    """
    made, asked = asked_and_summed(name)
    assert ways(asked) >= WAYS[name]
    for question, sums in {
        shape_of(question): (question, sums) for question, sums in asked
    }.values():
        for spec in question.releases:
            std = noise_stds(question, made.plan)[spec.name]
            if made.plan.aggregation == "trusted":
                assert std == pytest.approx(spec.radius / made.plan[spec.name].mu, rel=1e-5)
        drawn = many_keys(question, sums, made, SystemStreams(), numbers=1_500)
        for block, z in drawn.items():
            assert has_unit_variance(z), f"{block}: std {z.std():.4f} of what is planned"
            assert stats.kstest(z[:6_000], "norm").pvalue > 1e-9, block
            for wrong in (2 / 3, 3 / 2):
                assert stats.kstest(z[:6_000] / wrong, "norm").pvalue < 1e-9, block


@pytest.mark.parametrize("source", [Streams(4), SystemStreams()], ids=["seeded", "system"])
@pytest.mark.parametrize("name", [*RECIPES, "three aggregators"])
def test_noise_is_added_whole_as_it_is_drawn_and_drawn_at_exactly_the_planned_deviation(
    name: str, source: Streams | SystemStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every block of every round, with no false alarms: the sampler is asked for the standard
    deviation that second code computes here, with a key that nothing else of the run has, and what
    it drew is what the answer has beside the exact sum. A factor of 1.0001 anywhere fails."""
    made, asked = asked_and_summed(name)
    assert ways(asked) <= set().union(*WAYS.values()), "nobody looks at such noise above"
    sample = discrete_gaussian.sample
    drawn = list[tuple[float, np.ndarray]]()
    keys = list[bytes]()

    def seen(size: int, *, std: float, key: bytes) -> np.ndarray:
        keys.append(key)
        drawn.append((std, sample(size, std=std, key=key)))
        return drawn[-1][1]

    monkeypatch.setattr(gaussian, "sample", seen)
    parties = 1 if made.plan.aggregation == "trusted" else 3
    for question, sums in asked:
        drawn.clear()
        answer, _ = release(question, sums, made.plan, Ledger(made.plan.guarantee), noise=source)
        called = iter(drawn)
        totals = {
            block.name: total.copy() for block, total in zip(question.blocks, sums, strict=True)
        }
        for _ in range(parties):
            for spec in question.releases:
                coarsest = max(block.step for block in spec.blocks)
                mu = made.plan[spec.name].mu
                std = math.sqrt((spec.radius / mu) ** 2 + 8 * coarsest**2)
                std *= 1 if parties == 1 else math.sqrt(1 / 2)
                for block in spec.blocks:
                    everything = np.ones(block.columns, np.bool_)
                    parts = [(everything, std)]
                    if block.form.matrix and spec.isometric:
                        diagonal = np.equal(*np.triu_indices(block.width))
                        parts = [(diagonal, std), (~diagonal, std / math.sqrt(2))]
                    for mask, wanted in parts:
                        if mask.any():
                            asked_for, noise = next(called)
                            assert asked_for == pytest.approx(wanted / block.step, rel=1e-9)
                            totals[block.name][:, mask] += noise.reshape(block.rows, -1)
        assert next(called, None) is None
        for block in question.blocks:
            assert np.array_equal(answer.values[block.name], totals[block.name] * block.step)
    assert len(set(keys)) == len(keys)


def shape_of(question: Question) -> tuple[Any, ...]:
    """What noise may depend on: the step, and the shapes of its blocks."""
    return question.step, tuple((b.name, b.kind, b.rows, b.width) for b in question.blocks)


def many_keys(
    question: Question,
    sums: Sequence[np.ndarray],
    made: Prepared,
    noise: Streams | SystemStreams,
    *,
    numbers: int,
) -> dict[str, np.ndarray]:
    """`noise_of` under so many keys that every block has `numbers` of them."""
    first = noise_of(question, sums, made, noise)
    keys = -(-numbers // min(part.size for part in first.values()))
    parts = [first, *(noise_of(question, sums, made, noise) for _ in range(keys - 1))]
    return {name: np.concatenate([part[name].ravel() for part in parts]) for name in first}


def has_unit_variance(z: np.ndarray) -> bool:
    """Whether the sum of squares is one of standard normals at level 1e-7."""
    total = float((z**2).sum())
    return bool(min(stats.chi2.cdf(total, z.size), stats.chi2.sf(total, z.size)) > 5e-8)


@pytest.mark.parametrize("factor", slow_but([1.15], [1 / 3, 1 / 1.15, 1.15]))
@pytest.mark.parametrize("rows", ["one row", "many rows"])
def test_noise_a_seventh_off_in_one_kind_of_block_is_seen(
    factor: float, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the noise of blocks of one row alone, or of all others. At 3,000 numbers a miss is
    less likely than 1e-4: 9.4 standard errors of a mean square, where 5.4 are seen."""
    whole = releases.party_noise

    def scaled(question: Question, *args: Any) -> Iterator[np.ndarray]:
        for block, drawn in zip(question.blocks, whole(question, *args), strict=True):
            hit = (block.rows == 1) == (rows == "one row")
            yield np.rint(drawn * factor).astype(np.int64) if hit else drawn

    monkeypatch.setattr(releases, "party_noise", scaled)
    made, asked = asked_and_summed("dp-bias")
    question, sums = asked[0]
    drawn = many_keys(question, sums, made, SystemStreams(), numbers=3_000)
    seen = {name: has_unit_variance(z) for name, z in drawn.items()}
    by_rows = {f"{question.round}/{block.name}": block.rows for block in question.blocks}
    assert seen == {name: (by_rows[name] == 1) != (rows == "one row") for name in seen}


@pytest.mark.parametrize("system", [False, True], ids=["seeded", "system"])
@pytest.mark.parametrize("name", ["default, features", "default, clicks", "dp-bias"])
def test_the_noise_of_blocks_releases_and_questions_is_independent(name: str, system: bool) -> None:
    """Correlation of the first two numbers of every block of a run, over 300 runs' noise: below 7
    standard errors, .40, for every pair.

    Noise of one key has correlation near 1; that keys differ is tested above of every recipe. False
    alarms: below 1e-11 a pair, 1e-7 of all together.
    """
    made, asked = asked_and_summed(name)
    rows = []
    runs = 300
    for seed in range(runs):
        noise = SystemStreams() if system else Streams(seed)
        drawn = [
            part
            for question, sums in asked
            for part in noise_of(question, sums, made, noise).values()
        ]
        rows.append(np.concatenate([part.ravel()[:2] for part in drawn]))
    z = np.array(rows)
    correlation = np.corrcoef(z, rowvar=False) - np.eye(z.shape[1])
    assert np.isfinite(correlation).all()
    assert np.abs(correlation).max() < 7 / math.sqrt(runs)


@pytest.mark.parametrize(
    ("name", "epsilon"), list(zip(USER_LEVEL, itertools.cycle([1.0, 5.0, 20.0]), strict=False))
)
def test_epsilon_equals_an_independent_computation(name: str, epsilon: float) -> None:
    """The stds that are really used, recombined by hand: the whole plan has the mu whose exact
    epsilon was asked for."""
    ratings = some_events(name, 4)
    made = prepared_for(name, ratings, epsilon)
    questions = questions_of(ratings, made)
    stds = {
        release_name: std
        for question in questions
        for release_name, std in noise_stds(question, made.plan).items()
    }
    radii = {spec.name: spec.radius for question in questions for spec in question.releases}
    assert set(stds) == {planned.name for planned in made.plan.releases}
    mu = math.sqrt(sum((radii[key] / stds[key]) ** 2 for key in stds))
    assert math.hypot(*(planned.mu for planned in made.plan.releases)) == pytest.approx(
        mu, rel=1e-5
    )
    assert epsilon_of(mu, 1e-5) == pytest.approx(epsilon, rel=1e-5)


@pytest.mark.parametrize("epsilon", [1.0, 5.0, 20.0])
def test_the_privacy_loss_distribution_of_dp_accounting_prices_a_plan_at_its_epsilon(
    epsilon: float,
) -> None:
    """Of one recipe: Gaussian releases are priced by the mu of them all, which the test above has
    for every recipe."""
    made = prepared_for("default, features", some_events("default, features", 4), epsilon)
    assert epsilon * (1 - 1e-6) <= made.plan.opinions().pld <= epsilon * 1.001


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "users", "gains"),
    [
        (["recipe=default"], 1_500, {"inf": 0.87, "5": 0.96}),
        (["recipe=default", "model.encoder=id"], 1_500, {"inf": 0.87, "5": 0.96}),
        (["recipe=dp-bias"], 1_500, {"inf": 0.87, "1": 0.9}),
        (["recipe=noisy-descent"], 3_000, {"inf": 0.87, "5": 0.92}),
        (["recipe=dp-gd"], 3_000, {"inf": 0.87, "5": 0.92}),
        (["recipe=encoder-descent"], 3_000, {"inf": 0.89, "5": 0.92}),
    ],
)
def test_a_planted_answer_is_found(keys: list[str], users: int, gains: dict[str, float]) -> None:
    """Planted ratings: without noise far below the mean's error on unseen events, with noise still
    below it."""
    dataset = planted(dataclasses.replace(SHAPES["small"], users=users, events=25 * users), seed=1)
    everything = dataset.interactions
    unseen = np.random.default_rng(1).random(len(everything)) < 0.1
    seen = everything.select(~unseen)
    asked = everything.select(unseen)
    for epsilon, gain in gains.items():
        made = prepared([*keys, f"privacy.epsilon={epsilon}"], seen, dataset.features)
        *_, last = train(made.recipe, loopback(seen, made), made.recipe.begin())
        error = predict(made.recipe.model(last.state), seen, asked) - asked.values
        assert np.sqrt(np.mean(error**2)) < gain * np.std(asked.values), epsilon


def planted_tastes(num_users: int, seed: int = 0) -> tuple[Interactions, Interactions]:
    """Clicks seen and asked for, of four tastes of 50 items: nine of ten fall into the user's own.

    Popularity cannot tell them apart."""
    rng = np.random.default_rng(seed)
    own = np.repeat(rng.integers(0, 4, num_users), 20)
    taste = np.where(rng.random(len(own)) < 0.9, own, rng.integers(0, 4, len(own)))
    pairs = np.unique(
        np.repeat(np.arange(num_users), 20) * 200 + taste * 50 + rng.integers(0, 50, len(own))
    )
    everything = Interactions.from_columns(
        pairs // 200,
        pairs % 200,
        None,
        num_users=num_users,
        num_items=200,
        value_range=(0.0, 1.0),
        kind="clicks",
    )
    unseen = rng.random(len(everything)) < 0.1
    return everything.select(~unseen), everything.select(unseen)


def ndcg(scores: Scores, history: Interactions, targets: Interactions) -> float:
    counts = np.bincount(history.items, minlength=history.num_items)
    return (
        evaluate_ranking(
            scores, history=history, targets=targets, train_counts=counts, cutoffs=(20,)
        )
        .at[20]
        .ndcg
    )


def ndcg_of(made: Prepared, history: Interactions, targets: Interactions) -> float:
    *_, last = train(made.recipe, loopback(history, made), made.recipe.begin())
    model = made.recipe.model(last.state)
    scores = dot_product(
        model.user_vectors(history).astype(np.float32), np.asarray(model.item_vectors, np.float32)
    )
    return ndcg(scores, history, targets)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "usual"),
    [
        (["recipe=default"], ("1", "5", "inf")),
        (["recipe=convex-ssp"], ("5", "inf")),
        (["recipe=dp-gd", "model.steps=12", "model.learning_rate=2"], ("5", "inf")),
        (["recipe=encoder-descent", "model.steps=12", "model.learning_rate=2"], ("5", "inf")),
        (
            [
                "recipe=convex-ssp",
                "model.loss=quadratic",
                "model.click_weight=20",
                "model.user_radius=0.3",
            ],
            ("5", "inf"),
        ),
    ],
)
def test_planted_tastes_are_found_at_a_usual_epsilon_and_hidden_at_a_tiny_one(
    keys: list[str], usual: tuple[str, ...]
) -> None:
    seen, asked = planted_tastes(3_000)
    popularity = ndcg(same_for_everyone(np.bincount(seen.items, minlength=200)), seen, asked)
    found = {
        e: ndcg_of(prepared([*keys, f"privacy.epsilon={e}"], seen), seen, asked)
        for e in ("0.1", *usual)
    }
    assert found["0.1"] < popularity * 1.5, (popularity, found)
    assert popularity * 3 < min(found[e] for e in usual), (popularity, found)


@pytest.mark.slow
def test_public_users_show_planted_tastes_at_an_epsilon_that_hides_private_ones() -> None:
    (seen, asked), (people, _) = planted_tastes(3_000), planted_tastes(10_000, seed=1)
    bag = FeatureBag(
        tuple(map(str, range(10_000))),
        sparse.csr_matrix((people.values, (people.items, people.users)), shape=(200, 10_000)),
    )
    made = prepared(
        [*RECIPES["default, clicks, public users"], "privacy.epsilon=0.1"],
        seen,
        PublicFeatures({PUBLIC_USERS: bag}),
    )
    assert ndcg_of(made, seen, asked) > 3 * ndcg(
        same_for_everyone(np.bincount(seen.items, minlength=200)), seen, asked
    )


@every_recipe
def test_the_same_bytes_come_out_of_any_order_and_sharding_of_users(name: str) -> None:
    dataset = planted(dataclasses.replace(SHAPES["small"], kind=kind_of(name)), seed=2)
    ratings = dataset.interactions
    order = np.random.default_rng(3).permutation(ratings.num_users)
    if "batches" in name:  # which examples are sampled belongs to a user's number
        order = np.arange(ratings.num_users)
    made = prepared_for(name, ratings, 5, dataset.features)
    *_, whole = train(made.recipe, loopback(ratings, made), made.recipe.begin())
    *_, cut = train(
        made.recipe,
        loopback(ratings.users_subset(order), made, users_per_batch=37),
        made.recipe.begin(),
    )
    assert set(whole.state) == set(cut.state)
    for key, array in whole.state.items():
        assert np.asarray(array).tobytes() == np.asarray(cut.state[key]).tobytes(), key


@every_recipe
def test_users_without_a_single_event_are_no_obstacle(name: str) -> None:
    ratings = some_events(name, 6)
    silent = ratings.select(np.repeat(np.arange(8) >= 4, np.diff(ratings.user_ptr)))
    made = prepared_for(name, silent, 5)
    *_, last = train(made.recipe, loopback(silent, made), made.recipe.begin())
    assert np.isfinite(predict(made.recipe.model(last.state), silent, ratings)).all()


@every_recipe
def test_who_has_no_events_reports_zeros_as_if_not_there(name: str) -> None:
    made, asked = asked_and_summed(name)
    ratings = some_events(name, 3)
    nobody = ratings.select(np.zeros(len(ratings), np.bool_))
    for question, _ in asked:
        assert not any(total.any() for total in plain_sums(question, nobody, made)), question.step


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("default, clicks", ["counts", "tastes", "step", "worth"]),
        ("default, clicks, public users", ["counts", "tastes", "step"]),
        ("default, clicks, few people", ["counts", "worth"]),
        ("default, clicks, one Gram", ["counts", "tastes", "worth"]),
    ],
)
def test_every_kind_of_round_of_clicks_is_asked_for_here(name: str, steps: list[str]) -> None:
    """Without them the tests above would say nothing of them."""
    asked = [question.step.removeprefix("clicks/") for question, _ in asked_and_summed(name)[1]]
    assert list(dict.fromkeys(asked)) == steps
    assert len(asked) > 2


@pytest.mark.parametrize(
    "name", ["default, features", "default, no features", "default, public users"]
)
def test_the_gram_of_pairs_is_among_what_is_asked_here(name: str) -> None:
    """Without it the tests above would say nothing of it."""
    assert [
        spec.width
        for question, _ in asked_and_summed(name)[1]
        for spec in question.blocks
        if spec.name == "pairs"
    ] == [20]
