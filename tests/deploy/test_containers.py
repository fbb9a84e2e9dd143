"""Dockerfile and compose.yaml as far as they can be examined without a daemon: form, commands,
settings, who shares what with whom."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedrec.cli.main import guarded
from fedrec.operations.pins import read_pins
from fedrec.settings import load
from fedrec_aggregator import settings as aggregator
from fedrec_client import settings as client
from fedrec_client.opened import read_site
from fedrec_server import settings as server
from fedrec_server.serving import settings as serving

ROOT = Path(__file__).parents[2]
LINES = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text()).splitlines()
INSTRUCTIONS = [
    tuple(line.split(maxsplit=1)) for line in LINES if line and not line.startswith("#")
]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ROLES = {
    name: service for name, service in SERVICES.items() if name not in {"prepare", "prometheus"}
}
LOADERS = {
    "aggregator": aggregator.load,
    "server": server.load,
    "site-1": client.load,
    "site-2": client.load,
    "serve": serving.load,
}


def said(instruction: str) -> list[str]:
    return [rest for name, rest in INSTRUCTIONS if name == instruction]


def volumes(service: dict[str, Any]) -> dict[str, str]:
    """What is mounted, by where."""
    return {there: what for what, there, *_ in (line.split(":") for line in service["volumes"])}


def test_the_image_is_of_a_fixed_base_without_compiler_package_manager_or_root() -> None:
    (base,) = [value.partition("=")[2] for value in said("ARG") if value.startswith("PYTHON=")]
    # neither latest nor a tag that moves to another Python
    assert re.fullmatch(r"python:3\.11\.\d+-slim-[a-z]+", base)
    assert said("FROM") == ["${PYTHON} AS build", "${PYTHON}"]
    install = said("RUN")[-1]
    assert "--only-binary :all:" in install
    locked, own = install.split("/opt/fedrec/bin/pip install")[1:3]
    assert "--require-hashes" in locked
    assert "--requirement /tmp/requirements.lock" in locked
    assert "--constraint /tmp/constraints.txt" in own
    assert not any(
        word in run
        for run in said("RUN")
        for word in ("apt-get", "gcc", "curl ", "sudo", "--editable")
    )
    assert said("USER") == ["10001:10001"]
    names = [name for name, _ in INSTRUCTIONS]
    assert (
        names.index("USER")
        < names.index("HEALTHCHECK")
        < names.index("ENTRYPOINT")
        < names.index("CMD")
    )
    assert json.loads(said("ENTRYPOINT")[0]) == ["fedrec"]  # exec form: signals reach it


def test_the_health_check_and_the_default_command_are_of_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    program, *words = json.loads(said("HEALTHCHECK")[0].partition(" CMD ")[2])
    assert program == "fedrec"
    assert guarded([*words, "--help"]) == 0
    assert guarded(json.loads(said("CMD")[0])) == 0
    capsys.readouterr()
    assert {there for service in ROLES.values() for there in volumes(service)} >= {words[-1]}


def test_what_is_copied_is_what_the_wheel_is_built_of_and_the_ignore_file_lets_nothing_else_in() -> None:  # fmt: skip
    copied = {
        source for line in said("COPY") if "--from" not in line for source in line.split()[:-1]
    }
    assert all((ROOT / source).exists() for source in copied)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]["wheel"]["packages"]
    assert {package.split("/")[0] for package in packages} <= copied
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied


@pytest.mark.parametrize("name", ROLES)
def test_a_role_can_write_little_gains_nothing_and_is_told_settings_that_load(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = ROLES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "network_mode", "user", "devices"} & set(service)
    assert guarded([*service["command"], "--help"]) == 0
    capsys.readouterr()
    mounted = volumes(service)
    settings = ROOT / mounted["/etc/fedrec/settings.toml"]
    pins = tmp_path / "pins.toml"
    pins.write_text(
        "".join(
            f'"fedrec:{who}" = "{key * 64}"\n'
            for key, who in zip(
                "012", ("aggregator:aggregator", "server:server", "client:site-1"), strict=True
            )
        )
    )
    (tmp_path / "settings.toml").write_text(
        settings.read_text().replace("/etc/fedrec/keys/pins.toml", str(pins))
    )
    loaded = LOADERS[name](tmp_path / "settings.toml")
    # each lies in something that is mounted
    for path in re.findall(r'"(/[^"]+)"', settings.read_text()):
        assert any(
            path.startswith(there)
            for there in (*mounted, *(tmpfs.split(":")[0] for tmpfs in service["tmpfs"]))
        ), path
    named = {source.split("/")[0] for source in mounted.values() if not source.startswith(".")}
    assert named <= set(COMPOSE["volumes"])
    if name in ("site-1", "site-2"):
        assert loaded.name == name


def test_sites_share_no_network_no_volume_and_no_key_and_only_serving_is_published() -> None:
    for network, options in COMPOSE["networks"].items():
        there = {name for name, service in ROLES.items() if network in service["networks"]}
        assert not {"site-1", "site-2"} <= there
        assert options.get("internal") or there == {"serve"}
        assert network != "watch" or there == {"serve"}
    assert not set(volumes(ROLES["site-1"]).values()) & set(volumes(ROLES["site-2"]).values())
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["serve"]
    assert all(port.startswith("127.0.0.1:") for port in ROLES["serve"]["ports"])
    assert [
        name for name, service in SERVICES.items() if "authority" in volumes(service).values()
    ] == ["prepare"]
    assert SERVICES["prepare"]["network_mode"] == "none"
    writable = {
        name: [line for line in service["volumes"] if not line.endswith(":ro")]
        for name, service in ROLES.items()
    }
    states = {name: [f"state-{name}:/var/lib/fedrec"] for name in ROLES if name != "serve"}
    assert writable == states | {"serve": []}


def test_serving_has_a_key_of_its_own_and_is_scraped_on_a_port_that_is_not_published() -> None:
    keys = {
        name: {what for what in volumes(service).values() if what.startswith("keys-")}
        for name, service in ROLES.items()
    }
    assert keys == {name: {f"keys-{name}"} for name in ROLES}
    settings = tomllib.loads((ROOT / "deploy" / "compose" / "serving.toml").read_text())
    assert settings["tls"]["key"].endswith("/serving-key.pem")
    port = settings["metrics"].rpartition(":")[2]
    assert not any(f":{port}" in published for published in ROLES["serve"]["ports"])
    scraper = SERVICES["prometheus"]
    assert scraper["networks"] == ["watch"]
    assert scraper["read_only"]
    assert scraper["cap_drop"] == ["ALL"]
    mounted = volumes(scraper)
    scraped = yaml.safe_load((ROOT / mounted["/etc/prometheus/prometheus.yml"]).read_text())
    [job] = scraped["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"serve:{port}"]}]
    assert scraped["rule_files"] == ["/etc/prometheus/alerts.yaml"]
    assert (ROOT / mounted["/etc/prometheus/alerts.yaml"]).is_file()


def test_each_waits_for_what_it_needs_and_calls_it_by_its_service_s_name() -> None:
    assert all(set(service.get("depends_on", {})) <= set(SERVICES) for service in SERVICES.values())
    assert ROLES["aggregator"]["depends_on"] == {
        "prepare": {"condition": "service_completed_successfully"}
    }
    for name in ("server", "site-1", "site-2"):
        settings = tomllib.loads((ROOT / "deploy" / "compose" / f"{name}.toml").read_text())
        assert ROLES[name]["depends_on"]["aggregator"] == {"condition": "service_healthy"}
        assert settings["aggregator"]["address"] == "aggregator:7001"
        if name != "server":
            assert settings["server"]["address"] == "server:7002"
            assert set(ROLES[name]["networks"]) <= set(ROLES["server"]["networks"]) & set(
                ROLES["aggregator"]["networks"]
            )


def test_the_scenario_s_comment_says_how_many_runs_fit_the_limit() -> None:
    from fedrec.privacy.accounting import epsilon_of, mu_for

    path = ROOT / "deploy" / "compose" / "scenario.toml"
    one = load(path).privacy
    limit = tomllib.loads((path.parent / "aggregator.toml").read_text())["privacy"]["max_epsilon"]
    mu = mu_for(one.epsilon, one.delta)
    assert epsilon_of(mu * 10**0.5, one.delta) <= limit < epsilon_of(mu * 11**0.5, one.delta)
    assert "Ten runs at epsilon 3 fit the limit of 12." in path.read_text()


@pytest.mark.slow
def test_the_one_shot_service_gives_each_party_its_own_files_and_does_nothing_twice(
    tmp_path: Path,
) -> None:
    specification = importlib.util.spec_from_file_location(
        "prepare", ROOT / "deploy" / "compose" / "prepare.py"
    )
    assert specification is not None
    assert specification.loader is not None
    prepare = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(prepare)
    folders = [
        there.rpartition("/")[2]
        for there in volumes(SERVICES["prepare"])
        if there.startswith("/volumes/")
    ]
    for folder in folders:
        (tmp_path / folder).mkdir()
    prepare.main(tmp_path, "small")
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for folder in (name for name in folders if name.startswith("keys-")):
        keys = {
            path.name for path in (tmp_path / folder).iterdir() if path.name.endswith("-key.pem")
        }
        assert len(keys) == 1
        assert "ca-key.pem" not in keys
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700
    pinned = set(read_pins(tmp_path / "keys-site-1" / "pins.toml"))
    assert pinned == {
        "fedrec:aggregator:aggregator",
        "fedrec:server:server",
        "fedrec:client:site-1",
        "fedrec:client:site-2",
    }
    users = list[set[str]]()
    for site in ("site-1", "site-2"):
        content = (ROOT / "deploy" / "compose" / f"{site}.toml").read_text()
        for name, value in (
            ("/srv/data", tmp_path / f"data-{site}"),
            ("/etc/fedrec/keys", tmp_path / f"keys-{site}"),
        ):
            content = content.replace(name, str(value))
        (tmp_path / "settings.toml").write_text(content)
        users.append(set(read_site(client.load(tmp_path / "settings.toml").data).user_ids))
    assert len(users[0]) == len(users[1]) == 150
    assert not users[0] & users[1]
    prepare.main(tmp_path, "small")
    assert all(path.read_bytes() == content for path, content in kept.items())
