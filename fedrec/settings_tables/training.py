"""Tables of a scenario on training: [model] is what recipes for ratings and clicks may be told,
[privacy] what is promised and by which aggregation.
"""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from fedrec.settings_tables import Table
from fedrec.settings_tables.data import Epsilon


class ModelSettings(Table):
    """Settings of the published recipe; 0 takes fedrec's own value.

    The default recipe takes `encoder` and refuses the others."""

    dimension: int = Field(
        0, ge=0, le=512, description="length of user and item vectors; 0 = chosen by the recipe"
    )
    steps: int = Field(
        0,
        ge=0,
        le=100,
        description="outer steps of alternating minimisation; 0 = chosen by the recipe",
    )
    encoder: Literal["features", "id"] = Field(
        "features", description="item vectors from public features, or one free vector per item"
    )
    user_ridge: float = Field(
        0.0, ge=0, description="ridge of the user solve; 0 = chosen by the recipe"
    )
    item_ridge: float = Field(
        0.0, ge=0, description="ridge of the item update; 0 = chosen by the recipe"
    )
    user_radius: float = Field(
        0.0,
        ge=0,
        description=(
            "Gamma_u, the longest user vector; of dp-gd and encoder-descent on clicks, of what the "
            "Gramian is summed from; 0 = chosen by the recipe"
        ),
    )
    target_radius: float = Field(
        0.0, ge=0, description="Gamma_y, the largest centred rating; 0 = chosen by the recipe"
    )
    weights: Literal["printed", "normalised", "clipped", "uniform", "constant"] = Field(
        "normalised",
        description="of the published recipe: AM-SSP App. E to the letter, exactly normalised, "
        "Ada-DPALS eq. 12, all alike for a user, or all alike for everybody (DPALS; needs "
        "max_items_per_user)",
    )
    biases: bool = Field(
        True,
        description=(
            "of dp-gd and encoder-descent: item biases and users' own means, which the papers' "
            "models lack"
        ),
    )
    own_means: bool = Field(
        False,
        description=(
            "of published and dp-cmf, on ratings: item biases and users' own means, as "
            "model.biases has them for descent"
        ),
    )
    own_vectors: bool = Field(
        True,
        description=(
            "of encoder-descent: each item has an entry of its own beside its features; AM-SSP's "
            "encoder has none"
        ),
    )
    gradient_radius: float = Field(
        0.0,
        ge=0,
        description=(
            "Gamma_g, to which the gradient of each example is clipped, as AM-SSP Alg. 6 prints; "
            "0 = 1 for am-dpsgd; for encoder-descent on ratings each user's gradient is scaled"
        ),
    )
    optimizer: Literal["adam", "plain"] = Field(
        "adam",
        description="of AM-SSP's encoder: adam, or plain gradient steps as Alg. 2 to 5 print them",
    )
    solve: Literal["projected", "pseudo-inverse"] = Field(
        "projected",
        description=(
            "of the item update without features: projected statistics plus a ridge, or the "
            "pseudo-inverse of Ada-DPALS Alg. 1"
        ),
    )
    loss: Literal["logistic", "quadratic"] = Field(
        "logistic", description="of convex-ssp: what a click and its absence cost"
    )
    click_weight: float = Field(
        0.0,
        ge=0,
        description="of convex-ssp: alpha; a click weighs 1 + alpha; 0 is the plain likelihood",
    )
    weight_exponent: float = Field(
        0.25, ge=0, le=1, description="mu in n^-mu: larger favours rare items"
    )
    ridge_exponent: float = Field(
        0.0, ge=0, le=1, description="the ridge of an item is item_ridge times its count to this"
    )
    count_share: float = Field(
        0.0, ge=0, lt=1, description="share of mu^2 for item counts; 0 = chosen by the recipe"
    )
    resamples: int = Field(
        1,
        ge=1,
        le=64,
        description="1: noise once (SSP2); more: fresh noise in that many steps (SSP1)",
    )
    example_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the examples in each resample (mini-batch SSP1); 1 = all",
    )
    encoder_steps: int = Field(
        0,
        ge=0,
        description="gradient steps of the encoder per outer step; 0 = chosen by the recipe",
    )
    learning_rate: float = Field(0.0, ge=0, description="of the encoder; 0 = chosen by the recipe")
    item_batch: int = Field(0, ge=0, description="items per gradient step; 0 = all (AM-SSP Alg. 5)")
    max_items_per_user: int = Field(
        0, ge=0, description="sample at most so many items of a user; 0 = keep all"
    )
    sampling: Literal["uniform", "tail"] = Field(
        "uniform", description="which items a user keeps: any, or the rarest"
    )


