"""Values that the published recipe takes for ratings where a scenario leaves them open: AM-SSP with
features, Ada-DPALS without, by epsilon.

Neither paper prints its settings by epsilon. These were chosen as their authors would have: on
validation ratings, for each epsilon, on one data set (MovieLens 1M, tens of settings an epsilon;
`research/scenarios/am_ssp_figure1.toml` and research/docs/study.md say how), and an epsilon in
between takes the nearest one's in ratio. On validation ratings of five other data sets (MovieLens
100K, and planted ones of 1 to 40 users an item; epsilon 0.5, 1, 5 and 20) they were .014 (AM-SSP)
and .010 (Ada-DPALS) of RMSE above the best of 17 and 12 settings, on average; plain values for
every epsilon .033 and .041. Carried over by mu times users per item, in the place of epsilon, they
were .014 and .036 above it, so sizes decide nothing here. Where an item has 40 users they are .03
above the best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


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


STEADY = {0.5: 10.0, 1.0: 30.0}
"""`user_ridge` with features for data of any size, by epsilon.

Item vectors are noisy where users are few, and what a user's ratings fit to them is noise.
Validation RMSE at epsilon 1 with the figure's .03 and with 30 (one draw; in brackets the global
mean): 290 planted users x 300 items 1.021, .976 (.983); 300 x 120 1.001, .938 (.982); MovieLens
100K 1.066, 1.055 (1.126); 1,000 people of MovieLens 1M 1.046, 1.043 (1.132); all of it .998, .997;
all at .5 with .1, 10 and 100 1.018, 1.016, 1.019.
"""


def steady(epsilon: float, *, features: bool) -> Choice:
    """What a reader takes for data of a size that nobody tuned the figure's settings for."""
    choice = choice_for(epsilon, features=features)
    if not features or choice not in (WITH_FEATURES[0.5], WITH_FEATURES[1.0]):
        return choice
    near = min(STEADY, key=lambda e: abs(math.log(e / epsilon)))
    return replace(choice, user_ridge=STEADY[near])


def choice_for(epsilon: float, *, features: bool) -> Choice:
    """The nearest epsilon's; infinite takes its own alone."""
    known = WITH_FEATURES if features else WITHOUT_FEATURES
    if math.isinf(epsilon):
        return known[math.inf]
    return known[
        min((e for e in known if math.isfinite(e)), key=lambda e: abs(math.log(e / epsilon)))
    ]
