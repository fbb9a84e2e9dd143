"""What docs/deploy.md says can be typed: settings load with the real classes, certificates and
metrics are as named."""

import logging
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from typer.main import get_command
from typer.testing import CliRunner

from fedrec.cli.main import app
from fedrec.federation.protocol import Refusal
from fedrec.operations import machine
from fedrec.operations.certificates import write_development_certificates
from fedrec.operations.machine import ClockWatch, watch_machine
from fedrec.operations.metrics import Metrics
from fedrec.operations.monitoring import ALERTS
from fedrec.operations.pins import read_pins, write_pins
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.settings import load
from fedrec.transport.aggregator_client import MAX_RELEASE_BYTES
from fedrec_aggregator import settings as aggregator
from fedrec_aggregator.opening_checks import Limits
from fedrec_client import settings as client
from fedrec_server import settings as server
from fedrec_server.serving import settings as serving

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
NIGHT = PAGE.with_name("night.md")
LOADERS = {
    "aggregator": aggregator.load,
    "client": client.load,
    "client of news": client.load,
    "server": server.load,
    "serving": serving.load,
    "scenario": load,
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def settings() -> dict[str, str]:
    """By party, named in their first line; other blocks are parts of such a file."""
    return {
        block.splitlines()[0].removeprefix("# "): block
        for block in blocks("toml")
        if block.startswith("# ")
    }


def parts() -> list[dict[str, Any]]:
    return [tomllib.loads(block) for block in blocks("toml") if not block.startswith("# ")]


def prose() -> str:
    return " ".join(PAGE.read_text().split())


def test_each_party_has_a_complete_settings_file() -> None:
    assert set(settings()) == set(LOADERS)


@pytest.mark.parametrize("party", LOADERS)
def test_the_settings_of_a_party_load_with_the_pins_and_name_files_by_whole_paths(
    party: str, tmp_path: Path
) -> None:
    write_development_certificates(tmp_path, clients=["hospital", "library"])
    pins = write_pins(tmp_path)
    (tmp_path / "settings.toml").write_text(
        settings()[party].replace("/etc/fedrec/pins.toml", str(pins))
    )
    assert (str(pins) in (tmp_path / "settings.toml").read_text()) == (
        party not in ("serving", "scenario")
    )
    LOADERS[party](tmp_path / "settings.toml")
    for name in re.findall(r'"([^"]*\.(?:pem|csv))"', settings()[party]):
        assert Path(name).is_absolute()


def test_a_part_of_the_servers_settings_names_keys_of_it_and_their_defaults() -> None:
    assert [set(part) for part in parts()] == [{"rounds"}]
    named = parts()[0]["rounds"]
    default = server.RoundsTable()
    assert {name: getattr(default, name) for name in named} == named


def test_the_three_parties_agree_on_ports_names_and_limits() -> None:
    content: dict[str, dict[str, Any]] = {
        party: tomllib.loads(text) for party, text in settings().items()
    }
    ports = {
        party: content[party]["aggregator"]["address"].rsplit(":", 1)[1]
        for party in ("client", "server")
    }
    assert set(ports.values()) == {content["aggregator"]["listen"].rsplit(":", 1)[1]}
    assert (
        content["client"]["server"]["address"].rsplit(":", 1)[1]
        == content["server"]["link"]["listen"].rsplit(":", 1)[1]
    )
    assert content["client"]["name"] in {
        entry["name"] for entry in content["aggregator"]["clients"]
    }
    assert content["server"]["gathering"]["expected_users"] == sum(
        entry["max_users"] for entry in content["aggregator"]["clients"]
    )


def test_as_many_runs_fit_the_limit_as_the_page_says() -> None:
    limit, run = (
        tomllib.loads(settings()[party])["privacy"] for party in ("aggregator", "scenario")
    )
    mu = mu_for(run["epsilon"], run["delta"])
    delta = run["delta"]
    top = limit["max_epsilon"]
    spent = [epsilon_of(mu * k**0.5, delta) for k in range(1, 20)]
    fit = ["no", "one", "two", "three", "four", "five", "six"][
        sum(epsilon <= top for epsilon in spent)
    ]
    assert f"`max_epsilon = {top:g}` {fit} runs at ε = {run['epsilon']:g} fit" in prose()


def test_the_certificates_of_the_page_are_those_that_the_command_makes(tmp_path: Path) -> None:
    made = {path.name for path in write_development_certificates(tmp_path, clients=["hospital"])}
    named = set(re.findall(r"`([\w-]+\.pem)`", PAGE.read_text()))
    assert named == made
    in_settings = {
        Path(name).name
        for text in settings().values()
        for name in re.findall(r'"([^"]*\.pem)"', text)
    }
    assert in_settings == made - {"ca-key.pem"}


def test_the_certificates_command_of_the_page_runs_and_says_one_role_a_host(tmp_path: Path) -> None:
    command = next(
        line
        for block in blocks("sh")
        for line in block.splitlines()
        if line.startswith("fedrec certs")
    )
    _, *verb, folder = command.split()[:4]
    flags = command.split()[4:]
    done = CliRunner().invoke(app, [*verb, str(tmp_path / folder), *flags])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == str(tmp_path / folder / "pins.toml")
    named = set(read_pins(tmp_path / folder / "pins.toml"))
    assert named == {
        "fedrec:aggregator:aggregator",
        "fedrec:server:server",
        "fedrec:client:hospital",
        "fedrec:client:library",
    }
    for party in ("aggregator", "server"):
        shown = x509.load_pem_x509_certificate((tmp_path / folder / f"{party}.pem").read_bytes())
        names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == [f"{party}.example.org"]


def test_the_pin_of_the_page_is_what_openssl_computes(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    write_development_certificates(tmp_path, clients=[])
    (command,) = [
        line
        for block in blocks("bash")
        for line in block.splitlines()
        if line.startswith("openssl")
    ]
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[0] == read_pins(write_pins(tmp_path))["fedrec:aggregator:aggregator"]


def test_the_metrics_of_the_page_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics("aggregator", "0")
    metrics.decided("released", took_s=1.0)
    metrics.budget(spent=1.0, left=1.0)
    metrics.items(unknown=1, events=2)
    metrics.evaluated({"value": 1.0})
    metrics.state.enrolled(1)
    metrics.state.clients(connected=lambda: 1.0, joined=1, absent=1)
    metrics.state.round(1, "run-1")
    metrics.state.quorum(needed=1, there=1)
    metrics.refused("busy")
    metrics.reports(accepted=1, rejected={"replayed": 1})
    metrics.budget(spent=1.0, left=4.0)
    monkeypatch.setattr(machine, "_allowed", lambda: 1.0)  # where a limit is set
    watch_machine(metrics.registry, state=Path(), certificates=["missing.pem"])
    ClockWatch(metrics.registry, logging.getLogger(__name__))
    known = {sample.name for family in metrics.registry.collect() for sample in family.samples} | {
        f.name for f in metrics.registry.collect()
    }
    named = set(re.findall(r"`(fedrec_\w+)`", PAGE.read_text()))
    assert named
    assert named - {"fedrec_memory_limit_bytes"} <= known  # where a control group has a limit


def test_the_limits_of_the_page_are_the_defaults() -> None:
    limits = Limits()
    section = PAGE.read_text().partition("\n## Limits\n")[2]
    for said in (
        f"{limits.max_users_per_batch:,} users",
        f"{limits.max_batch_bytes // 2**20} MiB",
        f"{limits.max_events_per_user:,} items",
        f"{MAX_RELEASE_BYTES // 2**30} GiB",
        f"`max_accumulator_bytes`, {limits.max_accumulator_bytes // 2**20} MiB",
    ):
        assert said in section


def test_the_alerts_codes_and_verbs_that_the_page_names_exist() -> None:
    table = re.search(
        r"^## What to do when\n(.*?)^## ", NIGHT.read_text(), re.MULTILINE | re.DOTALL
    )[1]  # type: ignore[index]
    alerts = set(re.findall(r"`(Fedrec\w+)`", NIGHT.read_text()))
    rules = re.findall(r"alert: (\w+)\n(?:.*\n)*?.*severity: (\w+)", ALERTS.read_text())
    assert alerts
    assert alerts <= {name for name, _ in rules}
    assert {name for name, severity in rules if severity == "critical"} <= alerts
    fedrec: Any = get_command(app)
    for words in re.findall(r"`fedrec ([a-z ]+)", table):
        group = fedrec
        for word in words.split():
            group = group.commands[word] if hasattr(group, "commands") else group
    codes = {code.value for code in Refusal} | {"unreachable", "clock-set"}
    assert set(re.findall(r"`([a-z]+-[a-z-]+|unreachable|budget)`", table)) <= codes
