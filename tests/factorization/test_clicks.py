"""What is particular to the default recipe for clicks; the five tests of a private algorithm are in
`test_recipes.py`."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.interactions import Interactions
from fedrec.data.public_sources import PUBLIC_USERS
from fedrec.errors import SettingsError
from fedrec.factorization.default_clicks import item_item, spectrum
from fedrec.factorization.default_clicks import recipe as clicks
from fedrec.factorization.default_clicks import settings as click_settings
from fedrec.factorization.default_clicks.model import ClickModel
from fedrec.factorization.default_clicks.recipe import ClickRecipe
from fedrec.factorization.default_clicks.settings import Clicked, again_by_counts
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import Question, RoundDone, State, train
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger, mu_for
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.public_sides import clicks_of_people
from fedrec.randomness import Streams
from fedrec.settings_tables.collective import CollectiveSettings

ITEMS = 25


def some_clicks(seed: int = 0, num_users: int = 60) -> Interactions:
    rng = np.random.default_rng(seed)
    users, items = np.nonzero(rng.random((num_users, ITEMS)) < rng.random((num_users, 1)) * 0.6)
    return Interactions.from_columns(
        users,
        items,
        None,
        num_users=num_users,
        num_items=ITEMS,
        value_range=(0.0, 1.0),
        kind="clicks",
    )


def recipe_for(events: Interactions, epsilon: float) -> ClickRecipe:
    guarantee = Guarantee(epsilon, 1e-5)
    chosen = click_settings.settings_for(guarantee, users=events.num_users, items=events.num_items)
    facts = PublicFacts(events.num_users, events.num_items, "clicks", (0.0, 1.0), None, Streams(1))
    return ClickRecipe(calibrate(guarantee, chosen.shares), chosen, facts)


def rounds_of(events: Interactions, recipe: ClickRecipe, seed: int = 1) -> list[RoundDone]:
    link = Loopback(
        events, clicks.CLIENT_STEPS, recipe.plan, Streams(seed), Ledger(recipe.plan.guarantee)
    )
    return list(train(recipe, link, recipe.begin()))


def dense(events: Interactions) -> np.ndarray:
    X = np.zeros((events.num_users, events.num_items))
    X[events.users, events.items] = 1
    return X


def unit_rows(rows: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)


def dense_sums(question: Question, X: np.ndarray) -> dict[str, np.ndarray]:
    """What every round adds up to, from the users x items matrix: second code."""
    public = {name: np.asarray(array, np.float64) for name, array in question.public.items()}
    if question.step == "clicks/counts":
        return {"counts": unit_rows(X).sum(axis=0)[:, None]}
    weighted = X * public["omega"]
    if question.step == "clicks/tastes":
        z = unit_rows(weighted[:, public["items"].astype(int)])
        return {"tastes": z.T @ z}
    V = public["V"]
    alpha = float(public["confidence"])
    U = np.zeros((len(X), V.shape[1]))
    for k, x in enumerate(X):  # Hu et al. eq. 4 with confidences as a matrix
        C = np.diag(1 + alpha * x)
        U[k] = np.linalg.solve(
            V.T @ C @ V + float(public["ridge"]) * np.eye(V.shape[1]), V.T @ C @ x
        )
    H = unit_rows(U)
    q = float(public["gramian_energy"])
    gramian = np.sqrt(q) * (H.T @ H)[np.triu_indices(V.shape[1])][None]
    return {"directions": np.sqrt(1 - q) * unit_rows(weighted).T @ H, "gramian": gramian}


def test_without_noise_the_releases_are_the_sums_of_the_dense_algorithm() -> None:
    """Up to the grid, on which every user's numbers are cut towards zero."""
    events = some_clicks()
    recipe = recipe_for(events, np.inf)
    for done in rounds_of(events, recipe):
        sums = dense_sums(done.question, dense(events))
        for spec in done.question.blocks:
            cut = events.num_users * (spec.coefficient_step + 2 * spec.vector_step)
            np.testing.assert_allclose(
                done.answer.values[spec.name], sums[spec.name], rtol=0, atol=cut
            )


