import math

import pytest

from fedrec.recipes import dp_cmf, published
from fedrec.recipes.published import WITH_FEATURES, WITHOUT_FEATURES, choice_for
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
