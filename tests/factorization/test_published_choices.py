import math
from dataclasses import replace

import pytest

import fedrec
from fedrec.recipes import dp_cmf, published
from fedrec.recipes.ssp_choices import (
    WITH_FEATURES,
    WITH_OWN_MEANS,
    WITHOUT_FEATURES,
    choice_for,
    steady,
)
from fedrec.settings import load


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        (0.1, 0.5),
        (0.7, 0.5),
        (0.8, 1.0),
        (2.2, 1.0),
        (2.3, 5.0),
        (15.0, 20.0),
        (300.0, 20.0),
        (math.inf, math.inf),
    ],
)
def test_an_epsilon_takes_the_settings_of_the_nearest_one_in_ratio(
    asked: float, nearest: float
) -> None:
    assert choice_for(asked, features=True) is WITH_FEATURES[nearest]
    assert choice_for(asked, features=False) is WITHOUT_FEATURES[nearest]


def test_what_a_scenario_says_stays_and_the_rest_is_the_rule_s() -> None:
    found = published.settings_of(
        load(
            None,
            ["recipe=published", "privacy.epsilon=1", "model.item_ridge=7", "model.encoder=id"],
        ),
        "ratings",
    )
    rule = WITHOUT_FEATURES[1.0]
    assert (found.item_ridge, found.dimension, found.user_radius) == (
        7,
        rule.dimension,
        rule.user_radius,
    )


def test_the_rule_is_for_ratings_under_the_published_recipe_alone() -> None:
    """Nobody looked for settings of clicks, and dp-cmf has its own."""
    plain = dp_cmf.settings_of(load(None, ["recipe=dp-cmf", "privacy.epsilon=1"]))
    clicks = published.settings_of(
        load(None, ["recipe=published", "privacy.epsilon=1", "model.encoder=id"]), "clicks"
    )
    assert plain == clicks
    assert plain != published.settings_of(
        load(None, ["recipe=published", "privacy.epsilon=1", "model.encoder=id"]), "ratings"
    )


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 5.0, math.inf])
def test_where_noise_is_large_users_follow_item_vectors_less(epsilon: float) -> None:
    small = steady(epsilon, features=True)
    figure = choice_for(epsilon, features=True)
    assert (small.user_ridge > figure.user_ridge) == (epsilon <= 1)
    assert replace(small, user_ridge=figure.user_ridge) == figure
    assert steady(epsilon, features=False) == choice_for(epsilon, features=False)


def test_the_published_recipe_is_no_worse_than_the_global_mean_on_few_people() -> None:
    train, test = fedrec.Dataset.planted("small").split("random", seed=1)
    model = fedrec.MatrixFactorization(method="published", epsilon=1, noise="seeded").fit(train)
    found = fedrec.evaluate(model, test, ranking=False)
    rmse = dict(found.frame.select("method", "rmse").iter_rows())
    assert rmse["MatrixFactorization"] < rmse["global mean"]


@pytest.mark.parametrize("features", [True, False])
def test_a_comparison_sets_the_published_recipe_with_biases_beside_ours(features: bool) -> None:
    """Its settings otherwise are the rule's, at the scenario's epsilon."""
    scenario = load(None, ["compare.published=true", "privacy.epsilon=1"])
    theirs = scenario.as_published(features=features)
    found = published.settings_of(theirs, "ratings")
    assert found.own_means
    rule = steady(1.0, features=features, own_means=True)
    assert found.user_ridge == rule.user_ridge >= WITH_OWN_MEANS


def test_with_own_means_it_is_better_than_the_global_mean_without_features_too() -> None:
    train, test = fedrec.Dataset.planted("small").split("random", seed=1)
    settings = {"model.encoder": "id", "model.own_means": True}
    method = fedrec.MatrixFactorization(
        method="published", epsilon=1, noise="seeded", settings=settings
    )
    found = fedrec.evaluate(method.fit(train), test, ranking=False)
    rmse = dict(found.frame.select("method", "rmse").iter_rows())
    assert rmse["MatrixFactorization"] < 0.98 * rmse["global mean"]
