"""Three roots and six leaves as services with mutual TLS: a training, who may take a term, what the
doctor says, and settings that must not start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fedrec.cli.doctor import parties
from fedrec.errors import FedRecError, RefusedError, SettingsError
from fedrec.federation.protocol import LedgerGrowth, LedgerHead, Refusal
from fedrec.transport.aggregator_client import RemoteReportEndpoint
from fedrec.transport.channel import Access
from fedrec.transport.leaf_client import RemoteLeaf, RemotePeer
from fedrec_aggregator import main
from fedrec_aggregator.settings import validated
from fedrec_simulations.runtimes.processes import free_addresses
from tests.aggregator_service.conftest import ONCE
from tests.aggregator_service.test_three_service import link_over
from tests.aggregator_service.three_trees import (
    LEAVES,
    NAMES,
    ROOTS,
    of_client,
    participants,
    settings_of,
    write_certificates,
)
from tests.sharing.test_three_cores import PUBLISHED
from tests.sharing.three_cores import Cores, federation
from tests.threads import serving
from tests.waiting import until


@dataclass
class Trees:
    """Nine services, and how to reach them."""

    folder: Path
    addresses: dict[str, str]

    def access(self, name: str, who: str) -> Access:
        return Access(
            self.addresses[name],
            ca=f"{self.folder}/ca.pem",
            certificate=f"{self.folder}/{who}.pem",
            key=f"{self.folder}/{who}-key.pem",
        )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificates(tmp_path_factory.mktemp("trees"))


def addresses() -> dict[str, str]:
    return dict(zip(NAMES, free_addresses(len(NAMES)), strict=True))


@pytest.fixture
def trees(certificates: Path, tmp_path: Path) -> Iterator[Trees]:
    where = addresses()
    with ExitStack() as stack:
        for name in (*LEAVES, *ROOTS):
            settings = validated(settings_of(certificates, tmp_path, name, where))
            stack.enter_context(serving(main.run, settings))
        yield Trees(certificates, where)


@pytest.mark.slow
def test_a_training_over_three_trees_releases_the_loopbacks_bytes(
    trees: Trees, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        cores = stack.enter_context(closing(Cores(tmp_path / "unused")))
        made = federation(cores, stack, *PUBLISHED, clients=2)
        clients = participants(made, trees.folder, tmp_path, trees.addresses, stack)
        there = replace(made, participants=clients)
        ways = [trees.access(root, "server") for root in ROOTS]
        link, _ = link_over(there, ways, stack)
        joined = lambda: not any(each.refusal for each in there.join(there.terms))  # noqa: E731
        until(joined, "that leaves hear of their roots' ledgers", pause_s=0.2)
        assert len(there.trained_over(link)) == 2


def test_a_leaf_gives_its_term_to_its_own_root_alone_and_no_root_is_a_peer(trees: Trees) -> None:
    nothing = LedgerGrowth(LedgerHead())
    with RemoteLeaf(trees.access("a-1", "aggregator-1"), retry=ONCE) as leaf:
        assert leaf.visit(LedgerHead(), nothing).range.first == 0
    strangers = ("client-client-1", "server", "aggregator-a-2", "aggregator-2", "aggregator-b-1")
    for who in strangers:
        for ask in (
            lambda leaf: leaf.visit(LedgerHead(), nothing),
            lambda leaf: leaf.freeze("run", 0, digest="", attempt=1, epoch=""),
        ):
            with (
                RemoteLeaf(trees.access("a-1", who), retry=ONCE) as leaf,
                pytest.raises(RefusedError) as caught,
            ):
                ask(leaf)
            assert caught.value.code == Refusal.FORBIDDEN
    with RemotePeer(trees.access("a-1", "aggregator-a-2")) as sister:
        assert sister.standing("run", 0)[0].attempt == 0
    for who in ("aggregator-1", "aggregator-b-2", "aggregator-2"):
        with RemotePeer(trees.access("a-1", who)) as other, pytest.raises(RefusedError) as caught:
            other.standing("run", 0)
        assert caught.value.code == Refusal.FORBIDDEN
    with (
        RemoteReportEndpoint(trees.access("1", "client-client-1"), retry=ONCE) as client,
        pytest.raises(FedRecError),
    ):
        client.enroll([bytes(16)])


def test_the_doctor_asks_sisters_and_leaves(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = addresses()
    with ExitStack() as stack:
        for name in ("a-1", "a-2", "2"):
            settings = validated(settings_of(certificates, tmp_path, name, where))
            stack.enter_context(serving(main.run, settings))

        def said(name: str) -> dict[str, str]:
            settings = validated(settings_of(certificates, tmp_path, name, where))
            monkeypatch.setattr(parties, "load_aggregator", lambda _: settings)
            checks = parties.aggregator_checks(Path("x"), None, time.time, reach=True)
            return {check.name: check.verdict for check in checks}

        root = said("1")
        leaf = said("a-3")
        assert (root["leaf a-1"], root["leaf b-1"]) == ("ok", "failure")
        assert (root["aggregator 2"], root["aggregator 3"]) == ("ok", "failure")
        assert (leaf["aggregator 1"], leaf["aggregator 2"]) == ("ok", "ok")
        client = of_client(certificates, tmp_path, "client-1", where)
        monkeypatch.setattr(parties, "load_client", lambda _: client)
        asked = parties.client_checks(Path("x"), None, time.time, reach=True)
        found = {check.name: check.verdict for check in asked}
        assert (found["leaf a-2 of 2"], found["leaf b-2 of 2"]) == ("ok", "failure")


NOWHERE = {name: f"127.0.0.1:{number}" for number, name in enumerate(NAMES, start=1)}


def test_pins_fill_sisters_root_and_leaves(certificates: Path, tmp_path: Path) -> None:
    from fedrec.operations.pins import read_pins

    known = {k.rpartition(":")[2]: v for k, v in read_pins(certificates / "pins.toml").items()}
    leaf = validated(settings_of(certificates, tmp_path, "a-2", NOWHERE))
    assert leaf.leaf is not None
    assert leaf.leaf.root_pin == known["2"]
    assert leaf.three_party is not None
    assert [peer.pin for peer in leaf.three_party.peers] == [known["a-1"], known["a-3"]]
    root = validated(settings_of(certificates, tmp_path, "3", NOWHERE))
    assert [each.pin for each in root.leaves] == [known["a-3"], known["b-3"]]


def test_a_leaf_whose_root_is_a_sister_does_not_start(certificates: Path, tmp_path: Path) -> None:
    content = settings_of(certificates, tmp_path, "a-1", NOWHERE)
    content["leaf"]["root"] = "a-2"
    with pytest.raises(SettingsError, match="sister leaf's key"):
        validated(content)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda leaves: leaves[:5], "no leaf owns|same ranges"),
        (lambda leaves: [leaves[0] | {"place": 0}, *leaves[1:]], "each has its place"),
        (lambda leaves: [leaves[0] | {"place": 2}, *leaves[1:]], "two leaves own|own"),
        (lambda leaves: [leaves[0] | {"last": "7ffe"}, *leaves[1:]], "no leaf owns"),
        (
            lambda leaves: [
                one | ({"last": "6fff"} if one["first"] == "0000" else {"first": "7000"})
                if one["place"] == 1
                else one
                for one in leaves
            ],
            "same ranges",
        ),
        (lambda leaves: [leaves[0] | {"name": "a-2"}, *leaves[1:]], "three different pins"),
    ],
)
def test_a_client_names_three_leaves_of_every_range(
    certificates: Path, tmp_path: Path, change: Any, words: str
) -> None:
    fine = of_client(certificates, tmp_path, "client-1", NOWHERE)
    assert fine.three
    leaves = [one.model_dump(exclude={"pin"}) | {"pin": ""} for one in fine.leaves]
    with pytest.raises(SettingsError, match=words):
        of_client(certificates, tmp_path, "client-1", NOWHERE, leaves=change(leaves))
