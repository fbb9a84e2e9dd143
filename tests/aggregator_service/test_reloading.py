"""Callers and certificates that change while the aggregator runs: no restart, nobody else's call
lost; and the identity of serving, which may call nobody."""

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedrec.errors import ProtocolError, RefusedError, SettingsError
from fedrec.federation.protocol import LedgerHead, Refusal
from fedrec.operations import renewal as renewing
from fedrec.operations.addresses import Address
from fedrec.operations.certificate_requests import request, sign
from fedrec.operations.certificates import pins, pins_of, write_development_certificates
from fedrec.operations.pins import read_pins, write_pins
from fedrec.operations.renewal import renew
from fedrec.operations.watched_files import WatchedFiles
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint, RemoteReportEndpoint, Retry
from fedrec.transport.channel import Access, handshake
from fedrec_aggregator import main
from fedrec_aggregator.credentials import Certificates
from fedrec_aggregator.settings import load
from tests.threads import serving
from tests.waiting import HANG_S, until

SETTINGS = """
listen = "127.0.0.1:0"
state = "state"
log = "aggregator.jsonl"
simulation = true
pins = "certificates/pins.toml"
[tls]
certificate = "certificates/aggregator.pem"
key = "certificates/aggregator-key.pem"
client_ca = "certificates/ca.pem"
[[clients]]
name = "hospital"
[privacy]
max_epsilon = 5.0
"""
AGGREGATOR = ("aggregator.pem", "aggregator-key.pem")
ONCE = Retry(patience_s=0.0, deadline_s=HANG_S)
LIBRARY = '[[clients]]\nname = "library"\n[privacy]'


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificates = folder / "certificates"
        write_development_certificates(self.certificates, clients=["hospital"])
        write_pins(self.certificates)
        self.settings = folder / "aggregator.toml"
        self.settings.write_text(SETTINGS)

    def add_library(self) -> None:
        write_development_certificates(self.certificates, clients=["library"])

    def running(self) -> AbstractContextManager[Address]:
        return serving(main.run, load(self.settings), source=self.settings)

    def access(self, address: Address, who: str) -> Access:
        own = {"certificate": f"{who}.pem", "key": f"{who}-key.pem", "ca": "ca.pem"}
        return Access(
            str(address), **{key: str(self.certificates / name) for key, name in own.items()}
        )

    def takes(self, address: Address, who: str) -> bool:
        try:
            with RemoteReportEndpoint(self.access(address, who)) as endpoint:
                return endpoint.enroll([]) == 0
        except RefusedError as refusal:
            return refusal.code not in {Refusal.NOT_ENROLLED, Refusal.FORBIDDEN}

    def said(self) -> list[dict[str, Any]]:
        lines = (self.folder / "aggregator.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def events(self) -> list[str]:
        return [line["event"] for line in self.said()]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_client_whose_pin_and_entry_are_added_is_let_in_without_a_restart(site: Site) -> None:
    with site.running() as address:
        assert site.takes(address, "client-hospital")
        site.add_library()
        assert not site.takes(address, "client-library")
        write_pins(site.certificates)
        site.settings.write_text(SETTINGS.replace("[privacy]", LIBRARY))
        until(lambda: site.takes(address, "client-library"))
        assert site.takes(address, "client-hospital")
    assert "callers-reloaded" in site.events()
    assert "settings-changed" not in site.events()


def test_a_client_that_is_taken_away_is_refused_from_its_next_call_on(site: Site) -> None:
    with site.running() as address:
        assert site.takes(address, "client-hospital")
        site.settings.write_text(SETTINGS.replace('"hospital"', '"nobody"'))
        until(lambda: not site.takes(address, "client-hospital"))


def test_a_file_that_cannot_be_used_changes_nothing_and_is_said_with_a_remedy(site: Site) -> None:
    with site.running() as address:
        site.settings.write_text("nonsense = 1")
        until(lambda: "callers-not-reloaded" in site.events())
        assert site.takes(address, "client-hospital")
    line = next(line for line in site.said() if line["event"] == "callers-not-reloaded")
    assert line["remedy"]


@pytest.mark.parametrize("lines", [0, 2, 3])
def test_pins_that_were_cut_off_let_in_nobody_whom_they_did_not_know(
    site: Site, lines: int
) -> None:
    """After so many lines: nothing, the comment alone, the aggregator's own pin."""
    path = site.certificates / "pins.toml"
    whole = path.read_text()
    with site.running() as address:
        assert site.takes(address, "client-hospital")
        renew(site.certificates, "client-hospital", days=90, new_key=True)
        assert not site.takes(address, "client-hospital")
        path.write_text("".join(whole.splitlines(keepends=True)[:lines]))
        until(lambda: "callers-not-reloaded" in site.events())
        assert not site.takes(address, "client-hospital")
        with pytest.raises(SettingsError, match=r"bring the whole pins\.toml"):
            load(site.settings)
        write_pins(site.certificates)
        until(lambda: site.takes(address, "client-hospital"))


def test_other_keys_wait_for_a_restart_and_the_log_says_so(site: Site) -> None:
    with site.running():
        site.settings.write_text(SETTINGS.replace("max_epsilon = 5.0", "max_epsilon = 500.0"))
        until(lambda: "settings-changed" in site.events())


def test_a_renewed_certificate_is_shown_without_a_restart(site: Site) -> None:
    with site.running() as address:
        asked = site.access(address, "server")
        before = handshake(asked, timeout_s=HANG_S)
        renew(site.certificates, "aggregator", days=200)
        until(lambda: handshake(asked, timeout_s=HANG_S).serial_number != before.serial_number)
        assert pins_of(before).public_key == _pin(site.certificates / "aggregator.pem")
        assert site.takes(address, "client-hospital")


@pytest.mark.parametrize("first", ["pins", "certificate"])
def test_a_called_party_s_new_key_is_expected_without_a_restart_of_its_callers(
    site: Site, tmp_path: Path, first: str
) -> None:
    """Whichever comes first at the caller: its connection stands until both have come, and the old
    key is refused from then on."""
    mine = tmp_path / "pins.toml"
    shutil.copy(site.certificates / "pins.toml", mine)
    old = {name: (site.certificates / name).read_bytes() for name in AGGREGATOR}
    with site.running() as address:
        known = read_pins(mine)["fedrec:aggregator:aggregator"]
        access = replace(site.access(address, "server"), pin=known, pins=str(mine))
        with RemoteReleaseEndpoint(access, retry=ONCE) as endpoint:
            endpoint.budget()
            first_channel = endpoint._channel
            made = tmp_path / "made"
            shutil.copytree(site.certificates, made)
            renew(made, "aggregator", days=90, new_key=True)
            write_pins(made)
            steps = {
                "pins": lambda: shutil.copy(made / "pins.toml", mine),
                "certificate": lambda: [
                    shutil.copy(made / x, site.certificates) for x in AGGREGATOR
                ],
            }
            for step in (first, *({*steps} - {first})):
                steps[step]()
                endpoint.budget()
            wanted = _pin(made / "aggregator.pem")
            until(lambda: _shown_to(access) == wanted)
            until(lambda: bool(endpoint.budget()) and endpoint._channel is not first_channel)
        for name, content in old.items():
            (site.certificates / name).write_bytes(content)
        until(lambda: _shown_to(replace(access, pin="", pins="")) == known)
        with (
            pytest.raises(RefusedError) as refused,
            RemoteReleaseEndpoint(access, retry=ONCE) as another,
        ):
            another.budget()
        assert refused.value.code == Refusal.WRONG_CERTIFICATE


def test_a_file_of_pins_that_cannot_be_used_leaves_the_pin_as_it_was(
    site: Site, tmp_path: Path
) -> None:
    whole = (site.certificates / "pins.toml").read_text()
    mine = tmp_path / "pins.toml"
    access = Access("127.0.0.1:1", pin="a" * 64, pins=str(mine))
    for text in (
        "",
        "nonsense",
        whole[:80],
        whole + '"fedrec:aggregator:two" = "' + "b" * 64 + '"',
    ):
        mine.write_text(text)
        assert access.expected() == "a" * 64
    mine.write_text(whole)
    assert access.expected() == _pin(site.certificates / "aggregator.pem")


def test_sighup_asks_for_the_files_too_and_does_what_it_did_before(tmp_path: Path) -> None:
    heard = list[int]()
    before = signal.signal(signal.SIGHUP, lambda number, _: heard.append(number))
    try:
        watched = WatchedFiles([tmp_path / "missing"])
        with watched.on_hangup():
            assert not watched.due()
            os.kill(os.getpid(), signal.SIGHUP)
            assert watched.due()
            assert not watched.due()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == [signal.SIGHUP]


def test_servings_key_opens_nothing_at_the_aggregator(site: Site) -> None:
    """Whoever breaks into serving gets no call of a client or a server, pinned or not."""
    assert not any("serving" in name for name in read_pins(site.certificates / "pins.toml"))
    for text in (SETTINGS, _without_pins(SETTINGS)):
        site.settings.write_text(text)
        shutil.rmtree(site.folder / "state", ignore_errors=True)
        with site.running() as address:
            own = site.access(address, "serving")
            with RemoteReportEndpoint(own) as client, RemoteReleaseEndpoint(own) as server:
                calls: list[Callable[[], Any]] = [
                    partial(client.enroll, []),
                    server.budget,
                    server.enrolled,
                    partial(server.growth, LedgerHead(0, "")),
                ]
                for call in calls:
                    with pytest.raises(RefusedError) as refusal:
                        call()
                    assert refusal.value.code == Refusal.FORBIDDEN


@pytest.mark.parametrize("holder", ["serving:serving", "aggregator:aggregator"])
def test_a_certificate_of_another_role_is_nobodys_where_tls_has_let_it_in(holder: str) -> None:
    """An own authority may issue it for both ends of a connection."""
    with pytest.raises(RefusedError) as refusal:
        Certificates({})({"peer_uri": [f"fedrec:{holder}".encode()]}, {})
    assert refusal.value.code == Refusal.FORBIDDEN


def _without_pins(text: str) -> str:
    return text.replace('pins = "certificates/pins.toml"\n', "")


def _shown_to(access: Access) -> str:
    try:
        return pins_of(handshake(access, timeout_s=HANG_S)).public_key
    except RefusedError:
        return ""


def _pin(path: Path) -> str:
    return pins(path.read_bytes()).public_key


@pytest.mark.parametrize("who", ["aggregator", "client-hospital"])
def test_an_expired_certificate_stops_calls_counts_nobody_and_its_renewal_needs_no_restart(
    site: Site, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(renewing, "BACKDATED", timedelta(days=30))
        renew(site.certificates, who, days=-2)
    with site.running() as address:
        own = site.access(address, "client-hospital")
        for _ in range(2):
            with pytest.raises(ProtocolError) as refusal:
                RemoteReportEndpoint(own, retry=ONCE).enroll([bytes(16)])
            # whose clock it may be: what ours shows, and when the certificate is valid
            said = f"{refusal.value.cause}; {refusal.value.remedy}"
            assert f"this machine's clock, which shows {datetime.now(UTC):%Y-}" in said or (
                who != "aggregator"
                and re.search(r"Ours is valid from .* UTC to .* this machine's clock shows", said)
            )
        renew(site.certificates, who, days=90)
        until(lambda: _enrolled(own) == 1)
    lines = [line for line in site.said() if line["event"] == "enrolled"]
    assert {(line["sender"], line["users"]) for line in lines} == {("hospital", 1)}
    # callers of an aggregator see only that it is not taken: it says why itself
    causes = [line["cause"] for line in site.said() if line["event"] == "certificate-out-of-time"]
    assert len(causes) == (who == "aggregator")
    assert all("aggregator.pem expired on" in cause for cause in causes)


def test_a_callers_key_is_rotated_while_it_calls_and_its_old_key_is_nobodys(
    site: Site, tmp_path: Path
) -> None:
    """The key is made beside the old one, the authority signs, pins go to the aggregator: no party
    is started again."""
    old = tmp_path / "old"
    shutil.copytree(site.certificates, old)
    with site.running() as address:
        own = site.access(address, "client-hospital")
        with RemoteReportEndpoint(own, retry=ONCE) as endpoint:
            assert endpoint.enroll([bytes(16)]) == 1
            key, asked = request(tmp_path / "next", "client-hospital")
            # the certificate lies beside the old key for a moment: calls go on
            sign(site.certificates, asked, "client-hospital", hosts=(), days=9, new_key=True)
            assert endpoint.enroll([bytes(16)]) == 1
            shutil.copy(key, site.certificates / key.name)
            write_pins(site.certificates)
            until(lambda: any(line["event"] == "callers-reloaded" for line in site.said()))
            assert endpoint.enroll([b"\1" * 16]) == 2
        before = {name: str(old / Path(path).name) for name, path in _files(own).items()}
        with pytest.raises(RefusedError) as refusal:
            RemoteReportEndpoint(replace(own, **before), retry=ONCE).enroll([b"\2" * 16])
        assert refusal.value.code == Refusal.FORBIDDEN


def _files(access: Access) -> dict[str, str]:
    return {"certificate": access.certificate, "key": access.key}


def _enrolled(access: Access) -> int:
    try:
        return RemoteReportEndpoint(access, retry=ONCE).enroll([bytes(16)])
    except ProtocolError:
        return 0
