"""Three aggregators as services with mutual TLS: a training over them, who may ask them for what,
and settings that must not start."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fedrec.cli.doctor.parties import aggregator_checks
from fedrec.errors import RefusedError, SettingsError
from fedrec.federation.protocol import Refusal
from fedrec.federation.round_driver import AggregatedLink, Patience
from fedrec.federation.wire import pack_release
from fedrec.operations.certificates import PLACES, write_development_certificates
from fedrec.operations.pins import read_pins, write_pins
from fedrec.sharing.protocol import Standing
from fedrec.sharing.three_endpoints import ThreeEndpoints
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint
from fedrec.transport.channel import Access
from fedrec.transport.three_party_client import RemotePeer, RemoteShareEndpoint
from fedrec_aggregator import main
from fedrec_aggregator.settings import validated
from fedrec_aggregator.three_party import ThreePartyAggregator
from fedrec_client.ledger import ClientLedger
from fedrec_client.participant import Participant
from fedrec_client.three_way import ThreeWay, names_of
from fedrec_simulations.runtimes.deployment_files import toml
from fedrec_simulations.runtimes.processes import free_addresses
from tests.aggregator_service.conftest import ONCE, QUICK
from tests.sharing.three_cores import PROMISE, RUN, SEED, Cores, Federation, federation
from tests.threads import serving
from tests.waiting import HANG_S


@dataclass
class Three:
    """Three services, and how to reach them."""

    folder: Path
    addresses: list[str]
    pins: dict[str, str]

    def access(self, place: int, who: str, **other: Any) -> Access:
        pair = {
            "certificate": str(self.folder / f"{who}.pem"),
            "key": str(self.folder / f"{who}-key.pem"),
        }
        return Access(
            self.addresses[place],
            **({"pin": self.pins[PLACES[place]], "ca": str(self.folder / "ca.pem")} | pair | other),
        )

    @property
    def of_server(self) -> list[Access]:
        return [self.access(place, "server") for place in range(3)]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three")
    write_development_certificates(folder, clients=["client-1", "client-2"], three_aggregators=True)
    write_pins(folder)
    return folder


def content(
    certificates: Path, state: Path, place: int, addresses: list[str], **other: Any
) -> dict[str, Any]:
    own = {
        "certificate": str(certificates / f"aggregator-{place}.pem"),
        "key": str(certificates / f"aggregator-{place}-key.pem"),
    }
    return {
        "listen": addresses[place - 1],
        "state": str(state / f"aggregator-{place}"),
        "log": str(state / f"aggregator-{place}.jsonl"),
        "pins": str(certificates / "pins.toml"),
        "simulation": True,
        "tls": {**own, "client_ca": str(certificates / "ca.pem")},
        "clients": [{"name": "client-1"}, {"name": "client-2"}],
        "privacy": {
            "max_epsilon": PROMISE.epsilon,
            "delta": PROMISE.delta,
            "noise": "seeded",
            "seed": SEED,
        },
        "limits": {"min_cohort": 5},
        "three_party": {
            "place": place,
            "peers": [
                {"place": i, "address": address}
                for i, address in enumerate(addresses, 1)
                if i != place
            ],
        },
    } | other


@pytest.fixture
def three(certificates: Path, tmp_path: Path) -> Iterator[Three]:
    yield from services_of(certificates, tmp_path)


def services_of(certificates: Path, tmp_path: Path) -> Iterator[Three]:
    """Three that serve."""
    addresses = free_addresses(3)
    with ExitStack() as stack:
        for place in (1, 2, 3):
            stack.enter_context(
                serving(main.run, validated(content(certificates, tmp_path, place, addresses)))
            )
        known = {
            name.rpartition(":")[2]: pin
            for name, pin in read_pins(certificates / "pins.toml").items()
            if "aggregator" in name
        }
        yield Three(certificates, addresses, known)


@pytest.fixture
def there(three: Three, tmp_path: Path) -> Iterator[Federation]:
    yield from clients_of(three, tmp_path)


def clients_of(three: Three, tmp_path: Path, *, patience_s: float = 60.0) -> Iterator[Federation]:
    """Two clients with certificates of their own, over the services."""
    with ExitStack() as stack:
        cores = stack.enter_context(closing(Cores(tmp_path / "unused")))
        made = federation(
            cores,
            stack,
            "recipe=published",
            "model.steps=1",
            "model.encoder=id",
            "model.dimension=2",
            clients=2,
        )
        participants = []
        for each in made.participants:
            ledger = stack.enter_context(
                closing(ClientLedger(tmp_path / each.name / "ledger.sqlite", limit=PROMISE))
            )
            ways = [three.access(place, f"client-{each.name}") for place in range(3)]
            endpoints = [stack.enter_context(RemoteShareEndpoint(way, retry=QUICK)) for way in ways]
            names = names_of([three.pins[name] for name in PLACES])
            way = ThreeWay(endpoints, names, patience_s=patience_s)
            participants.append(
                Participant(each.name, each.users, ledger, way, tmp_path / each.name)
            )
        yield replace(made, participants=participants)


def link_over(
    there: Federation, ways: Iterable[Access], stack: ExitStack, **waits: Any
) -> tuple[AggregatedLink, list[RemoteReleaseEndpoint]]:
    """The server's link by its ways to each of the three, and these."""
    endpoints = [stack.enter_context(RemoteReleaseEndpoint(way, retry=QUICK)) for way in ways]
    patience = Patience(**({"round_s": HANG_S, "pause_s": 0.05} | waits))
    plan = there.prepared.plan
    link = AggregatedLink(there.terms, plan, ThreeEndpoints(endpoints), there, patience)
    link.num_users = there.data.num_users
    return link, endpoints


