"""What an operator may write in the settings file, and what is refused with a reason."""

from pathlib import Path
from typing import Any

import pytest

from fedrec.errors import SettingsError
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import SystemStreams
from fedrec_aggregator.opening_checks import Limits
from fedrec_aggregator.settings import EXAMPLE, load, validated
from fedrec_aggregator.settings_tables import LimitSettings

LEAST: dict[str, Any] = {
    "listen": "127.0.0.1:0",
    "state": "state",
    "insecure": True,
    "privacy": {"max_epsilon": 5.0},
}


def test_the_example_is_a_complete_file(tmp_path: Path) -> None:
    path = tmp_path / "aggregator.toml"
    path.write_text(EXAMPLE)
    settings = load(path)
    assert settings.tls is not None
    assert settings.tls.key == tmp_path / "aggregator-key.pem"
    assert settings.state == Path("/var/lib/fedrec/aggregator")
    assert [client.name for client in settings.clients] == ["hospital", "library"]
    assert settings.limit == Guarantee(5.0, 1e-5)
    assert isinstance(settings.noise, SystemStreams)


def test_limits_are_those_of_the_core() -> None:
    assert LimitSettings().limits() == Limits()


def test_an_infinite_epsilon_sets_no_limit_and_allows_no_run_without_noise_unless_told() -> None:
    assert validated({**LEAST, "privacy": {"max_epsilon": "inf"}}).limit is None
    limit = validated({**LEAST, "privacy": {"max_epsilon": "inf", "without_noise": True}}).limit
    assert limit is not None
    assert not limit.private


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"colour": "red"}, "colour"),
        ({"listen": "0.0.0.0:0"}, "loopback"),
        ({"listen": "nowhere"}, "host:port"),
        ({"insecure": False}, "tls is missing"),
        ({"insecure": False, "tls": {"certificate": "a", "key": "b"}}, "certificates .* or tokens"),
        ({"tls": {"certificate": "a", "key": "b"}}, "without effect"),
        ({"privacy": {"max_epsilon": 5.0, "noise": "seeded"}}, "simulation"),
        ({"privacy": {"max_epsilon": 5.0, "without_noise": True}}, "inf"),
        ({"privacy": {}}, "max_epsilon"),
        ({"privacy": {"max_epsilon": -1}}, "max_epsilon"),
        ({"privacy": {"max_epsilon": True}}, "is a number, found True"),
        ({"clients": [{"name": "a"}, {"name": "a"}]}, "every name once"),
        ({"clients": [{"name": "../a"}]}, "pattern"),
        ({"limits": {"max_batch_bytes": 2**25 + 1}}, "half of traffic.max_upload_bytes"),
        ({"tokens": [{"role": "client", "name": "a", "sha256": "secret"}]}, "sha256"),
    ],
)
def test_what_cannot_work_or_is_not_safe_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        validated({**LEAST, **change})


def test_a_missing_or_broken_file_is_a_settings_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load(tmp_path / "absent.toml")
    (tmp_path / "broken.toml").write_text("listen = nothing")
    with pytest.raises(SettingsError, match="not TOML"):
        load(tmp_path / "broken.toml")
