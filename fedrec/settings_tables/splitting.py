"""Table [split] of a scenario: how the data are divided, and the instants that it may name."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from fedrec.settings_tables import Table


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
