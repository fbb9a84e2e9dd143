"""Values of AM-SSP and its kin by epsilon, where a scenario leaves them open: those of `published`
and `dp-cmf`."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from fedrec.data.kinds import KINDS, Kind
from fedrec.errors import SettingsError
from fedrec.factorization.am_ssp import gradient
from fedrec.factorization.am_ssp.client import PublishedSettings
from fedrec.factorization.am_ssp.gradient import Adam, GradientDescent
from fedrec.settings import RecipeScenario
from fedrec.settings_tables.training import ModelSettings

STEADY = {0.5: 10.0, 1.0: 30.0}
"""`user_ridge` with features for data of any size, by epsilon.

Item vectors are noisy where users are few, and what a user's ratings fit to them is noise.
Validation RMSE at epsilon 1 with the figure's .03 and with 30 (one draw; in brackets the global
mean): 290 planted users x 300 items 1.021, .976 (.983); 300 x 120 1.001, .938 (.982); MovieLens
100K 1.066, 1.055 (1.126); 1,000 people of MovieLens 1M 1.046, 1.043 (1.132); all of it .998, .997;
all at .5 with .1, 10 and 100 1.018, 1.016, 1.019.
"""
WITH_OWN_MEANS = 3.0
"""`user_ridge` without features, at least, where `model.own_means` has explained most of ratings.

Validation RMSE (one draw; in brackets the global mean) as the figure has it, with own means and the
figure's .3, with own means and 3: at epsilon 1 MovieLens 100K 1.134, 1.047, 1.027 (1.126); 1,000
people of MovieLens 1M 1.145, 1.041, 1.037 (1.132), all of it 1.096, 1.027, 1.023 (1.120); at 5 100K
1.107, 1.040, 1.024; 290 planted users x 300 items .942, .895, .865 (.965). Without own means 3 is
worse on all of MovieLens 1M (1.106), and no ridge is better than the global mean on the small sets:
a model without biases knows nothing else there.
"""
KEYS = frozenset(ModelSettings.model_fields) - {"loss", "click_weight", "biases", "own_vectors"}
"""Of [model]."""


@dataclass(frozen=True)
class Choice:
    """Names and units as of `ssp.PublishedSettings` and `[model]`; the last two are of the encoder,
    and mean nothing without features."""

    dimension: int
    steps: int
    user_ridge: float
    item_ridge: float
    user_radius: float
    target_radius: float
    encoder_steps: int = 50
    learning_rate: float = 0.005


WITH_FEATURES = {
    0.5: Choice(3, 6, 0.1, 0.03, 0.07, 0.7, 10, 0.01),
    1.0: Choice(3, 6, 0.03, 0.03, 0.15, 0.7, 20, 0.005),
    5.0: Choice(3, 6, 0.1, 0.03, 0.15, 0.5, 20, 0.01),
    10.0: Choice(3, 8, 0.1, 0.03, 0.15, 0.5, 20, 0.01),
    20.0: Choice(3, 6, 0.01, 0.1, 0.35, 0.5, 20, 0.01),
    math.inf: Choice(4, 14, 1.0, 0.3, 2.0, 4.0, 50, 0.01),
}
WITHOUT_FEATURES = {
    0.5: Choice(2, 3, 0.3, 30.0, 0.25, 0.5),
    1.0: Choice(3, 3, 0.3, 30.0, 0.5, 0.5),
    5.0: Choice(6, 3, 0.3, 10.0, 1.0, 0.5),
    10.0: Choice(3, 3, 0.3, 10.0, 1.0, 0.5),
    20.0: Choice(6, 3, 1.0, 3.0, 1.0, 0.5),
    math.inf: Choice(8, 10, 10.0, 1.0, 2.0, 4.0),
}


def steady(epsilon: float, *, features: bool, own_means: bool = False) -> Choice:
    """What a reader takes for data of a size that nobody tuned the figure's settings for."""
    choice = choice_for(epsilon, features=features)
    if not features:
        least = WITH_OWN_MEANS if own_means else 0.0
        return replace(choice, user_ridge=max(choice.user_ridge, least))
    if choice not in (WITH_FEATURES[0.5], WITH_FEATURES[1.0]):
        return choice
    near = min(STEADY, key=lambda e: abs(math.log(e / epsilon)))
    return replace(choice, user_ridge=STEADY[near])


def choice_for(epsilon: float, *, features: bool) -> Choice:
    """The nearest epsilon's; infinite takes its own alone.

    Neither paper prints its settings by epsilon. These were chosen as their authors would have: on
    validation ratings, for each epsilon, on one data set (MovieLens 1M, tens of settings an
    epsilon; `research/scenarios/am_ssp_figure1.toml` and research/docs/study.md say how), and an
    epsilon in between takes the nearest one's in ratio. On validation ratings of five other data
    sets (MovieLens 100K, and planted ones of 1 to 40 users an item; epsilon 0.5, 1, 5 and 20) they
    were .014 (AM-SSP) and .010 (Ada-DPALS) of RMSE above the best of 17 and 12 settings, on
    average; plain values for every epsilon .033 and .041. Carried over by mu times users per item,
    in the place of epsilon, they were .014 and .036 above it, so sizes decide nothing here. Where
    an item has 40 users they are .03 above the best.
    """
    known = WITH_FEATURES if features else WITHOUT_FEATURES
    if math.isinf(epsilon):
        return known[math.inf]
    return known[
        min((e for e in known if math.isfinite(e)), key=lambda e: abs(math.log(e / epsilon)))
    ]


def require_ratings(settings: PublishedSettings, kind: Kind) -> None:
    """Raises SettingsError where users would have means of clicks."""
    if settings.own_means and not KINDS[kind].rated:
        raise SettingsError(
            "model.own_means is of ratings: a user's clicks have no mean",
            "Leave model.own_means out.",
        )


def count_share(scenario: RecipeScenario) -> float:
    """12% of the budget for counts at epsilon 1, 14% at 5, 20% at 20 (Ada-DPALS App. D.1)."""
    return scenario.model.count_share or (
        0.12 if scenario.privacy.epsilon < 3 else 0.14 if scenario.privacy.epsilon < 15 else 0.2
    )


def plain(user_radius: float) -> Choice:
    """Values for every epsilon."""
    return Choice(4, 3, 1.0, 10.0, user_radius, 1.0)


def settings_by(rule: Choice, scenario: RecipeScenario) -> PublishedSettings:
    """What [model] says, and of values that it leaves at zero what the rule has."""
    chosen = scenario.model
    choice = replace(
        rule,
        **{field.name: value for field in fields(Choice) if (value := getattr(chosen, field.name))},
    )
    optimizer = Adam() if chosen.optimizer == "adam" else GradientDescent()
    descent = gradient.Descent(
        choice.encoder_steps,
        gradient.Constant(choice.learning_rate),
        optimizer,
        chosen.item_batch or None,
    )
    return PublishedSettings(
        dimension=choice.dimension,
        steps=choice.steps,
        user_ridge=choice.user_ridge,
        item_ridge=choice.item_ridge,
        user_radius=choice.user_radius,
        target_radius=choice.target_radius,
        weights=chosen.weights,
        weight_exponent=chosen.weight_exponent,
        descent=descent,
        resamples=chosen.resamples,
        example_share=chosen.example_share,
        max_items=chosen.max_items_per_user,
        sampling=chosen.sampling,
        unit="example" if scenario.privacy.unit == "example" else "user",
        own_means=chosen.own_means,
        pseudo_inverse=chosen.solve == "pseudo-inverse",
        ridge_exponent=chosen.ridge_exponent,
    )
