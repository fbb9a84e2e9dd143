"""The units of deploy/systemd: systemd takes them, and they start verbs that exist on the settings
of docs/deploy.md."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from fedrec.cli.main import guarded

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text()
UNITS = {
    path.stem.removeprefix("fedrec-"): path
    for path in sorted((ROOT / "deploy" / "systemd").glob("*.service"))
}
GIVEN_UP = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "RestrictNamespaces": "yes",
    "SystemCallFilter": "@system-service",
    "UMask": "0077",
    "LimitCORE": "0",
    "MemorySwapMax": "0",
}


def read(party: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(strict=True, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(UNITS[party].read_text())
    return parsed


def settings(party: str) -> str:
    return re.search(rf"^```toml\n# {party}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]  # type: ignore[index]


def test_there_is_a_unit_for_each_process_and_the_page_links_it() -> None:
    assert set(UNITS) == {"aggregator", "server", "client", "serve"}
    for path in UNITS.values():
        assert f"(../deploy/systemd/{path.name})" in PAGE


@pytest.mark.parametrize("party", UNITS)
def test_a_unit_runs_as_its_own_user_gives_up_what_it_can_and_comes_back_after_a_crash(
    party: str,
) -> None:
    service = read(party)["Service"]
    assert service["User"] == "fedrec"
    assert {key: service.get(key) for key in GIVEN_UP} == GIVEN_UP
    assert service["Restart"] in {"always", "on-failure"}
    # wrong settings or data: they would fail again
    assert set(service["RestartPreventExitStatus"].split()) >= {"2", "3", "4"}
    # a full disk or a lost network may last
    assert read(party)["Unit"]["StartLimitIntervalSec"] == "0"


@pytest.mark.parametrize("party", UNITS)
def test_a_unit_starts_a_verb_that_takes_its_words_on_settings_that_the_page_shows(
    party: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *words = read(party)["Service"]["ExecStart"].split()
    assert program == "/opt/fedrec/bin/fedrec"
    assert f"`{words[words.index('--settings') + 1]}`" in PAGE
    assert guarded([*words, "--help"]) == 0  # --help comes first: no file is read
    capsys.readouterr()
    state = tomllib.loads(settings(party if party != "serve" else "serving"))["state"]
    folder = read(party)["Service"].get("StateDirectory")
    assert state == (
        f"/var/lib/{folder}" if folder else f"/run/{read(party)['Service']['RuntimeDirectory']}"
    )


@pytest.mark.parametrize("party", UNITS)
def test_systemd_takes_a_unit_and_finds_little_exposed(party: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / UNITS[party].name
    unit.write_text(
        UNITS[party]
        .read_text()
        .replace("/opt/fedrec/bin/fedrec", shutil.which("true") or "/bin/true")
    )
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    if "Failed to initialize manager" in verified.stderr:
        pytest.skip(verified.stderr.strip())
    assert (verified.returncode, verified.stderr) == (0, "")
    if not _knows_offline():
        return
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", unit]
    judged = subprocess.run(command, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout[-300:]


def _knows_offline() -> bool:
    """systemd 250 and newer can judge a file."""
    said = subprocess.run(
        ["systemd-analyze", "--version"], capture_output=True, text=True, check=False
    ).stdout
    return int(re.search(r"systemd (\d+)", said)[1]) >= 250  # type: ignore[index]