class PrivacySettings(Table):
    """What is promised."""

    epsilon: Epsilon = Field(5.0, description='a number, or "inf" for no privacy')
    delta: float = Field(
        1e-5, gt=0, lt=1, description="the probability with which the guarantee may fail"
    )
    max_total_epsilon: Epsilon = Field(
        math.inf,
        validate_default=True,
        description=(
            "limit of all runs on these people's data, at delta; a run beyond it is refused"
        ),
    )
    budget_file: str = Field(
        "",
        description=(
            "where runs on the same people's data are added up; empty: a file in the user's "
            "state folder, named by the data"
        ),
    )
    allow_large_delta: bool = Field(
        False,
        description=(
            "an experiment with a delta of 1 / sqrt(number of users) or more, which is refused "
            "otherwise"
        ),
    )
    unit: Literal["user", "example", "click"] = Field(
        "user",
        description=(
            "what neighbours differ in: all data of a user, one rating, or one click exchanged "
            "for another (news)"
        ),
    )
    accountant: Literal["gdp", "am-ssp"] = Field(
        "gdp", description="gdp: exact; am-ssp: the paper's own conversion, for reproduction"
    )
    noise: Literal["system", "seeded"] = Field(
        "system",
        description="system: fresh, from the operating system; seeded: an experiment that repeats "
        "to the byte, whoever knows the seed can remove the noise",
    )
    aggregation: Literal["trusted", "three-party"] = Field(
        "trusted",
        description="trusted: one aggregator, which sees reports; three-party: three aggregators, "
        "none of which sees a report if two are honest "
        "(docs/three-party.md; not yet reviewed from outside)",
    )
    calibrate_for: Literal["one-corrupt", "outsiders"] = Field(
        "one-corrupt",
        description=(
            "of three-party, against whom epsilon is stated: the server with any one "
            "aggregator, or everybody but the aggregators"
        ),
    )
    hostile_clients: Literal["trusted-sites", "checked"] = Field(
        "trusted-sites",
        description="of three-party: trusted-sites, clients are sites known by name, and nobody "
        "checks what they share; checked: aggregators refuse what is longer than its bound, which "
        "costs 2% of every release's mu^2 and a coarser grid",
    )
    evaluation_share: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description=(
            "of ratings and clicks: share of mu^2 for a last release, in which people say how good "
            "the model is on a row each that it was not trained on; 0.01 tells NDCG@20 of 10,000 "
            "people to about .01 at epsilon 5; 0: nobody is asked"
        ),
    )
    horizon: int = Field(
        0,
        ge=0,
        le=366,
        description="of clicks, with one aggregator: weeks in each of which a model of all weeks "
        "so far is released, all for the one epsilon; each is a training of fedrec server --every, "
        "in one process an equal part of the time of the training rows; 0: one training",
    )
    personal_epsilons: dict[str, float] = Field(
        default_factory=dict,
        description="limits that users chose, each with the announced share of users whose limit "
        "it is, as in {1 = 0.3, 5 = 0.7}; reports of a user with a limit below epsilon are scaled "
        "down, so that the own limit holds; empty: everybody has epsilon",
    )
    shares: Literal["skipped", "real"] = Field(
        "skipped",
        description=(
            "of three-party in one process: add three noises to plain sums, or share every "
            "report and add shares; the same bytes"
        ),
    )

    @model_validator(mode="after")
    def _limits_that_fit(self) -> Self:
        if not self.personal_epsilons:
            return self
        named = "privacy.personal_epsilons"
        if self.unit != "user" or self.accountant != "gdp" or self.aggregation != "trusted":
            raise ValueError(
                f'{named} needs unit = "user", the exact accountant and one trusted aggregator'
            )
        if not math.isfinite(self.epsilon):
            raise ValueError(f"{named} are shares of a finite privacy.epsilon")
        limits = self.limits
        if not all(0 < limit <= self.epsilon for limit in limits):
            raise ValueError(
                f"{named} must be numbers above 0 and at most privacy.epsilon = {self.epsilon:g}"
            )
        # shares written as decimals, such as thirds, sum to 1 but for their last digits
        if min(limits.values()) <= 0 or abs(math.fsum(limits.values()) - 1) > 1e-9:
            raise ValueError(
                f"{named} need positive shares that sum to 1, found {math.fsum(limits.values()):g}"
            )
        return self

    @property
    def limits(self) -> dict[float, float]:
        """`personal_epsilons` by number; a name that is none is not a number, which no limit may
        be."""
        return {_number(name): share for name, share in self.personal_epsilons.items()}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
