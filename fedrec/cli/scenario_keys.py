"""Keys of a scenario, with what each is when nobody sets it: what `fedrec schema` searches and the
reference page lists."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fedrec.settings import Scenario

COMMON = (
    *("privacy.epsilon", "privacy.delta", "privacy.noise", "privacy.max_total_epsilon"),
    *("data.path", "data.columns", "data.rating_range", "data.click_threshold"),
    *("data.features_path", "split.kind", "recipe", "evaluation.cutoffs", "compare.epsilons"),
    *("compare.als", "run.directory"),
)
"""Keys that most runs need."""


def keys() -> Iterator[tuple[str, str, str]]:
    """Every key of a scenario: its name, its default as TOML, and what it means."""
    for name, field in Scenario.model_fields.items():
        if not is_table(field):
            yield name, default_as_toml(field), field.description or ""
            continue
        table: Any = field.annotation
        for key, inner in table.model_fields.items():
            yield f"{name}.{key}", default_as_toml(inner), inner.description or ""


def is_table(field: FieldInfo) -> bool:
    """Whether a field of `Scenario` is a table of keys."""
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def default_as_toml(field: FieldInfo) -> str:
    """A key's default as a scenario would write it."""
    value = field.default_factory() if field.default_factory else field.default  # type: ignore[call-arg]
    if value is None or value is PydanticUndefined:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{}"
    return (
        f"[{', '.join(_scalar(v) for v in value)}]" if isinstance(value, tuple) else _scalar(value)
    )


def _scalar(value: float | str) -> str:
    return f'"{value}"' if isinstance(value, str) or math.isinf(value) else f"{value:g}"
