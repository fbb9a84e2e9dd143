"""What public people teach the default recipe; the five tests of a private algorithm are in
test_recipes.py."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
from scipy import sparse

from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.interactions import Dataset, Interactions
from fedrec.data.planted import SHAPES, planted
from fedrec.data.public_sources import PUBLIC_USERS, metadata_of, with_users_made_public
from fedrec.errors import SettingsError
from fedrec.factorization.default_ratings.settings import settings_for
from fedrec.factorization.empirical_bayes import expected_counts
from fedrec.factorization.facts import PublicFacts, beside_known, predict
from fedrec.federation.messages import State, train
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.public_sides import people_of
from fedrec.randomness import Streams
from fedrec.recipes import default, prepare
from fedrec.settings import load
from fedrec.settings_tables.collective import CollectiveSettings

BOTH = 'collective.sides=["metadata", "public-users"]'
SHARE = "collective.users_share=0.4"


@cache
def half_public() -> tuple[Dataset, Interactions, Interactions]:
    """Planted ratings, 40% of the users public; what private users show, and what they are
    asked."""
    dataset = planted(dataclasses.replace(SHAPES["small"], users=2_000, events=50_000), seed=1)
    dataset = with_users_made_public(dataset, share=0.4, key=Streams(2).key("public-users"))
    unseen = np.random.default_rng(1).random(len(dataset.interactions)) < 0.1
    return dataset, dataset.interactions.select(~unseen), dataset.interactions.select(unseen)


def facts_of(seen: Interactions, features: PublicFeatures | None) -> PublicFacts:
    return PublicFacts(
        seen.num_users, seen.num_items, seen.kind, seen.value_range, features, Streams(1)
    )


def error_of(choices: list[str], epsilon: float) -> float:
    dataset, seen, asked = half_public()
    made = prepare(
        load(None, ["recipe=default", *choices, f"privacy.epsilon={epsilon}"]),
        facts_of(seen, dataset.features),
    )
    *_, last = train(
        made.recipe,
        Loopback(seen, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee)),
        made.recipe.begin(),
    )
    return float(
        np.sqrt(np.mean((predict(made.recipe.model(last.state), seen, asked) - asked.values) ** 2))
    )


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 5.0])
def test_public_people_help_and_few_of_them_do_no_harm(epsilon: float) -> None:
    alone = error_of([], epsilon)
    assert error_of([BOTH, SHARE], epsilon) < 0.99 * alone
    assert error_of([BOTH, SHARE, "collective.users_limit=10"], epsilon) < 1.01 * alone


def test_without_public_people_nothing_changes_where_they_are_in_the_data() -> None:
    dataset, seen, _ = half_public()
    without = dataset.features.only(name for name in dataset.features.bags if name != PUBLIC_USERS)
    assert metadata_of(dataset.features, ()) == metadata_of(without, ()) == without
    settings = settings_for(
        Guarantee(5.0, 1e-5), users=seen.num_users, items=seen.num_items, features=True
    )
    assert settings.biases > 0


def learned() -> State:
    dataset, seen, _ = half_public()
    facts = facts_of(seen, dataset.features)
    return default.learned(
        people_of(CollectiveSettings(sides=("public-users",)), facts), facts, None
    )


@pytest.mark.slow
def test_what_they_taught_is_less_certain_where_they_rated_less() -> None:
    state = learned()
    people = people_of(CollectiveSettings(), facts_of(half_public()[1], half_public()[0].features))
    counts = np.bincount(people.items, minlength=people.num_items)
    precision = np.asarray(state["people_precision"], np.float64)[:, 0]
    assert np.corrcoef(counts, precision)[0, 1] > 0.9
    assert (precision[counts == 0] < precision[counts > 5].min()).all()


def test_two_observations_are_weighed_by_their_precision() -> None:
    state = {"people_observed": np.array([[3.0, 1.0]]), "people_precision": np.array([[3.0, 0.0]])}
    mean, variance = beside_known(state, np.array([[1.0, 5.0]]), np.array([[1.0, 2.0]]))
    np.testing.assert_allclose(mean, [[2.5, 5.0]])
    np.testing.assert_allclose(variance, [[0.25, 2.0]])


def test_public_people_cost_nothing_and_move_the_budget_to_the_steps() -> None:
    guarantee = Guarantee(1.0, 1e-5)
    alone, beside = (
        settings_for(guarantee, users=3_000, items=3_000, features=True, people=p)
        for p in (False, True)
    )
    assert "biases" not in beside.shares
    assert (
        sum(beside.shares.values()) == pytest.approx(sum(alone.shares.values())) == pytest.approx(1)
    )
    assert calibrate(guarantee, beside.shares).guarantee == guarantee


def test_expected_counts_follow_the_noise_where_there_is_none_and_the_expectation_where_there_is_much() -> None:  # fmt: skip
    rng = np.random.default_rng(0)
    expected = rng.exponential(20, 2_000)
    truth = rng.poisson(expected * 1.5).astype(float)
    np.testing.assert_allclose(
        expected_counts(truth, std=1e-3, expected=expected, features=None), truth, atol=0.05
    )
    noisy = truth + rng.normal(0, 40, len(truth))
    found = expected_counts(noisy, std=40, expected=expected, features=None)
    assert np.sqrt(np.mean((found - truth) ** 2)) < 8  # Poisson alone leaves sqrt(30) = 5.5


def test_a_limit_draws_people_and_other_scales_are_refused() -> None:
    dataset, seen, _ = half_public()
    facts = facts_of(seen, dataset.features)
    assert people_of(CollectiveSettings(users_limit=7), facts).num_users == 7
    bag = FeatureBag(
        ("somebody",), sparse.csr_matrix(np.full((seen.num_items, 1), 9.0, np.float32))
    )
    with pytest.raises(SettingsError, match="scale"):
        people_of(
            CollectiveSettings(),
            dataclasses.replace(facts, features=PublicFeatures({PUBLIC_USERS: bag})),
        )
    with pytest.raises(SettingsError, match="there are none"):
        people_of(CollectiveSettings(), dataclasses.replace(facts, features=None))


def test_ratings_of_people_are_not_made_clicks_of() -> None:
    dataset, seen, _ = half_public()
    with pytest.raises(SettingsError, match="these are ratings"):
        prepare(
            load(None, [BOTH, SHARE, "collective.users_values=binary"]),
            facts_of(seen, dataset.features),
        )


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        (["collective.metadata_weight=3"], "finds from the data"),
        (
            ['collective.sides=["similar-items"]', "collective.similar_file=some.csv"],
            "what is alike",
        ),
        ([BOTH], "users_file or users_share"),
        ([BOTH, SHARE, "data.features=false"], "public users too"),
        ([BOTH, SHARE, "compare.published=true"], "compare.published"),
        (
            ['collective.sides=["public-users"]', SHARE, 'collective.categories=["genre"]'],
            'add "metadata"',
        ),
    ],
)
def test_the_default_recipe_refuses_what_says_nothing_to_it(
    choices: list[str], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        load(None, ["recipe=default", *choices])
