"""Base of all tables, and the types of values that several have: epsilons and instants."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


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


class Table(BaseModel):
    """Unknown keys are refused, values frozen."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=True, ser_json_inf_nan="strings"
    )
