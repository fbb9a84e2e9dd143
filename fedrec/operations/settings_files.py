"""Settings files of all parties: TOML, closed tables, one line per mistake."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import (
    BaseModel,
    ValidationError,
)

from fedrec.errors import SettingsError
from fedrec.settings_tables import keys_alike, read_toml

log = logging.getLogger(__name__)


_Settings = TypeVar("_Settings", bound=BaseModel)


Kind = Literal["aggregator", "server", "client", "serving"]


_OF = {
    "listen": "aggregator",
    "public": "server",
    "data": "client",
    "grpc": "serving",
    "http": "serving",
    "models": "serving",
    "ranking": "serving",
}
"""Keys that files of one party alone have."""


def read(path: Path, settings: type[_Settings]) -> _Settings:
    """Read a settings file.

    Raises SettingsError naming the first wrong key, what it must be and what was found."""
    return checked(_content(path), settings, folder=path.parent, source=str(path))


def _content(path: Path) -> dict[str, Any]:
    return read_toml(path, "Give a settings file, as in docs/deploy.md.")


def kind_of(path: Path) -> Kind:
    """Whose settings a file holds. Raises SettingsError where it cannot be read, or is nobody's."""
    content = _content(path)
    found = {kind for key, kind in _OF.items() if key in content}
    if len(found) != 1:
        cause = f"{path} is no settings file of one party"
        raise SettingsError(
            cause,
            (
                "Give the settings of an aggregator, a server, a client or of serving, as in "
                "docs/deploy.md."
            ),
        )
    return cast(Kind, found.pop())


def _renamed(content: dict[str, Any], settings: type[BaseModel], source: str) -> dict[str, Any]:
    """Content by the names of this version; each former one is logged with the new one."""
    for former, now in getattr(settings, "former", {}).items():
        *tables, last = former.split(".")
        place: Any = content
        for table in tables:
            place = place.get(table, {}) if isinstance(place, dict) else {}
        if isinstance(place, dict) and last in place and now not in place:
            content = _moved(content, tables, last, now)
            # before the party's log is open: Python's last resort is standard error
            log.warning(
                "%s: %s is called %s now; the next version reads the new name alone",
                source,
                former,
                ".".join((*tables, now)),
            )
    return content


def _moved(content: dict[str, Any], tables: Sequence[str], last: str, now: str) -> dict[str, Any]:
    """A copy of nested tables in which one key has another name."""
    if tables:
        first = tables[0]
        return content | {first: _moved(content[first], tables[1:], last, now)}
    return {now if key == last else key: value for key, value in content.items()}


def checked(
    content: dict[str, Any], settings: type[_Settings], *, folder: Path, source: str
) -> _Settings:
    """Settings from a table; relative paths start at `folder`.

    Raises SettingsError, which repeats no secret."""
    content = _renamed(content, settings, source)
    try:
        return settings.model_validate(content, context={"folder": folder})
    except ValidationError as failure:
        errors = failure.errors()
        # a key in the wrong spelling is also missing in the right one: the spelling is the cause
        first = min(errors, key=lambda error: error["type"] != "extra_forbidden")
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        hidden = isinstance(first["input"], dict | BaseModel) or "token" in key
        found = "" if hidden else f", found {first['input']!r}"
        if first["type"] == "extra_forbidden":
            near = keys_alike(settings, ".".join(x for x in first["loc"] if isinstance(x, str)))
            meant = f"Did you mean {' or '.join(near)}? " if near else ""
            raise SettingsError(
                f"{source}: there is no key {key}", f"{meant}docs/deploy.md has a complete file."
            ) from None
        message = first["msg"].removeprefix("Value error, ")
        raise SettingsError(
            f"{source}: {key}: {message}{found}", "docs/deploy.md has a complete file."
        ) from None
