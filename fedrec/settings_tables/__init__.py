"""The tables of a scenario, a module each, the base of all tables, and their keys from a file and
from words of the command line (`--set key=value`): `fedrec.settings` puts the tables together and
says which choices contradict each other."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator

from fedrec.errors import SettingsError
from fedrec.storage import bounded_bytes

TABLES = {".csv", ".tsv", ".tab", ".parquet", ".pq", ".inter", ".jsonl", ".ndjson", ".npz", ".dat"}
"""Suffixes of files that hold data."""
_NUMBERS = (int, float, int | None, float | None)


class Table(BaseModel):
    """A table of a scenario or of a party's settings: unknown keys are refused, nothing changes
    once it is read."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=True, ser_json_inf_nan="strings"
    )

    @model_validator(mode="before")
    @classmethod
    def _no_marks_for_numbers(cls, raw: Any) -> Any:
        """True would be taken for 1, and the text 1_0 for 10."""
        for name, field in cls.model_fields.items() if isinstance(raw, dict) else ():
            found = raw.get(name)
            odd = isinstance(found, str) and ("_" in found or not found.isascii())
            if (isinstance(found, bool) or odd) and field.annotation in _NUMBERS:
                raise ValueError(f"{name} is a number, found {raw[name]!r}")
        return raw

    def chosen(self) -> set[str]:
        """Names of the keys that differ from their defaults, which all keys of the table have."""
        plain = type(self)()
        return {
            name for name in type(self).model_fields if getattr(self, name) != getattr(plain, name)
        }


def keys_of(settings: Any, table: str = "") -> Iterator[str]:
    """Dotted names of all keys of a table and of the tables in it."""
    if isinstance(settings, type) and issubclass(settings, BaseModel):
        for name, field in settings.model_fields.items():
            yield table + name
            yield from keys_of(field.annotation, f"{table}{name}.")
    for part in get_args(settings):
        yield from keys_of(part, table)


def keys_alike(settings: type[BaseModel], name: str) -> list[str]:
    """Keys that a mistyped one may stand for, the likeliest first: of its own table and spelt
    alike, of the same last part in another, or the nearest in any."""
    own, _, last = name.rpartition(".")
    lasts = {key: key.rpartition(".")[2] for key in keys_of(settings)}
    beside = {word: key for key, word in lasts.items() if key.rpartition(".")[0] == own}
    # 0.8 and 0.75: one letter in five or four is wrong; 0.6: two letters of three are swapped
    near = [beside[word] for word in get_close_matches(last, beside, n=1, cutoff=0.8)]
    if found := dict.fromkeys(near + [key for key, word in lasts.items() if word == last]):
        return list(found)
    words = get_close_matches(last, lasts.values(), n=1, cutoff=0.75)
    near = [beside[word] for word in get_close_matches(last, beside, n=1, cutoff=0.6)]
    return [key for key, word in lasts.items() if word in words] or near


def load_content(path: Path) -> dict[str, Any]:
    """The tables of a scenario file, not validated.

    Raises SettingsError where it cannot be read or is not TOML."""
    if set(path.suffixes) & TABLES:
        raise SettingsError(
            f"{path} is a table, not a scenario",
            f"Train on it: fedrec train {path} -o model. Or, with the keys of a scenario: fedrec "
            f"simulate --data {path}.",
        )
    return read_toml(path, "Give a scenario file.")


def read_toml(
    path: Path,
    missing: str,
    wrong: str = "Correct the line; strings need quotes.",
    *,
    said: str = "",
) -> dict[str, Any]:
    """The tables of a file, which errors call `said`.

    Raises SettingsError with the remedy `missing` where it cannot be read, `wrong` where it is not
    TOML."""
    said = said or str(path)
    try:
        return tomllib.loads(bounded_bytes(path).decode("utf-8-sig"))
    except OSError as failure:
        raise SettingsError(f"{said}: {failure.strerror or failure}", missing) from None
    except (ValueError, RecursionError) as failure:
        raise SettingsError(f"{said} is not TOML: {failure}", wrong) from None


def apply(content: dict[str, Any], override: str) -> None:
    """Put the value of one `key=value` into the content. Raises SettingsError."""
    name, equals, text = override.partition("=")
    parts = name.strip().split(".")
    if not equals or not all(parts):
        raise SettingsError(
            f"--set {override!r}: expected key=value", "For example --set privacy.epsilon=5."
        )
    _put(content, parts, _value(text.strip()), said=f"--set {override!r}")


def nested(keys: Mapping[str, Any], *, onto: dict[str, Any] | None = None) -> dict[str, Any]:
    """Tables of `table.key` names, laid over the tables of `onto`.

    Raises SettingsError where a key is both a value and a table, or there are no keys."""
    if not isinstance(keys, Mapping):
        raise SettingsError(
            f"settings are a mapping of scenario keys, found {keys!r}",
            'For example {"privacy.epsilon": 5}.',
        )
    content: dict[str, Any] = copy.deepcopy(onto or {})
    for name, value in keys.items():
        _put(content, str(name).split("."), value, said=str(name))
    return content


def _put(content: dict[str, Any], parts: Sequence[str], value: Any, *, said: str) -> None:
    table = content
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise SettingsError(
                f"{said}: {part!r} is a value, not a table",
                "Check the key against docs/reference.md.",
            )
    table[parts[-1]] = value


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):
        return text  # a bare word is a string