def test_the_taste_gram_is_of_the_most_clicked_items_fewer_where_people_hold_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of twelve that it reaches, those whose pairs it tells: without the part of a user's unit that
    is on the diagonal."""
    monkeypatch.setattr(item_item, "LEAST_HEAD", 1)
    events = some_clicks()
    recipe = recipe_for(events, np.inf)
    few = ClickRecipe(recipe.plan, replace(recipe.settings, heads=(12, 12)), recipe.facts)
    first = next(iter(rounds_of(events, few))).state
    counts = np.asarray(first["counts"], np.float64)
    top = np.sort(counts)[::-1]
    held = (counts.sum() / events.num_users) ** 2 * top[:12].sum() / top.sum()
    some = held / (1 - np.exp(-held))
    assert recipe.settings.width < len(first["head"]) < 12
    assert len(first["head"]) == int(12 * (1 - 1 / some) ** (2 / 3))
    assert counts[first["head"]].min() >= np.delete(counts, first["head"]).max()


# so few items are crowded: with 150 there is nothing left to whiten
@pytest.mark.parametrize("crowded", [0.0, clicks.CROWDED])
def test_without_noise_a_step_solves_every_item_with_its_gram_taken_from_its_mean(
    crowded: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """v_j = (G + w_j (G + coherence q_j q_j'))^-1 q_j b_j, matrix by matrix, plus what is kept of
    the V before, up to the length of V."""
    monkeypatch.setattr(clicks, "CROWDED", crowded)
    monkeypatch.setattr(
        clicks, "rounded_rows", lambda V: np.asarray(V, np.float32)
    )  # what rounding does is tests/federation/test_rounding.py's
    events = some_clicks()
    recipe = recipe_for(events, np.inf)
    before, last = rounds_of(events, recipe)[-2:]
    omega, b, d = (
        np.asarray(x, np.float64)
        for x in (last.question.public["omega"], before.state["counts"], recipe.settings.width)
    )
    q = clicks.shrunk_directions(
        last.answer.values["directions"] / np.sqrt(1 - clicks.GRAMIAN), std=0.0, weights=b * omega
    )
    G = np.zeros((int(d), int(d)))
    G[np.triu_indices(int(d))] = (
        last.answer.values["gramian"][0] / np.sqrt(clicks.GRAMIAN) / events.num_users
    )
    values, E = np.linalg.eigh(np.triu(G) + np.triu(G, 1).T)
    G = (E * np.maximum(values, max(clicks.FLOOR / d, crowded / ITEMS))) @ E.T
    w = recipe.settings.damping * b / b.mean()
    rho = recipe.settings.coherence
    V = np.array(
        [
            np.linalg.solve(G + w[j] * (G + rho * np.outer(q[j], q[j])), q[j]) * b[j]
            for j in range(ITEMS)
        ]
    )
    earlier = np.asarray(before.state["V"], np.float64)
    assert earlier.any(axis=1).all()
    V += recipe.settings.memory * earlier * np.linalg.norm(V) / np.linalg.norm(earlier)
    np.testing.assert_allclose(
        np.asarray(last.state["V"], np.float64),
        V * np.sqrt(10 * d / np.sum(V**2)),
        rtol=0,
        atol=1e-5,
    )


@pytest.mark.parametrize("few", [0.0, math.inf])
def test_without_noise_public_people_teach_what_private_ones_would(
    few: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly, by steps and by the Gram: reports are integers, and people's are added after the
    noise, which is 0 here."""
    monkeypatch.setattr(click_settings, "FEW_CLICKS", few)
    events = some_clicks()
    alone = recipe_for(events, np.inf)
    private, people = (events.users_subset(np.arange(*part)) for part in ((0, 35), (35, 60)))
    facts = PublicFacts(35, ITEMS, "clicks", (0.0, 1.0), None, Streams(1))
    joint = ClickRecipe(alone.plan, alone.settings, facts, people)
    for one, two in zip(rounds_of(events, alone), rounds_of(private, joint), strict=True):
        for name, array in one.state.items():
            np.testing.assert_array_equal(array, two.state[name])


def test_public_users_become_users_who_click_and_other_sides_are_refused() -> None:
    people = some_clicks(seed=9, num_users=12)
    bag = FeatureBag(
        tuple(f"person {k}" for k in range(12)),
        sparse.csr_matrix(dense(people).T, dtype=np.float32),
    )
    facts = PublicFacts(
        60, ITEMS, "clicks", (0.0, 1.0), PublicFeatures({PUBLIC_USERS: bag}), Streams(1)
    )
    chosen = CollectiveSettings(sides=("public-users",), users_share=0.2, users_values="binary")
    found = clicks_of_people(chosen, facts)
    assert found is not None
    np.testing.assert_array_equal(dense(found), dense(people))
    assert clicks_of_people(CollectiveSettings(), facts) is None
    with pytest.raises(SettingsError, match="public users alone"):
        clicks_of_people(chosen.model_copy(update={"sides": ("public-users", "metadata")}), facts)


def test_public_people_change_no_release_and_no_noise() -> None:
    """What leaves the aggregator in round 0 is the same with and without people, and so is its
    price."""
    events = some_clicks()
    alone = recipe_for(events, 5.0)
    joint = ClickRecipe(alone.plan, alone.settings, alone.facts, some_clicks(seed=9))
    (one, *_), (two, *_) = rounds_of(events, alone), rounds_of(events, joint)
    np.testing.assert_array_equal(one.answer.values["counts"], two.answer.values["counts"])
    assert joint.plan == alone.plan
    assert float(two.state["counts"].sum()) > 1.3 * float(one.state["counts"].sum())


@pytest.mark.slow
def test_the_symmetric_part_of_the_taste_gram_has_isometric_noise() -> None:
    """Within 4% on 300 pairs x 40 seeds (a standard error of 0.7%): std off the diagonal is the
    diagonal's over sqrt 2."""
    events = some_clicks()
    recipe = recipe_for(events, 5.0)
    draws = []
    recipe = ClickRecipe(recipe.plan, replace(recipe.settings, heads=(ITEMS, ITEMS)), recipe.facts)
    quiet = dense_sums(rounds_of(events, recipe)[1].question, dense(events))["tastes"]
    for seed in range(40):
        first, second = rounds_of(events, recipe, seed)[:2]
        if set(map(int, second.question.public["items"])) != set(range(ITEMS)):
            pytest.fail("the head should be the whole of a small catalogue")
        order = np.argsort(second.question.public["items"])
        noisy = second.answer.values["tastes"][np.ix_(order, order)]
        truth = dense_sums(second.question, dense(events))["tastes"][np.ix_(order, order)]
        draws.append(((noisy + noisy.T) / 2 - truth) / second.answer.noise_std["tastes"])
        assert first.answer.noise_std.keys() == {"counts"}
    noise = np.array(draws)
    assert quiet.shape == noise.shape[1:]
    off = noise[:, *np.triu_indices(ITEMS, 1)]
    assert off.std() == pytest.approx(np.sqrt(0.5), rel=0.04)
    assert np.diagonal(noise, axis1=1, axis2=2).std() == pytest.approx(1, rel=0.1)


GROUPS = 6


def clicks_of_groups(num_users: int = 3000) -> tuple[Interactions, np.ndarray]:
    """Every item of 300 belongs to a group (300,), and every user: it clicks its own group's items
    four times as often. Items are less popular the later they come."""
    rng = np.random.default_rng(4)
    group = np.arange(300) % GROUPS
    chance = np.linspace(0.9, 0.05, 300) * np.where(
        group == np.arange(num_users)[:, None] % GROUPS, 1.0, 0.25
    )
    users, items = np.nonzero(rng.random((num_users, 300)) < chance)
    events = Interactions.from_columns(
        users,
        items,
        None,
        num_users=num_users,
        num_items=300,
        value_range=(0.0, 1.0),
        kind="clicks",
    )
    return events, group


def weights_alone(events: Interactions, content: np.ndarray | None) -> State:
    """Of a Gram of the 60 most clicked items at epsilon 1, with features or without."""
    guarantee = Guarantee(1.0, 1e-5)
    chosen = replace(
        click_settings.settings_for(guarantee, users=events.num_users, items=events.num_items),
        tastes=0.9,
        steps=(),
        heads=(60, 60),
    )
    facts = PublicFacts(events.num_users, events.num_items, "clicks", (0.0, 1.0), None, Streams(1))
    plan = calibrate(guarantee, chosen.shares)
    return rounds_of(events, ClickRecipe(plan, chosen, facts, content=content))[-1].state


def test_features_carry_weights_to_items_outside_of_the_gram() -> None:
    """Whoever clicks a group's most clicked items is shown the group's items outside of the
    Gram first; without features the model knows none of them. Features of other items, at random,
    change no byte of a model."""
    events, group = clicks_of_groups()
    told = np.eye(GROUPS)[group] - 1 / GROUPS
    state = weights_alone(events, told)
    similar = clicks.item_item_of(state)
    assert similar is not None
    assert len(state["head"]) == 60 < len(similar.head) == 300
    outside = similar.head[60:]
    for each in range(GROUPS):
        mine = np.flatnonzero(group[similar.head[:60]] == each)
        scores = similar.left[mine].sum(axis=0) @ similar.right[60:].T
        mean = [scores[group[outside] == other].mean() for other in range(GROUPS)]
        assert mean[each] > 0 > max(mean[other] for other in range(GROUPS) if other != each)
    without, others = (
        weights_alone(events, features)
        for features in (None, np.random.default_rng(0).permutation(told))
    )
    for name in ("left", "right", "weighed"):
        np.testing.assert_array_equal(without[name], others[name])
    assert set(without["weighed"]) == set(without["head"])


def test_whoever_has_no_vector_is_served_by_popularity_and_nobody_else() -> None:
    counts = np.arange(1.0, ITEMS + 1)
    rng = np.random.default_rng(0)
    V = np.where(np.arange(ITEMS)[:, None] < 20, rng.standard_normal((ITEMS, 4)), 0).astype(
        np.float32
    )
    model = ClickModel(V, counts, ridge=10.0, confidence=20.0)
    events = Interactions.from_columns(
        np.array([1, 1, 2]),
        np.array([3, 4, 22]),
        None,
        num_users=3,
        num_items=ITEMS,
        value_range=(0.0, 1.0),
        kind="clicks",
    )
    U = model.user_vectors(events)
    # nothing clicked; two items known; one that V knows nothing of
    assert list(U[:, -1]) == [1, 0, 1]
    for k in (0, 2):
        assert (np.argsort(-(model.item_vectors @ U[k])) == np.argsort(-counts)).all()


def test_a_model_is_there_after_every_round() -> None:
    events = some_clicks()
    recipe = recipe_for(events, 5.0)
    states: list[State] = [recipe.begin(), *(done.state for done in rounds_of(events, recipe))]
    for state in states:
        model = recipe.model(state)
        scores = model.user_vectors(events) @ model.item_vectors.T
        assert scores.shape == (events.num_users, ITEMS)
        assert np.isfinite(scores).all()


@settings(max_examples=60, deadline=None)
@given(
    epsilon=st.one_of(st.floats(0.05, 100), st.just(np.inf)),
    users=st.integers(1, 10_000_000),
    items=st.integers(1, 1_000_000),
)
def test_settings_are_sane_for_any_public_facts(epsilon: float, users: int, items: int) -> None:
    chosen = click_settings.settings_for(Guarantee(epsilon, 1e-5), users=users, items=items)
    assert 1 <= chosen.width <= min(click_settings.WIDEST, items)
    assert 0 < chosen.heads[0] <= chosen.heads[1]
    assert chosen.width <= max(4, items / 10)
    assert sum(chosen.shares.values()) == pytest.approx(1)
    assert min(chosen.shares.values()) > 0


def test_shrunk_directions_come_closer_to_the_truth_than_the_sums_and_are_the_sums_without_noise() -> None:  # fmt: skip
    rng = np.random.default_rng(0)
    weights = np.geomspace(0.5, 50, 300)
    truth = rng.standard_normal((300, 2)) @ rng.standard_normal((2, 8)) * 0.2 + 0.3
    sums = weights[:, None] * truth + 5 * rng.standard_normal(truth.shape)
    raw = sums / weights[:, None]
    shrunk = clicks.shrunk_directions(sums, std=5.0, weights=weights)
    assert np.mean((shrunk - truth) ** 2) < 0.1 * np.mean((raw - truth) ** 2)
    exact = clicks.shrunk_directions(weights[:, None] * truth, std=0.0, weights=weights)
    np.testing.assert_allclose(exact, truth, atol=0.02)


def test_two_releases_of_the_same_sum_are_weighed_by_their_noise() -> None:
    """The least variance that a mean of both can have; without noise both say the same."""
    one = np.array([1.0, 2.0])
    other = np.array([3.0, 4.0])
    mean, std = clicks.averaged(one, 1.0, other, 2.0)
    np.testing.assert_allclose(mean, 0.8 * one + 0.2 * other)
    assert std == pytest.approx(np.sqrt(1 / (1 / 1.0**2 + 1 / 2.0**2)))
    mean, std = clicks.averaged(one, 0.0, other, 0.0)
    assert std == 0
    np.testing.assert_allclose(mean, (one + other) / 2)


@pytest.mark.parametrize(
    ("few", "many", "little", "asked"),
    [
        (math.inf, math.inf, -math.inf, "clicks/tastes"),
        (0.0, 0.0, -math.inf, "clicks/tastes"),
        (0.0, math.inf, math.inf, "clicks/tastes"),
        (0.0, math.inf, -math.inf, "clicks/step"),
    ],
)
def test_what_steps_would_not_use_goes_to_the_gram_again(
    few: float,
    many: float,
    little: float,
    asked: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every release of the plan is asked for once, under its own name, and noise falls as if one
    release had had all of it."""
    monkeypatch.setattr(click_settings, "LITTLE", little)
    monkeypatch.setattr(click_settings, "FEW_CLICKS", few)
    monkeypatch.setattr(click_settings, "MANY", many)
    events = some_clicks()
    recipe = recipe_for(events, 5.0)
    done = rounds_of(events, recipe)
    assert [one.question.releases[0].name for one in done] == list(recipe.settings.shares)
    assert {one.question.step for one in done[2:]} == {asked}
    if asked == "clicks/step":
        return
    stds = [next(iter(one.answer.noise_std.values())) for one in done[1:]]
    assert float(done[-1].state["gram_std"]) == pytest.approx(
        1 / np.sqrt(sum(1 / std**2 for std in stds))
    )


def test_popularity_is_told_by_the_diagonal_where_counts_are_hidden_and_else_by_counts() -> None:
    """300 items, ten draws: counts under four times the diagonal's noise, and a diagonal that is
    not in proportion to counts (log-normal, .3), known within 2."""
    truth = np.geomspace(400, 4, 300)

    def error(found: np.ndarray) -> float:
        return float(np.mean((found * (truth.sum() / found.sum()) - truth) ** 2))

    for seed in range(10):
        rng = np.random.default_rng(seed)
        hidden, near = (truth + std * rng.standard_normal(300) for std in (40.0, 2.0))
        told = (truth + 10 * rng.standard_normal(300)).clip(1)
        other = told * np.exp(0.3 * rng.standard_normal(300))
        by_diagonal = clicks.popular_by_both(hidden, np.sqrt(told), std=40.0, exponent=0.5) ** 2
        assert error(by_diagonal) < 0.2 * error(hidden.clip(0))
        by_counts = clicks.popular_by_both(near, np.sqrt(other), std=2.0, exponent=0.5) ** 2
        assert error(by_counts) < 0.2 * error(other)
    exact = clicks.popular_by_both(truth, np.sqrt(told), std=0.0, exponent=0.5)
    np.testing.assert_allclose(exact / exact[0], np.sqrt(truth / truth[0]), rtol=1e-6)


@pytest.mark.parametrize(("told", "asked"), [(0.0, "clicks/tastes"), (1e9, "clicks/counts")])
def test_counts_decide_before_any_gram_whether_one_would_tell_anything(
    told: float, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If not, every release of the plan is of counts: together as good as `dp_popularity`, whose
    one release has the whole budget."""
    monkeypatch.setattr(click_settings, "LEAST_TOLD", told)
    events = some_clicks()
    alone = recipe_for(events, 5.0)
    chosen = click_settings.default_settings(
        alone.plan.guarantee, users=events.num_users, items=ITEMS
    )
    recipe = replace(alone, settings=chosen)
    done = rounds_of(events, recipe)
    assert done[1].question.step == asked
    assert [one.question.releases[0].name for one in done] == list(chosen.shares)
    if asked == "clicks/counts":
        assert {one.question.step for one in done} == {asked}
        assert float(done[-1].state["counted_std"]) == pytest.approx(
            1 / mu_for(5.0, 1e-5), rel=1e-3
        )
        model = recipe.model(done[-1].state)
        scores = model.user_vectors(events) @ model.item_vectors.T
        counts = np.asarray(done[-1].state["counts"], np.float64)
        assert (np.diff(counts[np.argsort(-scores, axis=1, kind="stable")], axis=1) <= 1e-9).all()
    assert recipe_for(events, np.inf).settings.reached == np.inf


def test_eigenvectors_are_found_once_when_the_gram_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the first Gram, which decides, and at the last, which holds all that was released."""
    found = []
    monkeypatch.setattr(
        clicks,
        "denoised",
        lambda *known, **more: found.append(1) or spectrum.denoised(*known, **more),
    )
    monkeypatch.setattr(click_settings, "FEW_CLICKS", math.inf)
    events = some_clicks()
    recipe = recipe_for(events, 5.0)
    assert len(rounds_of(events, recipe)) > 3
    assert len(found) == 2


def test_weights_beside_vectors_count_by_the_part_of_all_clicks_that_they_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten of the items, where steps follow."""
    for name, never in (("LITTLE", -math.inf), ("FEW_CLICKS", 0.0), ("MANY", math.inf)):
        monkeypatch.setattr(click_settings, name, never)
    monkeypatch.setattr(item_item, "LEAST_HEAD", 10)
    events = some_clicks()
    recipe = recipe_for(events, 5.0)
    recipe = ClickRecipe(recipe.plan, replace(recipe.settings, heads=(10, 10)), recipe.facts)
    last = rounds_of(events, recipe)[-1].state
    model = recipe.model(last)
    counts = np.asarray(last["counts"])
    assert isinstance(model, ClickModel)
    assert model.blend == pytest.approx(0.65 * counts[last["head"]].sum() / counts.sum())


@pytest.mark.parametrize(
    ("few", "many", "size"), [(math.inf, math.inf, 20), (0.0, 0.0, 20), (0.0, math.inf, 10)]
)
def test_a_gram_that_gets_all_is_of_more_items_from_the_first_release_on(
    few: float, many: float, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where counts alone say that it will, or people hold many items; else of what the first
    release tells."""
    monkeypatch.setattr(item_item, "LEAST_HEAD", 1)
    monkeypatch.setattr(click_settings, "told", lambda most, *, held: int(most))
    monkeypatch.setattr(click_settings, "FEW_CLICKS", few)
    monkeypatch.setattr(click_settings, "MANY", many)
    events = some_clicks()
    recipe = recipe_for(events, 5.0)
    recipe = replace(recipe, settings=replace(recipe.settings, heads=(10, 20)))
    state = rounds_of(events, recipe)[0].state
    assert len(state["head"]) == size
    assert ("again" in state) == (size == 20)


def test_counts_get_most_where_a_gram_would_reach_few_items() -> None:
    """A third of mu^2 for 1,000 users; the share falls as the Gram reaches more, and where it
    reaches far (yelp2018's size) it is what other terms say."""

    def share(users: int, epsilon: float) -> float:
        chosen = click_settings.settings_for(Guarantee(epsilon, 1e-5), users=users, items=2_000)
        assert sum(chosen.shares.values()) == pytest.approx(1)
        return chosen.counts

    assert share(1_000, 0.5) == share(1_000, 1.0) == click_settings.MOST_COUNTS
    shares = [share(1_000, epsilon) for epsilon in (1, 2, 3, 5, 20)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == 0.1
    far = click_settings.settings_for(Guarantee(0.5, 1e-5), users=31_668, items=38_048)
    assert 0.2 < far.counts < 0.25


def test_without_noise_the_gram_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where few people have few of its items; again it would say the same."""
    events = some_clicks(num_users=18)
    recipe = recipe_for(events, np.inf)
    first = ["clicks/counts", "clicks/tastes"]
    steps = ["clicks/step"] * len(recipe.settings.steps)
    for few, more in ((math.inf, []), (0.0, steps)):
        monkeypatch.setattr(click_settings, "FEW_CLICKS", few)
        assert [one.question.step for one in rounds_of(events, recipe)] == first + more


def test_without_noise_an_item_that_nobody_clicked_is_no_click(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """18 people of one click each hold one item; with what 20 other items are credited with, 1.5."""
    monkeypatch.setattr(click_settings, "FEW_CLICKS", 1.2)
    events = Interactions.from_columns(
        np.arange(18),
        np.arange(18) % 5,
        None,
        num_users=18,
        num_items=ITEMS,
        value_range=(0.0, 1.0),
        kind="clicks",
    )
    done = rounds_of(events, recipe_for(events, np.inf))
    assert [one.question.step for one in done] == ["clicks/counts", "clicks/tastes"]


def test_without_noise_few_people_go_to_the_gram_and_many_to_steps() -> None:
    """As many as items at most. Beside noise it is the cost of the Gram that decides."""
    items = np.arange(20)
    for users, few in ((20, True), (21, False)):
        clicked = Clicked(np.full(20, users / 20 * math.sqrt(3)), users)
        assert again_by_counts(clicked, items, exact=True) == few
        assert again_by_counts(clicked, items, exact=False)
