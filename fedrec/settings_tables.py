"""The tables of a scenario, one per concern: `fedrec.settings` puts them together and says which
choices contradict each other."""

from __future__ import annotations

import itertools
import math
from datetime import UTC, date, datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _epsilon(value: object) -> object:
    return (
        math.inf
        if isinstance(value, str) and value.strip().lower() in {"inf", "infinity"}
        else value
    )


Epsilon = Annotated[float, BeforeValidator(_epsilon), Field(gt=0)]


def _seconds(value: object) -> object:
    """A date or an instant, of TOML or as ISO 8601 text, in seconds since 1970; without a zone it
    is UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return value
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, datetime):
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp())
    return value


Instant = Annotated[int, BeforeValidator(_seconds)]
"""Seconds since 1970, also written as a date."""


def _column(value: object) -> object:
    """The number of a column as its name, where a file has no header."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Table(BaseModel):
    """Unknown keys are refused, values frozen."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=True, ser_json_inf_nan="strings"
    )


class PlantedSettings(Table):
    """Sizes of a planted data set of one's own.

    What is not said here, and strengths in units of the scale, are those of the presets."""

    users: int = Field(ge=1, le=5_000_000)
    items: int = Field(ge=2, le=1_000_000)
    events: int = Field(ge=1, le=2_000_000_000)
    least_events: int = Field(0, ge=0)
    value_range: tuple[float, float] = (0.5, 5.0)
    step: float = Field(0.5, gt=0)
    dimension: int = Field(8, ge=1, le=64)
    explained: float = Field(0.5, ge=0, le=1)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        low, high = self.value_range
        steps = (high - low) / self.step
        if not low < high or abs(steps - round(steps)) > 1e-9:
            raise ValueError(
                f"a scale from {low:g} to {high:g} does not rise in whole steps of {self.step:g}"
            )
        return self


class DataSettings(Table):
    """Where the interactions come from."""

    path: str = Field("", description="file or folder of the data; empty for the planted data set")
    validation: str = Field(
        "",
        description=(
            "tables: the file of validation rows, where data.path holds training rows alone"
        ),
    )
    test: str = Field(
        "", description="tables: the file of test rows, where data.path holds training rows alone"
    )
    format: str = Field("auto", description="auto, or a format that `fedrec data formats` lists")
    features_path: str = Field(
        "", description="public item features; empty takes those that come with the data"
    )
    features: bool = Field(True, description="whether training may use public item features at all")
    kind: Literal["auto", "ratings", "clicks"] = Field(
        "auto", description="what to learn from; clicks may be made from ratings"
    )
    click_threshold: float = Field(0.0, description="the lowest rating that counts as a click")
    columns: dict[str, Annotated[str, BeforeValidator(_column)]] = Field(
        default_factory=dict,
        description=(
            "column names of tables: user, item, rating, timestamp; without a header, numbers "
            "from 1"
        ),
    )
    separator: str = Field(
        "",
        description=(
            "of tables: tab, comma, semicolon, space, pipe, :: or any character; empty takes the "
            "suffix's, or guesses and says so"
        ),
    )
    header: Literal["auto", "yes", "no"] = Field(
        "auto",
        description="of tables: whether the first line names the columns; auto guesses and says so",
    )
    rating_range: tuple[float, float] | None = Field(
        None, description="lowest and highest rating, where the format has no public scale"
    )
    duplicates: Literal["auto", "refuse", "last", "mean"] = Field(
        "auto",
        description=(
            "what to do with a second row of one user and item; auto merges and counts clicks, "
            "and refuses ratings"
        ),
    )
    out_of_range: Literal["refuse", "clip", "drop"] = Field(
        "refuse", description="what to do with ratings off the scale"
    )
    keep_users: int = Field(
        0,
        ge=0,
        description="experiments: so many users, those of smallest hash of their id; 0 keeps all",
    )
    keep_items: int = Field(
        0,
        ge=0,
        description=(
            "experiments: so many items, those rated most often, which no guarantee covers; 0 "
            "keeps all"
        ),
    )
    unknown_news: Literal["refuse", "add", "drop"] = Field(
        "refuse",
        description=(
            "mind: news without a line in news.tsv; add keeps them without text, drop takes them "
            "out of what was shown"
        ),
    )
    preset: str = Field(
        "",
        description="size of the planted data set: small, demo, ml10m, ml10m_x10; empty takes demo",
    )
    planted: PlantedSettings | None = Field(
        None,
        description="sizes of one's own instead of a preset: {users = 20000, items = 2000, events "
        "= 500000}, and if wished least_events, value_range, step, dimension (of tastes) and "
        "explained (share of tastes that public features explain); clicks with data.kind",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.test and not self.path:
            raise ValueError("data.test needs data.path, the training rows")
        if self.validation and not self.test:
            raise ValueError("data.validation needs data.test beside it")
        if self.planted is not None and (
            other := next((key for key in ("preset", "path") if getattr(self, key)), "")
        ):
            raise ValueError(
                f"data.planted gives the sizes of planted data, so data.{other} must be left out"
            )
        return self


class SplitSettings(Table):
    """How the data is divided into training, validation and test."""

    kind: Literal["random", "held-out-users", "temporal", "leave-last-out", "given"] = Field(
        "random",
        description=(
            "how rows are divided; a click log of news: by whole users, drawn (random, "
            "held-out-users) or the latest (temporal)"
        ),
    )
    validation_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description=(
            "given: share of the training rows kept for validation where the data has no "
            "validation rows; 0 trains on all"
        ),
    )
    seed: int = Field(
        1,
        ge=0,
        description=(
            "seed of the division: what is drawn, is by a hash of it and of user and item ids"
        ),
    )
    cuts: tuple[Instant, Instant] | None = Field(
        None,
        description="temporal: the last times of training and of validation, seconds or ISO dates; "
        "without them they are read off the data, which no guarantee covers",
    )

    @property
    def own_test(self) -> bool:
        """Whether the test rows are those that come with the data."""
        return self.kind == "given"

    @model_validator(mode="after")
    def _cuts_of_a_temporal_split(self) -> Self:
        if self.cuts is not None and self.kind != "temporal":
            raise ValueError(
                f'split.cuts cut time, but split.kind = "{self.kind}": set split.kind = "temporal"'
            )
        if self.validation_share and not self.own_test:
            raise ValueError(
                f'split.validation_share is of split.kind = "given", which is "{self.kind}": '
                "that one has shares of its own"
            )
        if self.cuts is not None and not self.cuts[0] < self.cuts[1]:
            raise ValueError(
                "split.cuts must rise: the last time of training, then that of validation"
            )
        return self


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
            "limit of all runs on the same data together, at delta; a run beyond it is refused"
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
            "Gamma_u, the longest user vector; of dp-gd and am-dpsgd on clicks, of what the "
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
            "of dp-gd and am-dpsgd: item biases and users' own means, which the papers' models lack"
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
            "of am-dpsgd: each item has an entry of its own beside its features; AM-SSP's "
            "encoder has none"
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

    def chosen(self) -> set[str]:
        """Names of the keys that differ from their defaults."""
        return {
            name
            for name, field in type(self).model_fields.items()
            if getattr(self, name) != field.default
        }


class NewsSettings(Table):
    """News recommendation, `recipe = "privaterec"`. Zero lets the variant choose."""

    variant: str = Field(
        "additive",
        json_schema_extra={
            "examples": [
                "additive",
                "local",
                "central",
                "printed",
                "fedrec",
                "dp-fedrec",
                "centralized",
            ]
        },
        description="additive: one noised report a user, then training on reports; "
        "local, central, printed, fedrec and dp-fedrec train in rounds "
        "(PrivateRec Alg. 3); centralized collects the data; or one that a package names",
    )
    model: Literal["nrms", "naml", "plm-nr"] = Field(
        "nrms", description="news and user encoder of all variants but additive"
    )
    topics: Literal["directions", "text", "categories"] = Field(
        "directions",
        description=(
            "public rows of additive and central: leading directions of item vectors, clusters "
            "of texts, or the categories"
        ),
    )
    open_categories: tuple[str, ...] = Field(
        (),
        description=(
            "additive: categories that need no protection; clicks on items of these alone are "
            "told as they are"
        ),
    )
    no_click: Literal["leave-out", "report"] = Field(
        "leave-out",
        description=(
            "of additive: leave-out, impressions without a click send nothing; report, they "
            "send an answer too, and all answers have one more symbol"
        ),
    )
    basis: int = Field(
        0,
        ge=0,
        le=512,
        description="B: directions or topics from text, basis vectors of the others; 0 = 32, or 5",
    )
    history: int = Field(
        50, ge=1, le=1000, description="H: how many of the latest clicks make a history"
    )
    serving_epsilons: tuple[Epsilon, ...] = Field(
        ("inf", 10, 5, 1),
        min_length=1,
        validate_default=True,
        description="epsilon of one served answer; the first makes the headline",
    )
    max_user_epsilon: Epsilon = Field(
        math.inf,
        description=(
            "the most that training may cost one person, per user (replace), with a full history "
            "and all labels"
        ),
    )
    padding: float = Field(
        0.0,
        ge=0,
        lt=1,
        description=(
            "p: share of clicks hidden behind the anonymous news, on the device; not for additive"
        ),
    )
    attention_noise: Literal["gaussian", "laplace"] = Field(
        "gaussian",
        description="of attention released in training (local, printed): laplace is pure, its "
        "guarantee needs no delta, and its answers' epsilons add up; serving is gaussian",
    )
    clip: float = Field(
        0.0,
        ge=0,
        description=(
            "theta: longest attention vector, or longest gradient; 0 = chosen by the variant"
        ),
    )
    rounds: int = Field(
        0, ge=0, le=100_000, description="rounds of training; 0 = chosen by the variant"
    )
    users_per_round: int = Field(
        0, ge=0, description="users of a round, on average; 0 = chosen by the variant"
    )
    epochs: int = Field(
        0,
        ge=0,
        le=1000,
        description=(
            "passes over the reports (additive) or the clicks (centralized); 0 = chosen by the "
            "variant"
        ),
    )
    learning_rate: float = Field(0.0, ge=0, description="0 = chosen by the variant")
    word_vectors: str = Field(
        "",
        description=(
            "GloVe text file to start word embeddings from; empty starts from the public texts"
        ),
    )
    entity_vectors: str = Field(
        "",
        description="MIND's entity_embedding.vec; its vectors join those of the items, on average",
    )
    language_model: str = Field(
        "",
        description=(
            "folder of a Hugging Face encoder, for plm-nr; empty takes vectors of the public "
            "features"
        ),
    )

    def chosen(self) -> set[str]:
        """Names of the keys that differ from their defaults."""
        return self.model_fields_set & {
            name
            for name in type(self).model_fields
            if getattr(self, name) != getattr(NewsSettings(), name)
        }


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

    def chosen(self) -> set[str]:
        """Names of the keys that differ from their defaults."""
        return {
            name
            for name, field in type(self).model_fields.items()
            if getattr(self, name) != field.default
        }

    def contradiction(self) -> str:
        """Why these choices cannot go together; empty where they can."""
        public_users = bool(self.users_file or self.users_share)
        if len(set(self.sides)) < len(self.sides):
            return "collective.sides names a side twice: its weight says how much it counts"
        if self.users_file and self.users_share:
            return "collective.users_file and users_share both say who is public: choose one"
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


class EvaluationSettings(Table):
    """What is measured."""

    cutoffs: tuple[int, ...] = Field(
        (10, 20), min_length=1, description="list lengths of ranking metrics, ascending"
    )
    ranking: bool = Field(
        True,
        description=(
            "rank the full catalogue too, at every epsilon and beside controls (always on for "
            "clicks)"
        ),
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.cutoffs[0] < 1 or any(a >= b for a, b in itertools.pairwise(self.cutoffs)):
            raise ValueError(
                "evaluation.cutoffs must be ascending lengths of at least 1, as in [10, "
                f"20]; found {list(self.cutoffs)}"
            )
        return self


class CompareSettings(Table):
    """What the report sets the run beside."""

    epsilons: tuple[Epsilon, ...] = Field(
        (), description="further epsilons, for the privacy-utility curve"
    )
    baselines: bool = Field(
        True, description="global mean, item means, item+user biases, popularity"
    )
    published: bool = Field(
        False,
        description='of ratings: recipe = "published" too, at the same epsilons, with verdicts; '
        "what [model] "
        "leaves at zero is chosen by "
        'epsilon; needs recipe = "default"',
    )
    als: bool = Field(
        True,
        description=(
            "non-private alternating least squares and item-item similarities: references, no "
            "upper bound"
        ),
    )


class FigureLine(Table):
    """Keys that a curve of a published figure has at one epsilon, laid over the scenario's own
    tables."""

    curve: str = Field("", description="name in the legend; empty for every curve")
    epsilon: Epsilon = Field(description="an epsilon without a line takes the nearest one's")
    model: ModelSettings = ModelSettings()
    collective: CollectiveSettings = CollectiveSettings()


class FigureSettings(Table):
    """What `fedrec bench paper` varies around this scenario to make a published figure; every other
    verb leaves it alone."""

    seeds: tuple[int, ...] = Field(
        (), description="split seeds; the seed of the noise is the split's"
    )
    epsilons: tuple[Epsilon, ...] = Field((), description="epsilons of the figure")
    points: tuple[float, ...] = Field(
        (), description="what else its curves or its x axis take: mu, k, users, dimensions"
    )
    x: str = Field("epsilon", description="what its x axis shows")
    settings: tuple[FigureLine, ...] = Field(
        (), description="keys by curve and epsilon: {curve = ..., epsilon = ..., model = {...}}"
    )


class RunSettings(Table):
    """Where results go."""

    directory: str = Field("runs", description="folder that run folders are made in")
    examples: int = Field(
        8, ge=0, le=50, description="items whose nearest neighbours the report shows"
    )
