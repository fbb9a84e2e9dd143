"""The tables of a scenario, a module each, and the base of all tables: `fedrec.settings` puts them
together and says which choices contradict each other."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Table(BaseModel):
    """A table of a scenario or of a party's settings: unknown keys are refused, nothing changes
    once it is read."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=True, ser_json_inf_nan="strings"
    )

    @model_validator(mode="before")
    @classmethod
    def _no_marks_for_numbers(cls, raw: Any) -> Any:
        """True would be taken for 1."""
        for name, field in cls.model_fields.items() if isinstance(raw, dict) else ():
            if isinstance(raw.get(name), bool) and field.annotation in _NUMBERS:
                raise ValueError(f"{name} is a number, found {raw[name]!r}")
        return raw

    def chosen(self) -> set[str]:
        """Names of the keys that differ from their defaults, which all keys of the table have."""
        plain = type(self)()
        return {
            name for name in type(self).model_fields if getattr(self, name) != getattr(plain, name)
        }


_NUMBERS = (int, float, int | None, float | None)
