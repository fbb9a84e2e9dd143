"""Certificates that are replaced while a server runs: shown without a restart, and not before they
are valid."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from fedrec.errors import SettingsError
from fedrec.operations import renewal
from fedrec.operations.addresses import Address
from fedrec.operations.certificates import write_development_certificates
from fedrec.operations.renewal import renew
from fedrec.transport import server_tls
from fedrec.transport.http_listener import TlsFiles
from fedrec.transport.server_tls import server_credentials
from fedrec_aggregator.device_server import device_endpoint
from fedrec_aggregator.settings_tables import DevicesTable
from fedrec_server.bundle_endpoint import bundle_endpoint
from tests.cases import slow_but
from tests.serving_server.test_renewed_certificates import shown
from tests.waiting import until

Pair = tuple[Path, Path]


@contextmanager
def calls(folder: Path, pair: Pair, host: str) -> Iterator[str]:
    """gRPC, as aggregator, server and serving use it."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port(f"{Address(host, 0)}", server_credentials(*pair))
    server.start()
    try:
        yield str(Address(host, port))
    finally:
        server.stop(None).wait()


@contextmanager
def devices(folder: Path, pair: Pair, host: str) -> Iterator[str]:
    table = DevicesTable(
        listen=str(Address(host, 0)),
        content=str(folder),
        any_device=True,
        certificate=str(pair[0]),
        key=str(pair[1]),
    )
    nobody: Any = object()
    with device_endpoint(nobody, table) as address:
        yield str(address)


@contextmanager
def bundles(folder: Path, pair: Pair, host: str) -> Iterator[str]:
    with bundle_endpoint(folder, Address(host, 0), ["0" * 64], tls=TlsFiles(*pair)) as address:
        yield str(address)


Listening = Callable[[Path, Pair, str], AbstractContextManager[str]]


@pytest.mark.parametrize("host", slow_but(["127.0.0.1"], ["127.0.0.1", "::1"]))
@pytest.mark.parametrize("listening", [calls, devices, bundles])
def test_a_renewed_certificate_is_shown_once_it_is_valid(
    listening: Listening, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_development_certificates(tmp_path, clients=[])
    pair = (tmp_path / "server.pem", tmp_path / "server-key.pem")
    with listening(tmp_path, pair, host) as address:
        first = shown(address)
        renew(tmp_path, "server", days=30)
        until(lambda: shown(address) != first)
        second = shown(address)
        with monkeypatch.context() as tomorrow:
            tomorrow.setattr(renewal, "BACKDATED", -timedelta(days=1))
            renew(tmp_path, "server", days=60)
        asked = list[float]()

        def early() -> float:
            asked.append(time.time())
            return asked[-1]

        monkeypatch.setattr(
            server_tls, "time", SimpleNamespace(time=early, monotonic=time.monotonic)
        )
        until(lambda: shown(address) == second and len(asked) > 1)
        late = SimpleNamespace(time=lambda: time.time() + 2 * 86_400, monotonic=time.monotonic)
        monkeypatch.setattr(server_tls, "time", late)
        until(lambda: shown(address) != second)


@pytest.mark.parametrize("listening", [calls, devices, bundles])
@pytest.mark.parametrize("end", [".pem", "-key.pem"])
def test_half_a_file_is_said_changes_nothing_and_starts_nothing(
    listening: Listening, end: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a copy that a full disk cut off."""
    write_development_certificates(tmp_path, clients=[])
    pair = (tmp_path / "server.pem", tmp_path / "server-key.pem")
    cut = tmp_path / f"server{end}"
    whole = cut.read_bytes()
    with listening(tmp_path, pair, "127.0.0.1") as address:
        first = shown(address)
        cut.write_bytes(whole[: len(whole) // 2])

        def said() -> bool:
            assert shown(address) == first
            return "certificate-not-reloaded" in caplog.messages

        until(said)
        cut.write_bytes(whole)
        renew(tmp_path, "server", days=30)
        until(lambda: shown(address) != first)
    lines = [line for line in caplog.records if line.getMessage() == "certificate-not-reloaded"]
    causes = {vars(line)["fields"]["cause"] for line in lines}
    assert all("server.pem with server-key.pem cannot be used" in cause for cause in causes)
    cut.write_bytes(whole[: len(whole) // 2])
    with (
        pytest.raises(SettingsError, match="certificate"),
        listening(tmp_path, pair, "127.0.0.1"),
    ):
        pass
