"""The default recipe's server: what it makes of a release, beside what the devices were told."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from fedrec.arrays import Float64s
from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.interactions import Interactions
from fedrec.data.planted import PlantedShape, planted
from fedrec.data.public_sources import ITEM_VECTORS, SIMILAR_ITEMS
from fedrec.evaluation.ranking import evaluate_ranking
from fedrec.evaluation.ratings import rating_metrics
from fedrec.evaluation.toplists import dot_product, same_for_everyone
from fedrec.factorization.default_ratings.directions import COUNT_SLOPES, directions_told
from fedrec.factorization.default_ratings.public_directions import BESIDE, together, told_shares
from fedrec.factorization.default_ratings.recipe import DefaultRecipe
from fedrec.factorization.default_ratings.taste_directions import taste_directions
from fedrec.factorization.facts import PublicFacts, predict
from fedrec.factorization.rankers import ranker_of
from fedrec.federation.messages import train
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.settings import load

ITEMS = 40


@pytest.mark.slow
def test_the_server_learns_around_the_rounded_numbers_that_devices_had() -> None:
    """Devices' residuals are those of the rounded model, and so is where the server starts its
    step."""
    world = planted(PlantedShape(users=60, items=ITEMS, events=700), seed=1)
    data = world.interactions
    facts = PublicFacts(
        data.num_users, data.num_items, data.kind, data.value_range, world.features, Streams(1)
    )
    prepared = prepare(load(None, ["privacy.epsilon=20"]), facts)
    recipe = prepared.recipe
    ledger = Ledger(prepared.plan.guarantee)
    state = recipe.begin()
    steps = 0
    for done in train(
        recipe, Loopback(data, prepared.steps, prepared.plan, Streams(1), ledger), state
    ):
        if done.question.step == "default/step":
            told = {name: done.question.public[name] for name in ("phi", "bias")}
            assert any(not np.array_equal(array, state[name]) for name, array in told.items())
            again = recipe.tell({**state, **told}, done.question, done.answer)
            assert all(np.array_equal(array, again[name]) for name, array in done.state.items())
            steps += 1
        state = done.state
    assert steps > 1


def test_features_that_every_item_shares_are_as_good_as_none() -> None:
    """Their directions would be 0 / 0, and with them every bias."""
    data = planted(PlantedShape(users=60, items=ITEMS, events=700), seed=1).interactions
    ends = []
    for bags in ({"kind": FeatureBag(("film",), sparse.csr_matrix(np.ones((ITEMS, 1))))}, {}):
        facts = PublicFacts(
            data.num_users,
            data.num_items,
            data.kind,
            data.value_range,
            PublicFeatures(bags),
            Streams(1),
        )
        made = prepare(load(None, ["privacy.epsilon=20"]), facts)
        assert made.recipe.content is None
        ledger = Ledger(made.plan.guarantee)
        runner = Loopback(data, made.steps, made.plan, Streams(1), ledger)
        *_, last = train(made.recipe, runner, made.recipe.begin())
        ends.append(last.state)
    for name, array in ends[1].items():
        np.testing.assert_array_equal(ends[0][name], array)
        assert np.isfinite(array).all()


def test_slopes_over_counts_are_worth_the_same_however_few_items_stand_out() -> None:
    """Of forty items one or two have counts that noise does not hide: over ratings, what users'
    slopes over counts add to a rating has the variance said; where many have, no more than that,
    and items that nobody rated do not stand out instead."""
    shape = PlantedShape(users=60, items=ITEMS, events=700)
    data = planted(shape, seed=1).interactions
    facts = PublicFacts(60, ITEMS, data.kind, data.value_range, None, Streams(1))
    recipe = prepare(load(None, ["privacy.epsilon=1"]), facts).recipe
    assert isinstance(recipe, DefaultRecipe)

    def added(counts: np.ndarray, weights: np.ndarray) -> float:
        log_count = np.log(counts) - np.log(counts).mean()
        state = {"counts": counts, "log_count": log_count / log_count.std()}
        made = recipe._directions(state, np.zeros(ITEMS), None)
        slopes = np.column_stack([made["phi"], made["rest"]])[:, 1:]
        return float(np.average(np.sum(slopes**2, axis=1), weights=weights))

    for head in (1, 2):
        counts = np.r_[np.full(head, 20.0), np.ones(ITEMS - head)]
        assert math.isclose(added(counts, counts), COUNT_SLOPES, rel_tol=1e-6)
    counts = np.r_[np.full(ITEMS - 2, 20.0), 0.02, 0.02]
    assert added(counts, counts) < COUNT_SLOPES
    assert added(counts, counts == 0.02) < 25 * COUNT_SLOPES


@pytest.mark.slow
def test_lists_of_rated_items_are_better_than_popularity() -> None:
    """Planted ratings of people who choose by taste: 4,000 users, epsilon 5, fixed seeds."""
    world = planted(PlantedShape(users=4000, items=300, events=160_000, selectivity=6.0), seed=2)
    unseen = np.random.default_rng(1).random(len(world.interactions)) < 0.1
    seen = world.interactions.select(~unseen)
    asked = world.interactions.select(unseen)
    facts = PublicFacts(
        seen.num_users, seen.num_items, seen.kind, seen.value_range, world.features, Streams(1)
    )
    prepared = prepare(load(None, ["privacy.epsilon=5"]), facts)
    assert "pairs" in {release.name for release in prepared.plan.releases}
    ledger = Ledger(prepared.plan.guarantee)
    *_, last = train(
        prepared.recipe,
        Loopback(seen, prepared.steps, prepared.plan, Streams(1), ledger),
        prepared.recipe.begin(),
    )
    ranker = ranker_of(prepared.recipe.model(last.state))
    counts = np.bincount(seen.items, minlength=seen.num_items)
    ours = dot_product(
        np.asarray(ranker.user_vectors(seen), np.float32),
        np.asarray(ranker.item_vectors, np.float32),
    )
    ndcg = [
        evaluate_ranking(scores, history=seen, targets=asked, train_counts=counts, cutoffs=(20,))
        .at[20]
        .as_dict()["ndcg"]
        for scores in (ours, same_for_everyone(counts))
    ]
    assert ndcg[0] > 1.02 * ndcg[1]


def test_the_fewer_ratings_items_have_the_fewer_directions_carry_deviations() -> None:
    """Twice the square root of an item's ratings beyond two, on average over items; never none, and
    never more than settings say."""
    assert directions_told(np.full(ITEMS, 18.0)) == 8
    assert directions_told(np.repeat([0.0, 66.0], ITEMS // 2)) == 8
    assert directions_told(np.full(ITEMS, 2.0)) == directions_told(np.zeros(ITEMS)) == 1
    widths = []
    for items in (40, 100, 200):
        shape = PlantedShape(users=60, items=items, events=700)
        data = planted(shape, seed=1).interactions
        facts = PublicFacts(60, items, data.kind, data.value_range, None, Streams(1))
        made = prepare(load(None, ["privacy.epsilon=inf"]), facts)
        recipe = replace(made.recipe, settings=replace(made.recipe.settings, width=6))
        runner = Loopback(data, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee))
        (width,) = {
            int(done.question.public["width"])
            for done in train(recipe, runner, recipe.begin())
            if done.question.step == "default/step"
        }
        widths.append(width)
        rated = np.bincount(data.items, minlength=items)  # the server knows weights alone
        assert abs(width - min(directions_told(rated), 6)) <= 1
    assert widths == sorted(set(widths), reverse=True)


@pytest.mark.slow
def test_links_and_vectors_of_items_teach_ratings_their_directions() -> None:
    """People like some of ten kinds of items and not others. Vectors and links tell kinds: better
    than no public side, and without a release for first directions."""
    rng = np.random.default_rng(4)
    kinds = np.arange(200) // 20
    rated = rng.random((400, 200)) < 0.15
    likes = np.where(rng.random((400, 10)) < 0.5, 4.2, 2.0)[:, kinds]
    users, items = np.nonzero(rated)
    whole = Interactions.from_columns(
        users,
        items,
        np.clip(likes[rated] + rng.normal(0, 0.5, len(users)), 1, 5),
        num_users=400,
        num_items=200,
        value_range=(1.0, 5.0),
        kind="ratings",
    )
    asked = rng.random(len(whole)) < 0.2
    known = whole.select(~asked)
    same = kinds[:, None] == kinds
    sides = {
        "none": None,
        "vectors": PublicFeatures({ITEM_VECTORS: _bag(np.eye(10)[kinds])}),
        "links": PublicFeatures({SIMILAR_ITEMS: _bag(same & (rng.random(same.shape) < 0.3))}),
    }
    errors = dict[str, float]()
    for name, features in sides.items():
        facts = PublicFacts(400, 200, "ratings", (1.0, 5.0), features, Streams(1))
        made = prepare(load(None, ["privacy.epsilon=5"]), facts)
        told = "tastes" in {release.name for release in made.plan.releases}
        assert told == (features is None)
        link = Loopback(known, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee))
        *_, last = train(made.recipe, link, made.recipe.begin())
        predicted = predict(made.recipe.model(last.state), known, whole.select(asked))
        errors[name] = rating_metrics(predicted, whole.select(asked)).rmse
    assert errors["vectors"] < errors["none"] - 0.05
    assert errors["links"] < errors["none"] - 0.05


@pytest.mark.slow
def test_useless_links_beside_vectors_lose_their_energy_once_biases_are_known() -> None:
    """Five kinds of items are liked more than the other five; vectors tell kinds, links nothing."""
    rng = np.random.default_rng(6)
    kinds = np.arange(200) // 20
    users, items = np.nonzero(rng.random((400, 200)) < 0.15)
    values = np.where(kinds[items] % 2, 4.0, 2.5) + rng.normal(0, 0.5, len(users))
    events = Interactions.from_columns(
        users,
        items,
        np.clip(values, 1, 5),
        num_users=400,
        num_items=200,
        value_range=(1.0, 5.0),
        kind="ratings",
    )
    links = _bag(rng.random((200, 200)) < 0.03)
    vectors = _bag(np.eye(10)[kinds])
    features = PublicFeatures({SIMILAR_ITEMS: links, ITEM_VECTORS: vectors})
    facts = PublicFacts(400, 200, "ratings", (1.0, 5.0), features, Streams(1))
    made = prepare(load(None, ["privacy.epsilon=20"]), facts)
    assert len(made.recipe.sides) == 2
    link = Loopback(events, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee))
    *_, last = train(made.recipe, link, made.recipe.begin())
    assert last.state["shares"][1] > 0.6  # of .2
    plain = np.linalg.norm(made.recipe.content.T @ np.eye(10)[kinds])
    told = np.linalg.norm(made.recipe._content(last.state).T @ np.eye(10)[kinds])
    assert told > 1.2 * plain


def _bag(values: np.ndarray) -> FeatureBag:
    names = tuple(map(str, range(values.shape[1])))
    return FeatureBag(names, sparse.csr_matrix(values.astype(np.float32)))


def test_public_sides_together_are_directions_of_all_the_leading_ones_first() -> None:
    rng = np.random.default_rng(2)
    first = rng.standard_normal((50, 3))
    second = 7 * rng.standard_normal((50, 2))
    found = together((None, first, second), dimension=4)
    assert found is not None
    squares = np.sum(found**2, axis=0)
    assert found.shape == (50, 4)
    assert np.all(np.diff(squares) <= 0)
    assert squares.sum() / 50 == pytest.approx(1)
    whole = together((None, first, second), dimension=5)
    assert whole is not None
    energy = [np.mean(np.sum(P**2, axis=1)) for P in (first, second)]
    gram = first @ first.T / energy[0] + BESIDE * (second @ second.T) / energy[1]
    np.testing.assert_allclose(whole @ whole.T, gram / (1 + BESIDE), atol=1e-9)
    assert together((None, None), dimension=3) is None


def test_public_sides_count_by_what_they_tell_of_biases_and_by_their_prior_where_noise_hides_it() -> None:  # fmt: skip
    """400 items whose biases the second side makes, the first and third being anything."""
    rng = np.random.default_rng(3)
    sides = [rng.standard_normal((400, 5)) * 3 for _ in range(3)]
    unit = [P / np.sqrt(np.mean(np.sum(P**2, axis=1))) for P in sides]
    biases = 0.3 * unit[1] @ rng.standard_normal(5)
    plain = np.ones((400, 1))
    told = told_shares(biases + 0.1 * rng.standard_normal(400), np.full(400, 0.01), plain, sides)
    assert told.sum() == pytest.approx(1)
    assert told[1] > 0.85
    hidden = told_shares(biases + 30 * rng.standard_normal(400), np.full(400, 900.0), plain, sides)
    prior = np.array([1.0, BESIDE, BESIDE]) / (1 + 2 * BESIDE)
    np.testing.assert_allclose(hidden, prior, atol=0.08)
    alike = told_shares(np.zeros(400), np.full(400, 0.01), plain, sides)
    np.testing.assert_allclose(alike, prior, atol=0.08)
    weighted = together(sides, dimension=15, shares=told)
    assert weighted is not None
    gram = sum(w * P @ P.T for w, P in zip(told, unit, strict=True))
    np.testing.assert_allclose(weighted @ weighted.T, gram, atol=1e-9)


def test_directions_have_the_energy_that_stands_out_of_the_noise() -> None:
    rng = np.random.default_rng(0)
    K = 120
    upper = np.triu_indices(K)
    counts = np.full(200, 30.0)
    items = rng.standard_normal((K, 3))
    signal = 2.0 * items @ items.T
    noise = rng.standard_normal((K, K))

    def energy(gram: Float64s, std: float) -> float:
        found, _ = taste_directions(
            gram[upper], counts, omega=np.ones(K), std=std, width=8, energy=0.12, users=100
        )
        return float(counts @ np.sum(found**2, axis=1) / counts.sum())

    hidden = energy((noise + noise.T) / 2, 1.0)
    beside = energy(signal + (noise + noise.T) / 2, 1.0)
    whole = energy(signal, 0.0)
    assert hidden < 0.1 * 0.12 < 0.5 * 0.12 < beside < whole
    np.testing.assert_allclose(whole, 0.12, rtol=0.01)