def test_a_training_over_three_services_releases_the_loopback_s_bytes(
    there: Federation, three: Three
) -> None:
    with ExitStack() as stack:
        link, _ = link_over(there, three.of_server, stack)
        there.join(there.terms)
        assert len(there.trained_over(link)) == 2


def test_a_peer_that_takes_calls_and_never_answers_delays_a_round_and_nobody_else(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the wire. Which deadline ends a call does not matter: the peer answers none of them."""
    hung = threading.Event()
    let_go = threading.Event()
    answered = ThreePartyAggregator.standing

    def hangs(core: ThreePartyAggregator, run: str, round: int) -> Standing:
        if core.place == 2:
            hung.set()
            assert let_go.wait(HANG_S)
        return answered(core, run, round)

    monkeypatch.setattr(ThreePartyAggregator, "standing", hangs)
    lines = list[RemotePeer]()

    def line(access: Access) -> RemotePeer:
        lines.append(RemotePeer(access, retry=replace(ONCE, deadline_s=0.3)))
        return lines[-1]

    monkeypatch.setattr(main, "RemotePeer", line)
    with ExitStack() as stack:
        services = stack.enter_context(contextmanager(services_of)(certificates, tmp_path))
        stack.callback(let_go.set)  # before the services are told to stop, which wait for it
        there = stack.enter_context(contextmanager(clients_of)(services, tmp_path, patience_s=0.3))
        waits = {"round_s": 1.0, "attempts": 1, "short_attempts": 1}
        link, endpoints = link_over(there, services.of_server, stack, **waits)
        there.join(there.terms)
        with pytest.raises(RefusedError, match="0 of 24 users reported") as failure:
            link.answer(there.first)
        assert failure.value.code == Refusal.TOO_FEW
        assert hung.is_set()
        assert [endpoint.budget().spent_epsilon for endpoint in endpoints] == [0.0] * 3  # type: ignore[union-attr]
        let_go.set()
        for each in lines:
            each._retry = ONCE
        for participant in there.participants:
            participant._endpoint.patience_s = HANG_S  # type: ignore[union-attr]
        link.patience = Patience(round_s=HANG_S, pause_s=0.05, attempts=1_000)
        assert pack_release(link.answer(there.first)) == pack_release(
            there.loopback.answer(there.first)
        )


def test_nobody_but_the_two_peers_asks_for_standings_and_nobody_but_the_one_before_for_a_key(
    there: Federation, three: Three
) -> None:
    for who in ("server", "client-client-1"):
        with RemotePeer(three.access(0, who)) as asking, pytest.raises(RefusedError) as refusal:
            asking.standing(RUN, 0)
        assert refusal.value.code == Refusal.FORBIDDEN
    with (
        RemotePeer(three.access(0, "aggregator-2")) as second,
        RemotePeer(three.access(0, "aggregator-3")) as third,
    ):
        assert second.standing(RUN, 0)[0].attempt == third.standing(RUN, 0)[0].attempt == 0
    endpoints = [
        RemoteReleaseEndpoint(three.access(place, "server"), retry=QUICK) for place in range(3)
    ]
    endpoint = ThreeEndpoints(endpoints)
    endpoint.open_run(RUN, there.prepared.plan)
    endpoint.open_round(there.opening(there.first))
    with (
        RemotePeer(three.access(0, "aggregator-3")) as before,
        RemotePeer(three.access(0, "aggregator-2")) as after,
    ):
        assert len(before.key(RUN, 0, 1)) == 32
        with pytest.raises(RefusedError) as refusal:
            after.key(RUN, 0, 1)
    assert refusal.value.code == Refusal.FORBIDDEN
    for one in endpoints:
        one.hang_up()


def test_a_key_that_is_not_pinned_is_no_peer_whatever_its_certificate_says(
    three: Three, tmp_path: Path
) -> None:
    """Another certificate of the same authority, of the same name."""
    for name in ("ca.pem", "ca-key.pem"):
        (tmp_path / name).write_bytes((three.folder / name).read_bytes())
    write_development_certificates(tmp_path, clients=[], three_aggregators=True)
    pair = {
        "certificate": str(tmp_path / "aggregator-2.pem"),
        "key": str(tmp_path / "aggregator-2-key.pem"),
    }
    with (
        RemotePeer(three.access(0, "aggregator-2", **pair)) as stranger,
        pytest.raises(RefusedError) as refusal,
    ):
        stranger.standing(RUN, 0)
    assert refusal.value.code == Refusal.FORBIDDEN


def test_a_client_takes_no_other_aggregator_in_the_place_of_one(three: Three) -> None:
    way = replace(three.access(0, "client-client-1"), address=three.addresses[1])
    with RemoteShareEndpoint(way, retry=ONCE) as endpoint, pytest.raises(RefusedError) as refusal:
        endpoint.attempt(RUN, 0)
    assert refusal.value.code == Refusal.WRONG_CERTIFICATE


def test_the_doctor_asks_both_peers_and_says_which_of_them_does_not_take_this_ones_key(
    three: Three, certificates: Path, tmp_path: Path
) -> None:
    own = content(certificates, tmp_path / "own", 1, three.addresses)
    (tmp_path / "aggregator.toml").write_text(toml(own))
    found = {
        check.name: check
        for check in aggregator_checks(tmp_path / "aggregator.toml", None, time.time, reach=True)
    }
    assert (found["aggregator 2"].verdict, found["aggregator 3"].verdict) == ("ok", "ok")
    slow = {
        c.name: c
        for c in aggregator_checks(
            tmp_path / "aggregator.toml", None, lambda: time.time() - 3_600, reach=True
        )
    }
    assert all(
        slow[name].verdict == "doubt" and "60 minutes apart" in slow[name].words
        for name in ("aggregator 2", "aggregator 3")
    )
    second = {
        key: value.replace("aggregator-1", "aggregator-2") for key, value in own["tls"].items()
    }
    own["three_party"] = {
        "place": 1,
        "peers": [
            {"place": 2, "address": three.addresses[0], "pin": "a" * 64},
            own["three_party"]["peers"][1],
        ],
    }
    (tmp_path / "aggregator.toml").write_text(toml(own | {"tls": second}))
    found = {
        check.name: check
        for check in aggregator_checks(tmp_path / "aggregator.toml", None, time.time, reach=True)
    }
    assert (found["aggregator 2"].verdict, found["aggregator 3"].verdict) == ("failure", "ok")


def peers(*pins: str) -> dict[str, Any]:
    return {
        "place": 1,
        "peers": [
            {"place": place, "address": "127.0.0.1:1", "pin": pin}
            for place, pin in zip((2, 3), pins, strict=True)
        ],
    }


@pytest.mark.parametrize("same", ["its peers'", "its own and a peer's"])
def test_an_aggregator_does_not_start_where_two_of_three_have_one_key(
    certificates: Path, tmp_path: Path, same: str
) -> None:
    pins = read_pins(certificates / "pins.toml")
    own = pins["fedrec:aggregator:1"]
    other = pins["fedrec:aggregator:2"]
    table = peers(other, other) if same == "its peers'" else peers(other, own)
    with ExitStack() as stack, pytest.raises(SettingsError, match="different pins"):
        stack.enter_context(
            serving(
                main.run,
                validated(
                    content(certificates, tmp_path, 1, ["127.0.0.1:0"] * 3, three_party=table)
                ),
            )
        )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"three_party": {"place": 1, "peers": [{"place": 2, "address": "a:1"}]}}, "three_party"),
        ({"three_party": peers("a" * 64, "b" * 64) | {"place": 2}}, "places 1, 2 and 3"),
        ({"three_party": peers("", "b" * 64), "pins": ""}, "needs one of three pins"),
        ({"insecure": True, "tls": None, "three_party": peers("a" * 64, "b" * 64)}, "without pins"),
    ],
)
def test_settings_of_three_that_are_not_of_three_are_refused(
    certificates: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        validated(content(certificates, tmp_path, 1, ["127.0.0.1:0"] * 3, **change))
