"""Keys of settings files: former names are read with a warning, wrong ones named with the nearest."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from fedrec.errors import SettingsError
from fedrec.operations.party_settings import _names, checked
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
            assert {*name.split(".")[:-1], now} <= set(_names(settings))


@pytest.mark.parametrize("settings", PARTIES)
def test_a_misspelt_key_is_named_with_the_nearest_before_what_is_missing(
    settings: type[BaseModel],
) -> None:
    for key in settings.model_fields:
        with pytest.raises(SettingsError, match=f"there is no key {key}x") as failure:
            of_file({f"{key}x": 1}, settings)
        assert f"Did you mean {key}?" in failure.value.remedy
