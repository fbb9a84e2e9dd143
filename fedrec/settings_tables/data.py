"""Tables of a scenario on data: [data] says where ratings, clicks or news come from and how they
are read, [evaluation], [compare] and [run] what is measured, what a model is set beside, and where
it goes.

Epsilons are a type that several tables have.
"""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from fedrec.settings_tables import Table


def _epsilon(value: object) -> object:
    return (
        math.inf
        if isinstance(value, str) and value.strip().lower() in {"inf", "infinity"}
        else value
    )


Epsilon = Annotated[float, BeforeValidator(_epsilon), Field(gt=0)]


def _column(value: object) -> object:
    """The number of a column as its name, where a file has no header."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class PlantedSettings(Table):
    """Sizes of a planted data set of one's own.

    What is not said here, and strengths in units of the scale, are those of the presets."""

    users: int = Field(ge=1, le=10_000_000)
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
        # steps such as .1 are no binary fractions: a quotient may miss its whole number by rounding
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
    similar_items: str = Field(
        "",
        description=(
            "public pairs of items: a table of item, neighbour and, if wished, score (citations, "
            "links, bought together elsewhere)"
        ),
        exclude_if=lambda value: not value,
    )
    item_vectors: str = Field(
        "",
        description="public vectors of items: Parquet, a column of ids, then numbers or lists",
        exclude_if=lambda value: not value,
    )
    features: bool = Field(True, description="whether training may use public item features at all")
    kind: Literal["auto", "ratings", "clicks"] = Field(
        "auto", description="what to learn from; clicks may be made from ratings"
    )
    click_threshold: float = Field(
        0.0,
        description=(
            "the lowest rating that counts as a click; with a named column of thumbs or counts it "
            "needs no rating_range"
        ),
    )
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
    duplicates: Literal["auto", "refuse", "last", "mean", "sum"] = Field(
        "auto",
        description=(
            "what to do with a second row of one user and item, before a threshold makes clicks; "
            "auto merges clicks, adds up plays and refuses ratings"
        ),
    )
    out_of_range: Literal["refuse", "clip", "drop"] = Field(
        "refuse", description="what to do with ratings off the scale"
    )
    missing: Literal["refuse", "drop"] = Field(
        "refuse",
        description="of tables: what to do with rows that lack a value",
        exclude_if=lambda value: value == "refuse",  # so that older runs keep their digests
    )
    decimal: str = Field(
        ".",
        description="of tables: the mark before the decimals of a rating, a point or a comma",
        exclude_if=lambda value: value == ".",
    )
    time_format: str = Field(
        "",
        description=(
            "of tables: how times are written, in strftime's directives, for example %d.%m.%Y; "
            "empty reads seconds and ISO dates"
        ),
        exclude_if=lambda value: not value,
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
        description="size of the planted data set: small, demo, skewed (a tenth of the items has "
        "86% of the events), ml10m, ml10m_x10, ml20m (skewed too); empty takes demo",
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
        # a whole scenario, as parties are given one, says every default too
        usual = type(self).model_fields["click_threshold"].default
        if self.click_threshold != usual and self.kind != "clicks":
            raise ValueError(
                'data.click_threshold has no effect without data.kind = "clicks": say both, or '
                "leave it out"
            )
        if self.validation and not self.test:
            raise ValueError("data.validation needs data.test beside it")
        if self.planted is not None and (
            other := next((key for key in ("preset", "path") if getattr(self, key)), "")
        ):
            raise ValueError(
                f"data.planted gives the sizes of planted data, so data.{other} must be left out"
            )
        return self


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
            "non-private alternating least squares and item-item similarities, references and no "
            "upper bound; dp-bias or dp-item-item at the run's epsilon"
        ),
    )


class RunSettings(Table):
    """Where results go."""

    directory: str = Field("runs", description="folder that run folders are made in")
    examples: int = Field(
        8, ge=0, le=50, description="items whose nearest neighbours the report shows"
    )
