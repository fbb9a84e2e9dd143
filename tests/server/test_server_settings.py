from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedrec.data.interactions import Dataset
from fedrec.errors import SettingsError
from fedrec.factorization.facts import PublicFacts
from fedrec.public_data import write_public
from fedrec.randomness import Streams
from fedrec_server.settings import EXAMPLE, load, validated


def changed(**tables: dict[str, Any]) -> dict[str, Any]:
    """The example, with keys of some tables replaced; None takes a key out."""
    content = tomllib.loads(EXAMPLE)
    for table, keys in tables.items():
        content[table] = {
            key: value
            for key, value in {**content.get(table, {}), **keys}.items()
            if value is not None
        }
    return content


def test_the_example_is_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text(EXAMPLE)
    settings = load(tmp_path / "server.toml")
    assert settings.whom_to_wait_for().expected_users == 6040
    assert settings.patience().round_s == 600
    assert settings.public.rating_range == (1, 5)


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ({"public": {"paht": "x"}}, "public.paht"),
        ({"public": {"format": "public"}}, "id_column has no effect where format is public"),
        ({"public": {"metadata": "x"}}, "metadata has no effect where format is table"),
        ({"gathering": {"min_clients": 0}}, "gathering.min_clients"),
        ({"rounds": {"timeout_s": 0}}, "rounds.timeout_s"),
        ({"aggregator": {"key": None}}, "a certificate and its key come together"),
        ({"aggregator": {"pin": "abc"}}, "aggregator.pin"),
        ({"link": {"certificate": None, "key": None, "client_ca": None}}, "clients need TLS"),
        ({"link": {"client_ca": None}}, "needs client_ca"),
        ({"aggregator": {"pin": ""}}, "aggregator has no pin"),
        ({"link": {"address": "elsewhere:9092"}}, "link.address"),
    ],
)
def test_wrong_keys_are_named(tables: dict[str, dict[str, Any]], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        validated(changed(**tables), source="server.toml")


def test_a_token_is_never_in_a_message() -> None:
    with pytest.raises(SettingsError) as caught:
        validated(changed(aggregator={"token": ["a-secret-token"]}), source="server.toml")
    assert "a-secret-token" not in caught.value.cause


@pytest.mark.parametrize("content", [b"\xff", b"state = ", b""])
def test_files_that_are_no_settings_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_bytes(content)
    with pytest.raises(SettingsError, match=r"server\.toml"):
        load(tmp_path / "server.toml")
    with pytest.raises(SettingsError, match="No such file"):
        load(tmp_path / "none.toml")


def test_public_data_is_read_where_the_settings_say(dataset: Dataset, tmp_path: Path) -> None:
    events = dataset.interactions
    facts = PublicFacts(
        events.num_users, events.num_items, events.kind, events.value_range, None, Streams(1)
    )
    write_public(tmp_path, dataset.catalogue, facts)
    content = tomllib.loads(EXAMPLE) | {"public": {"path": str(tmp_path)}}
    assert validated(content, source="here").public.read().items == dataset.catalogue.item_ids
