"""Keys of settings files: former names are read with a warning, wrong ones named with the nearest."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from fedrec.errors import SettingsError
from fedrec.operations.settings_files import checked
from fedrec.settings import Scenario, validated
from fedrec.settings_tables import keys_of
from fedrec_aggregator.settings import AggregatorSettings
from fedrec_client.settings import ClientSettings
from fedrec_server.serving.settings import ServingSettings
from fedrec_server.settings import ServerSettings

PARTIES = (AggregatorSettings, ClientSettings, ServerSettings, ServingSettings)
CLIENT = {
    "name": "library",
    "state": "state",
    "data": {"path": "clicks.csv"},
    "aggregator": {"address": "127.0.0.1:1", "insecure": True},
    "server": {"address": "127.0.0.1:2", "insecure": True, "ca": "ca.pem"},
}


def of_file(content: dict[str, Any], settings: type[BaseModel]) -> Any:
    return checked(content, settings, folder=Path(), source="party.toml")


def test_former_names_are_read_and_each_is_logged_with_the_new_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    former = dict(CLIENT)
    table = dict(former.pop("server"))
    table["root_certificates"] = table.pop("ca")
    former["superlink"] = table
    with caplog.at_level(logging.WARNING):
        read = of_file(former, ClientSettings)
    assert read == of_file(CLIENT, ClientSettings)
    said = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert said == [
        "party.toml: superlink is called server now",
        "party.toml: server.root_certificates is called server.ca now",
    ]
    for settings in PARTIES:
        for name, now in getattr(settings, "former", {}).items():
            assert {*name.split(".")[:-1], now} <= {
                key.rpartition(".")[2] for key in keys_of(settings)
            }


def read(content: dict[str, Any], settings: type[BaseModel]) -> object:
    if settings is Scenario:
        return validated(content, source="scenario.toml")
    return of_file(content, settings)


def keys(settings: Any, of: tuple[tuple[str, bool], ...] = ()) -> Iterator[Any]:
    """Every key of a file: the tables that it is in, each with whether it is one of a list, and its
    name."""
    for name, field in settings.model_fields.items():
        yield of, name
        for table, listed in tables(field.annotation):
            yield from keys(table, (*of, (name, listed)))


def tables(kind: Any, listed: bool = False) -> Iterator[tuple[Any, bool]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind, listed
    for part in get_args(kind):
        yield from tables(part, listed or get_origin(kind) is tuple)


@pytest.mark.parametrize("settings", [*PARTIES, Scenario])
def test_every_key_that_is_misspelt_is_named_with_the_nearest_before_what_is_missing(
    settings: type[BaseModel],
) -> None:
    """Three ways: a letter too many, one too few, two that are swapped."""
    known = set(keys_of(settings))
    for of, key in keys(settings):
        table = "".join(f"{name}." for name, _ in of)
        for wrong in (f"{key}x", key[:-1], key[1] + key[0] + key[2:]):
            # of two letters, one is as near to many
            if f"{table}{wrong}" in known or wrong == key or len(key) < 3:
                continue
            content: Any = {wrong: 1}
            for name, listed in reversed(of):
                content = {name: [content] if listed else content}
            with pytest.raises(SettingsError, match="there is no key") as failure:
                read(content, settings)
            assert wrong in failure.value.cause
            assert f"{table}{key}" in failure.value.remedy.partition("?")[0].split()
