"""Keys of a scenario from its file and from words of the command line (`--set key=value`)."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrec.errors import SettingsError

TABLES = {".csv", ".tsv", ".tab", ".parquet", ".pq", ".inter", ".jsonl", ".ndjson", ".npz", ".dat"}
"""Suffixes of files that hold data."""


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
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as failure:
        raise SettingsError(f"{said}: {failure.strerror or failure}", missing) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as failure:
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
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string
