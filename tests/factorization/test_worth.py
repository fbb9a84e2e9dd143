"""Public sides of items as the prior of clicks; the five tests of a private algorithm are in
`test_recipes.py`."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.interactions import Interactions
from fedrec.data.public_sources import SIMILAR_ITEMS
from fedrec.data.splits import random_split
from fedrec.evaluation.ranking import evaluate_ranking
from fedrec.evaluation.toplists import dot_product
from fedrec.factorization import released
from fedrec.factorization.default_clicks.asked import asked_of
from fedrec.factorization.default_clicks.client import left_out, report_counts
from fedrec.factorization.default_clicks.model import (
    POPULAR,
    ClickModel,
    ItemItemModel,
    PublicPriorModel,
    flattened,
    public_alone,
)
from fedrec.factorization.default_clicks.recipe import item_item_of
from fedrec.factorization.default_clicks.worth import (
    LISTED,
    asked_model,
    blends,
    chosen_blend,
    report_worth,
    shares,
    worth_of,
)
from fedrec.factorization.default_ratings.public_directions import link_directions
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.rankers import Model
from fedrec.federation.messages import Question, ReleaseSpec, State, train
from fedrec.federation.reports import block
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.settings import load


def clicks_of(rows: np.ndarray) -> Interactions:
    users, items = np.nonzero(rows)
    return Interactions.from_columns(
        users,
        items,
        None,
        num_users=len(rows),
        num_items=rows.shape[1],
        value_range=(0.0, 1.0),
        kind="clicks",
    )


def circles(users: int, items: int, each: int, *, size: int, seed: int) -> Interactions:
    """Everybody clicks `each` items, most of them of one or two circles of `size` items."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((users, items), np.bool_)
    for row in rows:
        mine = rng.choice(items // size, 2, replace=False)
        inside = (mine[:, None] * size + np.arange(size)).ravel()
        row[rng.choice(inside, each - 2, replace=False)] = True
        row[rng.choice(items, 2, replace=False)] = True
    return clicks_of(rows)


def linked(items: int, size: int, *, told: bool, seed: int = 3) -> PublicFeatures:
    """Three links of every item: within its circle, or anywhere."""
    rng = np.random.default_rng(seed)
    start = np.repeat(np.arange(items), 3)
    other = start // size * size + rng.integers(0, size, len(start))
    if not told:
        other = rng.integers(0, items, len(start))
    S = sparse.csr_matrix((np.ones(len(start), np.float32), (start, other)), shape=(items, items))
    return PublicFeatures({SIMILAR_ITEMS: FeatureBag(tuple(map(str, range(items))), S)})


def trained(
    events: Interactions, features: PublicFeatures | None, epsilon: float, seed: int = 1
) -> tuple[Model, State]:
    facts = PublicFacts(
        events.num_users, events.num_items, "clicks", (0.0, 1.0), features, Streams(1)
    )
    made = prepare(load(None, ["recipe=default", f"privacy.epsilon={epsilon}"]), facts)
    link = Loopback(events, made.steps, made.plan, Streams(seed), Ledger(made.plan.guarantee))
    *_, last = train(made.recipe, link, made.recipe.begin())
    return made.recipe.model(last.state), last.state


def ndcg(model: Model, known: Interactions, targets: Interactions) -> float:
    scores = dot_product(
        np.asarray(model.user_vectors(known), np.float32),
        np.asarray(model.item_vectors, np.float32),
    )
    counts = np.bincount(known.items, minlength=known.num_items)
    found = evaluate_ranking(
        scores, history=known, targets=targets, train_counts=counts, cutoffs=(20,)
    )
    return found.at[20].ndcg


def some_model(items: int, weights: np.ndarray) -> PublicPriorModel:
    rng = np.random.default_rng(5)
    private = ClickModel(
        rng.standard_normal((items, 3)).astype(np.float32), 1 + rng.random(items), 5.0, 20.0
    )
    P = rng.standard_normal((items, 4)).astype(np.float32)
    return PublicPriorModel(private, (P,), weights)


def test_a_judge_leaves_one_click_out_whoever_else_there_is() -> None:
    events = clicks_of(np.random.default_rng(1).random((400, 30)) < 0.3)
    held = left_out(events, judges=0.25)
    each = np.bincount(events.users[held], minlength=400)
    assert each.max() == 1
    assert 60 < each.sum() < 140
    assert left_out(events, judges=1.0).sum() == np.sum(np.diff(events.user_ptr) > 1)
    alone = events.select(events.users == 7)
    assert set(alone.items[left_out(alone, judges=1.0)]) == set(
        events.items[left_out(events, judges=1.0) & (events.users == 7)]
    )


def test_what_is_left_out_is_in_no_other_report() -> None:
    """The judged click would be told by the judge's own report."""
    events = clicks_of(np.random.default_rng(1).random((50, 30)) < 0.3)
    spec = ReleaseSpec("counts", (block("counts", "linear", rows=30, width=1),))
    question = Question(0, "clicks/counts", {"judges": np.array(1.0)}, (spec,))
    reports = report_counts(question, events)
    held = left_out(events, judges=1.0)
    assert held.any()
    told = set(zip(np.repeat(np.arange(50), np.diff(reports.user_ptr)), reports.items, strict=True))
    assert not told & set(zip(events.users[held], events.items[held], strict=True))
    assert len(told) == len(events) - held.sum()


def test_worth_is_how_many_items_come_before_the_click_that_was_left_out() -> None:
    """Second code, one blend and one user at a time, every item compared."""
    rows = np.random.default_rng(2).random((12, 40)) < 0.3
    rows[3] = False
    events = clicks_of(rows)
    wanted = np.array([np.flatnonzero(~row)[0] for row in rows])
    wanted[5] = -1
    model = some_model(40, np.array([1.0, 0.0]))
    tried = blends(1)
    found = worth_of(model, tried, events, wanted)
    factors = model.private.counts**POPULAR
    for k, row in enumerate(rows):
        expected = np.zeros(len(tried))
        for g, (own, public) in enumerate(tried):
            only = events.users_subset(np.array([k]))
            private = model.private.own_vectors(only)[0] @ model.private.own_items.T
            P = model.directions[0].astype(float)
            shared = ((row / factors) @ P) @ P.T * factors
            scores = sum(
                w * s / np.sqrt(np.mean(s**2)) if s.any() else 0 * s
                for w, s in ((own, private), (public, shared))
            )
            scores = scores + 1e-6 * model.private.counts / model.private.counts.max()
            before = np.sum((scores > scores[wanted[k]]) & ~row)
            expected[g] = LISTED / (LISTED + before)
        expected -= expected.mean()
        np.testing.assert_allclose(found[k], expected if k != 5 else 0, atol=1e-12)


def test_a_blend_is_chosen_by_what_stands_out_of_the_noise() -> None:
    tried = blends(2)
    assert tried.shape == (16, 3)
    np.testing.assert_allclose(tried.sum(axis=1), 1)
    worth = 400 * tried[:, 2] * (1 - tried[:, 2])
    found = chosen_blend(worth, tried, noise_std=0.0, judges=400)
    assert found[2] == pytest.approx(0.4, abs=0.21)
    noise = np.random.default_rng(1).standard_normal(len(tried))
    found = chosen_blend(worth + 10 * noise, tried, noise_std=10.0, judges=400)
    assert 0.2 <= found[2] <= 0.8
    alone = chosen_blend(0.5 * noise, tried, noise_std=1.0, judges=1)
    np.testing.assert_array_equal(alone, [1, 0, 0])


@pytest.mark.parametrize(("noise_std", "judges"), [(10.0, 1), (0.0, 500)])
def test_a_blend_that_nothing_speaks_for_is_seldom_chosen(noise_std: float, judges: int) -> None:
    """Noise of privacy, or of which people are asked, of the same std: 300 draws of it alone, and
    of it beside public sides that are worth the less the more they weigh."""
    tried = blends(1)
    rng = np.random.default_rng(1)
    std = np.hypot(noise_std, np.sqrt(judges / (len(tried) - 1)))
    for worth in (np.zeros(len(tried)), -20 * tried[:, 1]):
        draws = worth + std * rng.standard_normal((300, len(tried)))
        found = [chosen_blend(y, tried, noise_std=noise_std, judges=judges)[1] for y in draws]
        assert np.mean(np.array(found) > 0) < 0.16


def test_worth_costs_little_and_more_where_few_are_asked() -> None:
    assert shares(mu=1.1, users=30_000) == (0.01, pytest.approx(4000 / 30_000))
    assert shares(mu=0.27, users=300) == (0.07, pytest.approx(1 / 3))
    assert shares(mu=float("inf"), users=300) == (0.01, pytest.approx(1 / 3))


def test_at_most_a_third_of_people_leave_a_click_out() -> None:
    """What useless sides cost is these clicks."""
    for users in (60, 300, 3_000, 12_000, 1_000_000):
        asked = shares(mu=1.1, users=users)[1] * users
        assert 0 < asked <= min(users / 3, 4000) + 1e-6


def test_worth_is_not_asked_of_people_whose_answers_the_noise_outweighs() -> None:
    """Of 180 people 60 answer, and a fifth of all answers in one is 12, beside noise of std 1 / (mu
    sqrt(.07))."""
    assert shares(mu=0.32, users=180) == (0.07, pytest.approx(1 / 3))
    assert shares(mu=0.31, users=180) == (0.0, 0.0)
    events = circles(60, 40, 8, size=8, seed=4)
    features = linked(40, 8, told=True)
    model, state = trained(events, features, 0.1)
    alone, _ = trained(events, None, 0.1)
    assert "blend" not in state
    np.testing.assert_array_equal(model.user_vectors(events), alone.user_vectors(events))


def test_scores_are_of_both_parts_in_units_of_their_own_spread() -> None:
    events = clicks_of(np.random.default_rng(2).random((9, 40)) < 0.3)
    model = some_model(40, np.array([0.3, 0.7]))
    found = model.user_vectors(events) @ model.item_vectors.T.astype(float)
    private = some_model(40, np.array([1.0, 0.0])).user_vectors(events)
    private = private @ some_model(40, np.array([1.0, 0.0])).item_vectors.T.astype(float)
    public = some_model(40, np.array([0.0, 1.0])).user_vectors(events)
    public = public @ some_model(40, np.array([0.0, 1.0])).item_vectors.T.astype(float)
    np.testing.assert_allclose(np.mean(private**2, axis=1), 1, rtol=1e-4)
    np.testing.assert_allclose(np.mean(public**2, axis=1), 1, rtol=1e-4)
    np.testing.assert_allclose(found, 0.3 * private + 0.7 * public, atol=1e-5)


def test_a_model_of_a_file_is_the_same_model() -> None:
    model = some_model(40, np.array([0.3, 0.7]))
    events = clicks_of(np.random.default_rng(2).random((9, 40)) < 0.3)
    read = released.model_of(dict(model.arrays()), "public-prior")
    np.testing.assert_array_equal(read.user_vectors(events), model.user_vectors(events))
    np.testing.assert_array_equal(read.item_vectors, model.item_vectors)


@pytest.mark.parametrize("steps", [True, False])
def test_a_question_holds_the_private_model(steps: bool) -> None:
    """Of both its kinds, in arrays with a row for each item."""
    events = clicks_of(np.random.default_rng(2).random((90, 40)) < 0.3)
    own, state = trained(events, None, 20.0)
    similar = item_item_of(state)
    assert similar is not None
    if steps:
        V = np.random.default_rng(3).standard_normal((40, 3)).astype(np.float32)
        own = ClickModel(V, state["counts"], 5.0, 20.0, similar, 0.4)
    else:
        own = ItemItemModel(similar, state["counts"])
    P = np.random.default_rng(1).standard_normal((40, 4)).astype(np.float32)
    model = PublicPriorModel(own, (P,), np.array([1.0, 0.0]))
    arrays = asked_of(model)
    assert all(not array.ndim or len(array) == 40 for array in arrays.values())
    asked = asked_model(arrays)
    found = np.asarray(asked.user_vectors(events) @ asked.item_vectors.T)
    expected = np.asarray(model.user_vectors(events) @ model.item_vectors.T)
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.97


def test_a_report_of_worth_is_cut_to_norm_1() -> None:
    events = clicks_of(np.random.default_rng(2).random((90, 40)) < 0.3)
    model = some_model(40, np.array([1.0, 0.0]))
    spec = block("worth", "linear", rows=1, width=len(blends(1)))
    public = {**asked_of(model), "judges": np.array(1.0)}
    question = Question(0, "clicks/worth", public, (ReleaseSpec("worth", (spec,)),))
    (told,) = report_worth(question, events).blocks
    norms = told.coefficients * np.linalg.norm(told.vectors, axis=1) * spec.step
    assert 0.99 < norms.max() <= 1
    assert 0 < np.median(norms) < 0.9


def test_links_are_directions_of_their_matrix() -> None:
    features = linked(60, 6, told=True)
    P = link_directions(features)
    assert P is not None
    A = features.bags[SIMILAR_ITEMS].counts.toarray()
    A = A + A.T
    np.fill_diagonal(A, 0)
    sums = A.sum(axis=1)
    values, E = np.linalg.eigh(A / np.sqrt(np.outer(sums, sums)))
    np.testing.assert_allclose(P @ P.T, (E * np.maximum(values, 0)) @ E.T, atol=1e-6)
    assert link_directions(None) is None


def test_flattened_directions_have_the_square_root_of_the_similarity() -> None:
    rng = np.random.default_rng(6)
    P = rng.normal(size=(50, 4)) @ np.diag([9.0, 3.0, 1.0, 0.0])
    Q = flattened(P)
    S = Q @ Q.T
    np.testing.assert_allclose(S @ S, P @ P.T, atol=1e-9)
    np.testing.assert_allclose(flattened(np.zeros((5, 2))), 0)


def test_public_sides_alone_read_no_click_but_the_users_own() -> None:
    """Links within circles list a circle's items first, whoever else clicked what."""
    P = link_directions(linked(60, 6, told=True))
    assert P is not None
    model = public_alone((P.astype(np.float32),))
    rows = np.zeros((1, 60), np.bool_)
    rows[0, [0, 1, 2]] = True
    scores = (model.user_vectors(clicks_of(rows)) @ model.item_vectors.T)[0]
    scores[[0, 1, 2]] = -np.inf
    assert set(np.argsort(-scores)[:3]) == {3, 4, 5}


def test_items_that_nobody_clicked_are_listed_by_their_public_side() -> None:
    """The last two items of each circle are in nobody's training rows, and are what people of the
    circle want: among such items lists hit three times as often as chance."""
    events = circles(600, 200, 12, size=10, seed=4)
    new = events.items % 10 >= 8
    model, state = trained(events.select(~new), linked(200, 10, told=True), 5.0)
    assert state["blend"][0] < 1
    known = events.select(~new)
    scores = model.user_vectors(known) @ model.item_vectors.T.astype(np.float64)
    scores = np.where(np.arange(200) % 10 >= 8, scores, -np.inf)
    first = np.argsort(-scores, axis=1)[:, :4]
    wanted = np.zeros((600, 200), np.bool_)
    wanted[events.users[new], events.items[new]] = True
    hits = np.take_along_axis(wanted, first, axis=1).sum() / wanted.sum()
    assert hits > 3 * 4 / 40


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 20.0])
def test_links_are_trusted_as_far_as_clicks_follow_them(epsilon: float) -> None:
    """400 items in circles of 8, 800 people: links within circles lift lists, links drawn at random
    are left out. At epsilon 20 they cost under 3%; at 1 lists without them are no better than
    chance, whose draws differ by more."""
    split = random_split(circles(800, 400, 12, size=8, seed=4), seed=1)
    known = split.train
    targets = split.validation.targets
    model, state = trained(known, linked(400, 8, told=True), epsilon)
    alone, _ = trained(known, None, epsilon)
    useless, ignored = trained(known, linked(400, 8, told=False), epsilon)
    assert state["blend"][1] >= 0.4
    assert ndcg(model, known, targets) > 1.2 * ndcg(alone, known, targets)
    assert ignored["blend"][0] >= 0.8
    if epsilon > 1:
        assert ndcg(useless, known, targets) > 0.97 * ndcg(alone, known, targets)
