"""A root and two leaves as services with mutual TLS: a training over them, who may take sums, and
settings that must not start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedrec.cli.doctor import parties
from fedrec.errors import FedRecError, RefusedError, SettingsError
from fedrec.federation.leaves import even_ranges
from fedrec.federation.protocol import LedgerGrowth, LedgerHead, Refusal
from fedrec.operations.certificates import write_development_certificates
from fedrec.operations.pins import read_pins, write_pins
from fedrec.run.job import shards
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint, RemoteReportEndpoint
from fedrec.transport.channel import Access
from fedrec.transport.leaf_client import RemoteLeaf
from fedrec_aggregator import main
from fedrec_aggregator.settings import validated
from fedrec_client.delivery import LeafEndpoints
from fedrec_client.participant import Participant
from fedrec_client.settings import validated as client_settings
from fedrec_simulations.runtimes.processes import free_addresses
from tests.aggregator_service.conftest import ONCE, QUICK
from tests.contracts.conftest import (
    PROMISE,
    SEED,
    Called,
    Federation,
    events,
    participant,
    prepared_for,
)
from tests.threads import serving

LEAVES = ("leaf-1", "leaf-2")
RANGES = even_ranges(2)


@dataclass
class Tree:
    """Addresses of leaf 1, leaf 2 and the root, and how to show oneself to them."""

    certificates: Path
    addresses: list[str]

    def access(self, place: int, who: str, **other: Any) -> Access:
        pair = {
            "certificate": str(self.certificates / f"{who}.pem"),
            "key": str(self.certificates / f"{who}-key.pem"),
        }
        return Access(
            self.addresses[place], **({"ca": str(self.certificates / "ca.pem")} | pair | other)
        )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    write_development_certificates(
        folder, clients=["client-1", "client-2", "client-3"], leaves=dict.fromkeys(LEAVES, ())
    )
    write_pins(folder)
    return folder


def content(
    certificates: Path, state: Path, name: str, addresses: list[str], **other: Any
) -> dict[str, Any]:
    place = (*LEAVES, "root").index(name)
    file = "aggregator" if name == "root" else f"aggregator-{name}"
    tls = {
        "certificate": f"{certificates}/{file}.pem",
        "key": f"{certificates}/{file}-key.pem",
        "client_ca": f"{certificates}/ca.pem",
    }
    common = {
        "listen": addresses[place],
        "state": str(state / name),
        "log": str(state / f"{name}.jsonl"),
        "pins": str(certificates / "pins.toml"),
        "tls": tls,
        "limits": {"min_cohort": 5},
    }
    ends = [{"first": f"{each.first:04x}", "last": f"{each.last:04x}"} for each in RANGES]
    if name != "root":
        clients = [{"name": f"client-{number}"} for number in (1, 2, 3)]
        return common | {"clients": clients, "leaf": {"name": name, **ends[place]}} | other
    leaves = [{"name": leaf, "address": addresses[i], **ends[i]} for i, leaf in enumerate(LEAVES)]
    privacy = {
        "max_epsilon": PROMISE.epsilon,
        "delta": PROMISE.delta,
        "noise": "seeded",
        "seed": SEED,
    }
    return common | {"simulation": True, "privacy": privacy, "leaves": leaves} | other


@pytest.fixture
def tree(certificates: Path, tmp_path: Path) -> Iterator[Tree]:
    addresses = free_addresses(3)
    with ExitStack() as stack:
        for name in (*LEAVES, "root"):
            stack.enter_context(
                serving(main.run, validated(content(certificates, tmp_path, name, addresses)))
            )
        yield Tree(certificates, addresses)


def test_a_training_over_leaves_and_root_gives_the_bytes_of_a_loopback(
    tree: Tree, tmp_path: Path
) -> None:
    data = events()
    made = prepared_for(data)
    with ExitStack() as stack:
        participants = list[Participant]()
        for number, shard in enumerate(shards(data, 3), start=1):
            ways = [tree.access(place, f"client-client-{number}") for place in (0, 1)]
            endpoints = [
                stack.enter_context(RemoteReportEndpoint(way, retry=QUICK)) for way in ways
            ]
            own = LeafEndpoints(endpoints, RANGES)
            participants.append(participant(shard, tmp_path, own, stack))
        endpoint = stack.enter_context(RemoteReleaseEndpoint(tree.access(2, "server"), retry=QUICK))
        there = Federation(**vars(made), endpoint=endpoint, clients=Called(participants))
        assert [answer.refusal for answer in there.clients.join(there.terms)] == [""] * 3
        assert endpoint.enrolled() == data.num_users
        there.trained_over(there.link)


def test_doctor_on_the_root_asks_every_leaf(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = free_addresses(3)
    now_s = time.time()
    with ExitStack() as stack:
        first = content(certificates, tmp_path, "leaf-1", addresses)
        stack.enter_context(serving(main.run, validated(first)))

        def said(**other: Any) -> dict[str, tuple[str, str]]:
            settings = validated(content(certificates, tmp_path, "root", addresses, **other))
            monkeypatch.setattr(parties, "load_aggregator", lambda _: settings)
            checks = parties.aggregator_checks(Path("root"), None, lambda: now_s, reach=True)
            return {
                check.name: (check.verdict, check.words)
                for check in checks
                if check.name.startswith("leaf")
            }

        whole = content(certificates, tmp_path, "root", addresses)["leaves"]
        found = said()
        assert found["leaf leaf-1"][0] == "ok"
        assert "owns 0000 to 7fff and has 0 users" in found["leaf leaf-1"][1]
        assert found["leaf leaf-2"][0] == "failure"
        halves = [whole[0] | {"last": "6fff"}, whole[1] | {"first": "7000"}]
        state, message = said(leaves=halves)["leaf leaf-1"]
        assert (state, "listed are" in message) == ("failure", True)
        swapped = [whole[0] | {"address": addresses[1]}, whole[1] | {"address": addresses[0]}]
        assert {state for state, _ in said(leaves=swapped).values()} == {"failure"}
        now_s += 3_600
        state, message = said()["leaf leaf-1"]
        assert (state, "60 minutes apart" in message) == ("doubt", True)
        monkeypatch.setattr(parties, "version", lambda _: "99.0")
        assert "this is 99.0" in said()["leaf leaf-1"][1]


def test_a_leaf_gives_its_sums_to_its_root_alone(tree: Tree) -> None:
    nothing = LedgerGrowth(LedgerHead())
    for who in ("client-client-1", "server", "aggregator-leaf-2"):
        with RemoteLeaf(tree.access(0, who), retry=ONCE) as leaf, pytest.raises(FedRecError):
            leaf.visit(LedgerHead(), nothing)
        with RemoteLeaf(tree.access(0, who), retry=ONCE) as leaf, pytest.raises(FedRecError):
            leaf.freeze("run", 0, digest="", attempt=1, epoch="")
    with (
        RemoteReleaseEndpoint(tree.access(0, "server"), retry=ONCE) as server,
        pytest.raises(RefusedError) as caught,
    ):
        server.close("run", 0)
    assert caught.value.code == Refusal.FORBIDDEN
    with (
        RemoteReportEndpoint(tree.access(2, "client-client-1"), retry=ONCE) as client,
        pytest.raises(RefusedError) as caught,
    ):
        client.enroll([bytes(16)])
    assert caught.value.code in {Refusal.NOT_ENROLLED, Refusal.FORBIDDEN}


@pytest.mark.parametrize(
    ("name", "other", "words"),
    [
        ("leaf-1", {"privacy": {"max_epsilon": 5.0}}, "leave out privacy"),
        ("leaf-1", {"servers": ["server"]}, "leave out servers"),
        ("leaf-1", {"leaf": {"name": "leaf-1", "first": "8000", "last": "7fff"}}, "goes up"),
        ("leaf-1", {"pins": ""}, "root_pin is missing"),
        ("root", {"pins": ""}, "each needs its pin"),
        (
            "root",
            {"leaves": [{"name": "leaf-1", "address": "a:1", "first": "0000", "last": "7fff"}]},
            "no leaf owns",
        ),
        (
            "root",
            {
                "leaves": [
                    {"name": n, "address": f"{n}:1", "first": f, "last": "ffff"}
                    for n, f in (("leaf-1", "0000"), ("leaf-2", "7000"))
                ]
            },
            "two leaves own",
        ),
        (
            "root",
            {
                "leaves": [
                    {"name": n, "address": f"{n}:1", "pin": "0" * 64, "first": f, "last": e}
                    for n, f, e in (("leaf-1", "0000", "7fff"), ("leaf-2", "8000", "ffff"))
                ]
            },
            "two have one key",
        ),
    ],
)
def test_settings_that_are_no_tree_do_not_start(
    certificates: Path, tmp_path: Path, name: str, other: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        validated(
            content(
                certificates, tmp_path, name, ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"], **other
            )
        )


def test_a_client_names_every_leaf(certificates: Path, tmp_path: Path) -> None:
    pair = {
        "ca": f"{certificates}/ca.pem",
        "certificate": f"{certificates}/client-client-1.pem",
        "key": f"{certificates}/client-client-1-key.pem",
    }
    leaves = [
        {
            "name": leaf,
            "address": f"{leaf}:1",
            "first": f"{each.first:04x}",
            "last": f"{each.last:04x}",
            **pair,
        }
        for leaf, each in zip(LEAVES, RANGES, strict=True)
    ]
    link = {"address": "server:1", "certificate": pair["certificate"], "key": pair["key"]}
    table = {
        "name": "client-1",
        "state": str(tmp_path),
        "data": {"path": "x"},
        "server": link,
        "pins": f"{certificates}/pins.toml",
    }
    found = client_settings(table | {"leaves": leaves})
    known = read_pins(certificates / "pins.toml")
    assert [leaf.pin for leaf in found.leaves] == [
        known[f"fedrec:aggregator:{leaf}"] for leaf in LEAVES
    ]
    for wrong, words in (
        ({"leaves": leaves[:1]}, "no leaf owns"),
        ({"leaves": leaves, "aggregator": pair | {"address": "a:1"}}, "give one of them"),
    ):
        with pytest.raises(SettingsError, match=words):
            client_settings(table | wrong)
