"""A certificate of serving that is renewed in its place: new connections see it, no restart."""

import json
import socket
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fedrec.operations import renewal as renewing
from fedrec.operations.addresses import Address
from fedrec.operations.certificates import write_development_certificates
from fedrec.operations.renewal import renew
from tests.waiting import HANG_S, until


@pytest.mark.parametrize("api", ["grpc", "http"])
def test_a_renewed_certificate_is_shown_and_one_without_its_key_is_not(
    start: Any, tmp_path: Path, api: str
) -> None:
    folder = tmp_path / "certificates"
    write_development_certificates(folder, clients=["reader"])
    own = {name: str(folder / f"serving{end}") for name, end in _FILES.items()}
    running = start(tls=own)
    address = getattr(running.told, api).rpartition("/")[2]

    before = shown(address)
    old_key = (folder / "serving-key.pem").read_bytes()
    renew(folder, "serving", days=200)
    until(lambda: shown(address) != before)
    renewed = shown(address)

    renew(folder, "serving", days=300, new_key=True)
    until(lambda: shown(address) != renewed)
    latest = shown(address)
    (folder / "serving-key.pem").write_bytes(old_key)  # of an earlier certificate

    def said() -> bool:
        assert shown(address) == latest
        return "certificate-not-reloaded" in (tmp_path / "log.jsonl").read_text()

    until(said)


@pytest.mark.parametrize(
    ("began_days", "days", "words"),
    [(30, -2, "expired on"), (-1, 90, "is valid from"), (1, 90, "")],
)
@pytest.mark.parametrize("api", ["grpc", "http"])
def test_serving_says_that_its_certificate_is_out_of_time(
    start: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    api: str,
    began_days: int,
    days: int,
    words: str,
) -> None:
    folder = tmp_path / "certificates"
    write_development_certificates(folder, clients=["reader"])
    with monkeypatch.context() as patch:
        patch.setattr(renewing, "BACKDATED", timedelta(days=began_days))
        renew(folder, "serving", days=days)
    other = {"grpc": "http", "http": "grpc"}[api]
    start(tls={name: str(folder / f"serving{end}") for name, end in _FILES.items()}, **{other: ""})
    log = tmp_path / "log.jsonl"
    until(lambda: ("certificate-out-of-time" if words else "listening") in log.read_text())
    causes = [
        line["cause"]
        for line in map(json.loads, log.read_text().splitlines())
        if line["event"] == "certificate-out-of-time"
    ]
    assert len(causes) == bool(words)
    assert all(f"serving.pem {words}" in cause for cause in causes)


_FILES = {"certificate": ".pem", "key": "-key.pem"}


def shown(address: str) -> bytes | None:
    """The certificate that a new connection sees."""
    where = Address.of(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection((where.host, where.port), timeout=HANG_S) as plain,
        context.wrap_socket(plain) as line,
    ):
        return line.getpeercert(binary_form=True)
