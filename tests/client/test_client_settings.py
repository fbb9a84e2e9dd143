from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest

from fedrec.errors import SettingsError
from fedrec_client.settings import EXAMPLE, load, validated


def test_the_example_is_a_settings_file(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text(EXAMPLE)
    settings = load(path)
    assert settings.name == "library"
    assert (settings.privacy.limit.epsilon, settings.privacy.limit.unit) == (5.0, "user")
    assert settings.data.reader_options() == {
        "user": "reader",
        "item": "book",
        "rating": "stars",
        "rating_range": (1.0, 5.0),
    }


def test_relative_paths_start_at_the_files_folder(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text(
        EXAMPLE.replace("/var/lib/fedrec/client", "state").replace("/etc/fedrec/ca.pem", "ca.pem")
    )
    settings = load(path)
    assert settings.state == str(tmp_path / "state")
    assert settings.aggregator.ca == settings.server.ca == str(tmp_path / "ca.pem")
    assert settings.aggregator.token == settings.log == ""


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("privacy.max_epsilon", 0, "privacy.max_epsilon"),
        ("privacy.epsilon", 5, "privacy.epsilon"),
        ("aggregator.key", "", "come together"),
        ("aggregator.pin", "abc", "aggregator.pin"),
        ("aggregator.pin", "", "aggregator has no pin"),
        ("server.pin", "", "server has no pin"),
        ("server.key", "", "come together"),
        ("server.insecure", True, "or insecure"),
        ("name", "../x", "name"),
        ("users_per_batch", 0, "users_per_batch"),
        ("users_per_batch", True, "is a number, found True"),
        ("data.duplicates", "first", "data.duplicates"),
        ("own_head", "/var/lib/fedrec/client/head.json", "outside of state"),
    ],
)
def test_what_is_wrong_is_named(key: str, value: object, words: str) -> None:
    content = tomllib.loads(EXAMPLE)
    *tables, last = key.split(".")
    table = content
    for name in tables:
        table = table[name]
    table[last] = value
    with pytest.raises(SettingsError, match=words):
        validated(content)


def test_a_client_makes_no_impressions_of_a_click_log() -> None:
    """What it would show is drawn in proportion to the site's own clicks."""
    content = tomllib.loads(EXAMPLE)
    content["privacy"]["unit"] = "click"
    content["data"]["format"] = "click-log"
    with pytest.raises(SettingsError, match="mind, news-shard"):
        validated(content)


def test_an_infinite_limit_is_spelled_out() -> None:
    content = tomllib.loads(EXAMPLE)
    content["privacy"]["max_epsilon"] = "inf"
    assert math.isinf(validated(content).privacy.limit.epsilon)


@pytest.mark.parametrize("content", ["name = library", "\0", None])
def test_a_file_that_is_missing_or_no_toml_is_refused_by_name(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "client.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=r"client\.toml"):
        load(path)
