"""Tables of a scenario on training: [model] is what recipes for ratings and clicks may be told,
[privacy] what is promised and by which aggregation, [collective] which public data a model learns
from and how much it weighs.
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


class CollectiveSettings(Table):
    """Public data beside private ratings. Of `recipe = "dp-cmf"`: every side has a weight, alpha,
    and a ridge, lambda', of its own.

    `recipe = "default"` takes metadata and public users: `categories`, `users_file`,
    `users_format`, `users_ids`, `users_share` and `users_limit` (of clicks also `users_values` and
    `users_threshold`). How much they count it finds from the data; it refuses other keys.
    """

    sides: tuple[Literal["metadata", "similar-items", "public-users"], ...] = Field(
        ("metadata",), min_length=1, description="public matrices to factorise with the ratings"
    )
    categories: tuple[str, ...] = Field(
        (), description="features of the metadata side, for example genre; empty takes all"
    )
    metadata_weight: float = Field(10.0, gt=0, description="alpha of metadata")
    metadata_ridge: float = Field(100.0, gt=0, description="lambda' of metadata")
    similar_weight: float = Field(10.0, gt=0, description="alpha of similar items")
    similar_ridge: float = Field(100.0, gt=0, description="lambda' of similar items")
    users_weight: float = Field(100.0, gt=0, description="alpha of public users")
    users_ridge: float = Field(100.0, gt=0, description="lambda' of public users")
    unobserved: float = Field(
        0.03,
        ge=0,
        description="weight of the zeros of binary sides and of similar items; ratings have none",
    )
    similar_file: str = Field(
        "",
        description="CSV or TSV of item, neighbour, score; empty learns them from the public users",
    )
    similarity: Literal["inner-product", "cosine"] = Field(
        "inner-product", description="of learned item vectors"
    )
    neighbours: int = Field(
        100, ge=1, description="k: similar items of each item, where they are learned"
    )
    similar_values: Literal["scores", "binary"] = Field(
        "binary", description="similar items with their scores, or 1 for each"
    )
    users_file: str = Field(
        "",
        description=(
            "ratings of public users, who must not be private users; in any format of data.path"
        ),
    )
    users_format: str = Field("auto", description="format of users_file, as data.format")
    users_ids: Literal["same", "separate"] = Field(
        "same",
        description=(
            "same: an id in both sources is one person, and refused; separate: who has a private "
            "history is left out"
        ),
    )
    users_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="without users_file: this share of the data's own users is made public",
    )
    users_limit: int = Field(0, ge=0, description="use so many of the public users; 0 = all")
    users_values: Literal["raw", "binary"] = Field(
        "raw", description="their ratings, or 1 for those of at least users_threshold"
    )
    users_threshold: float = Field(
        4.0, description="the lowest rating that says that a public user likes an item"
    )
    start_passes: int = Field(
        0,
        ge=0,
        le=100,
        description="passes over public data alone before the first round; 0 = random vectors",
    )

    def contradiction(self) -> str:
        """Why these choices cannot go together; empty where they can."""
        public_users = bool(self.users_file or self.users_share)
        if len(set(self.sides)) < len(self.sides):
            return "collective.sides names a side twice: its weight says how much it counts"
        if self.users_file and self.users_share:
            return "collective.users_file and users_share both say who is public: choose one"
        unread = {"users_format", "users_ids"} & self.chosen()
        if unread and not self.users_file:
            return f"collective.{min(unread)} is of collective.users_file, which is not given"
        if "public-users" in self.sides and not public_users:
            return (
                'collective.sides names "public-users": say who they are with users_file or '
                "users_share"
            )
        if "similar-items" in self.sides and not (public_users or self.similar_file):
            return (
                'collective.sides names "similar-items": give similar_file, or public users to '
                "learn them from"
            )
        if self.similar_file and "similar-items" not in self.sides:
            return (
                'collective.similar_file is used by no side: add "similar-items" to '
                "collective.sides"
            )
        learned = "similar-items" in self.sides and not self.similar_file
        if public_users and not learned and "public-users" not in self.sides:
            return (
                'collective.users_file and users_share are used by no side: add "public-users" '
                "to collective.sides"
            )
        return ""

    def unknown_to_default(self) -> str:
        """Why these choices say nothing to the default recipe; empty where they do."""
        known = {
            "sides",
            "categories",
            "users_file",
            "users_format",
            "users_ids",
            "users_share",
            "users_limit",
        }
        known |= {"users_values", "users_threshold"}  # of clicks
        if "similar-items" in self.sides:
            return (
                'collective.sides: similar items are of "dp-cmf"; the default recipe learns from '
                "public users themselves what is alike"
            )
        if ignored := self.chosen() - known:
            return (
                f'collective.{min(ignored)} is of "dp-cmf": the default recipe finds from the '
                "data how much public data counts"
            )
        if self.categories and "metadata" not in self.sides:
            return (
                'collective.categories are features of the metadata side: add "metadata" to '
                "collective.sides"
            )
        return ""
