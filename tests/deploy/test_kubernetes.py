"""Manifests of deploy/kubernetes: kustomize builds them, the schema of Kubernetes takes them, and
each party gives up what it can and reaches whom it must."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedrec.cli.main import guarded
from fedrec.operations.addresses import Address
from fedrec_aggregator import settings as aggregator
from fedrec_client import settings as client
from fedrec_server import settings as server
from fedrec_server.serving import settings as serving

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
LOADERS = {
    "aggregator": aggregator.load,
    "server": server.load,
    "client": client.load,
    "serving": serving.load,
}
CALLED = {"aggregator": [], "server": [7001], "client": [7001, 7002], "serving": [7003]}


@pytest.fixture(scope="module", params=LOADERS)
def built(request: pytest.FixtureRequest) -> tuple[str, list[dict[str, Any]]]:
    """A party, and all objects that kustomize makes of its folder."""
    if shutil.which("kubectl") is None:
        pytest.skip("kustomize needs kubectl")
    command = ["kubectl", "kustomize", str(FOLDER / request.param)]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    return request.param, list(yaml.safe_load_all(made.stdout))


def one(objects: list[dict[str, Any]], *kinds: str, name: str = "") -> dict[str, Any]:
    [found] = [
        each
        for each in objects
        if each["kind"] in kinds and (not name or each["metadata"]["name"] == name)
    ]
    return found


def pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = one(objects, "StatefulSet", "Deployment")["spec"]["template"]["spec"]
    return found


def test_the_schema_of_kubernetes_takes_every_object(
    built: tuple[str, list[dict[str, Any]]],
) -> None:
    try:
        validator = importlib.import_module("kubernetes_validate")
    except ImportError:
        pytest.skip("needs the package kubernetes-validate")
    for each in built[1]:
        validator.validate(each, "1.30", strict=True)


def test_the_commands_of_a_folder_are_in_the_order_in_which_they_work(
    built: tuple[str, list[dict[str, Any]]],
) -> None:
    """A secret needs its namespace; a workload that starts needs the secret. Who calls from another
    cluster needs an address outside of this one."""
    party, objects = built
    lines = (FOLDER / party / "kustomization.yaml").read_text().splitlines()
    commands = [line.removeprefix("#").split() for line in lines if line.startswith("#   kubectl")]
    namespace = one(objects, "Namespace")
    folder = f"deploy/kubernetes/{party}"
    assert commands[0] == ["kubectl", "apply", "-f", f"{folder}/namespace.yaml"]
    assert yaml.safe_load((FOLDER / party / "namespace.yaml").read_text()) == {
        **namespace,
        "metadata": {**namespace["metadata"]},
    }
    assert commands[1][:5] == ["kubectl", "-n", namespace["metadata"]["name"], "create", "secret"]
    assert commands[2] == ["kubectl", "apply", "-k", folder]
    keys = next(volume for volume in pod(objects)["volumes"] if volume["name"] == "keys")
    assert keys["secret"]["secretName"] == commands[1][6]
    brought = {word.removeprefix("--from-file=") for word in commands[1][7:]}
    content = one(objects, "ConfigMap")["data"]["settings.toml"]
    assert {Path(path).name for path in _paths(tomllib.loads(content)) if "keys" in path} <= brought
    for each in objects:
        if each["kind"] == "Service":
            assert each["spec"]["type"] == "LoadBalancer"
            assert each["spec"]["externalTrafficPolicy"] == "Local"


def test_a_party_runs_as_its_own_user_on_a_root_that_it_cannot_write(
    built: tuple[str, list[dict[str, Any]]],
) -> None:
    spec = pod(built[1])
    context = spec["securityContext"]
    assert (context["runAsNonRoot"], context["runAsUser"]) == (True, 10001)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    [container] = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]
    assert not container["image"].endswith(":latest")
    namespace = one(built[1], "Namespace")["metadata"]
    assert namespace["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    assert {each["metadata"]["namespace"] for each in built[1] if each["kind"] != "Namespace"} == {
        namespace["name"]
    }
    keys = next(volume for volume in spec["volumes"] if volume["name"] == "keys")
    assert keys["secret"]["defaultMode"] & 0o007 == 0
    if built[0] != "serving":  # two copies of a state folder in use are two ledgers
        assert one(built[1], "StatefulSet")["spec"]["replicas"] == 1


def test_a_party_s_command_and_settings_are_taken_and_its_ports_are_theirs(
    built: tuple[str, list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    party, objects = built
    [container] = pod(objects)["containers"]
    assert guarded([*container["args"], "--help"]) == 0
    capsys.readouterr()
    content = one(objects, "ConfigMap")["data"]["settings.toml"]
    pins = tmp_path / "pins.toml"
    parties = ("aggregator:aggregator", "server:server", "client:hospital")
    pins.write_text(
        "".join(f'"fedrec:{who}" = "{str(key) * 64}"\n' for key, who in enumerate(parties))
    )
    file = tmp_path / "settings.toml"
    file.write_text(content.replace("/etc/fedrec-keys/pins.toml", str(pins)))
    LOADERS[party](file)  # type: ignore[operator]
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    told = tomllib.loads(content)
    for path in _paths(told):
        assert any(f"{path}/".startswith(f"{there}/") for there in mounted), path
    listened = {Address.of(address).port for address in _addresses(told)}
    assert {each["containerPort"] for each in container["ports"]} == listened
    services = [each for each in objects if each["kind"] == "Service"]
    metrics = Address.of(told["metrics"]).port
    assert {port["port"] for each in services for port in each["spec"]["ports"]} == (
        listened - {metrics}
    )


def test_nobody_reaches_more_than_the_firewall_of_the_page_allows(
    built: tuple[str, list[dict[str, Any]]],
) -> None:
    party, objects = built
    denied = one(objects, "NetworkPolicy", name="fedrec-deny")["spec"]
    assert (denied["podSelector"], set(denied)) == ({}, {"podSelector", "policyTypes"})
    allowed = one(objects, "NetworkPolicy", name=party)["spec"]
    out = [port["port"] for rule in allowed["egress"] for port in rule["ports"]]
    assert sorted(set(out) - {53}) == CALLED[party]
    for rule in allowed["ingress"]:  # metrics are for the scraper alone
        ports = {port["port"] for port in rule["ports"]}
        assert bool(ports & {9101, 9102, 9103, 9104}) == ("from" in rule)


def _paths(table: Any) -> list[str]:
    if isinstance(table, dict):
        return [path for value in table.values() for path in _paths(value)]
    if isinstance(table, list):
        return [path for value in table for path in _paths(value)]
    return [table] if isinstance(table, str) and table.startswith("/") else []


def _addresses(table: dict[str, Any]) -> list[str]:
    """Where a party listens."""
    own = [table[name] for name in ("listen", "metrics", "grpc", "http") if table.get(name)]
    inner = [
        each["listen"] for each in table.values() if isinstance(each, dict) and "listen" in each
    ]
    return own + inner
