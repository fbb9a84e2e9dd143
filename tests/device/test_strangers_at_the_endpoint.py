"""Strangers hold no place and no memory of the endpoint of light devices, and devices are answered
meanwhile."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from fedrec.federation.report_batches import MAX_DEVICE_BYTES
from fedrec.operations import addresses
from fedrec_aggregator import device_server
from fedrec_aggregator.device_intake import DeviceIntake
from fedrec_aggregator.settings_tables import DevicesTable
from tests.device.worlds import listening
from tests.waiting import HANG_S

NOBODY: Any = None  # no call comes to the aggregator
SECRET = "a secret that is long enough for a device"


def table(folder: Path, **more: Any) -> DevicesTable:
    (folder / "v1").mkdir()
    (folder / "v1" / "round").write_bytes(b"{}")
    (folder / "admitted").write_text("device-nobody\n")
    return DevicesTable(
        listen="127.0.0.1:0", content=str(folder), admitted=str(folder / "admitted"), **more
    )


def line(port: int, content: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=HANG_S)
    made.sendall(content)
    return made


def until_closed(open_line: socket.socket) -> bytes:
    content = b""
    while part := open_line.recv(65_536):
        content += part
    return content


def head(path: str, *more: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: a", *more, "", ""]).encode()


def asked(port: int) -> bytes:
    with line(port, head("/v1/round", "connection: close", method="GET")) as one:
        return until_closed(one)


def test_silent_strangers_lose_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_server, "_CALLS_AT_ONCE", 4)
    with device_server.device_endpoint(NOBODY, table(tmp_path), request_s=0.2) as where:
        strangers = [line(where.port, b"P") for _ in range(4)]
        for stranger in strangers:
            with stranger:
                assert until_closed(stranger).startswith(b"HTTP/1.1 408")
        assert asked(where.port).startswith(b"HTTP/1.1 200")


def test_an_address_has_so_many_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "here", lambda _: False)
    devices = table(tmp_path, connections_per_peer=2)
    with device_server.device_endpoint(NOBODY, devices, request_s=HANG_S) as where:
        held = [line(where.port) for _ in range(2)]
        with line(where.port) as third:
            assert until_closed(third).startswith(b"HTTP/1.1 429")
        held[0].sendall(head("/v1/round", method="GET"))
        assert held[0].recv(12) == b"HTTP/1.1 200"
        for one in held:
            one.close()


@pytest.mark.parametrize("path", ["/v1/users", "/v1/reports/run/0"])
def test_a_stranger_is_refused_before_a_byte_of_its_body(tmp_path: Path, path: str) -> None:
    with (
        device_server.device_endpoint(NOBODY, table(tmp_path)) as where,
        line(
            where.port,
            head(path, f"content-length: {MAX_DEVICE_BYTES}", f"authorization: Bearer {SECRET}"),
        ) as stranger,
    ):
        answer = until_closed(stranger)
        assert answer.startswith(b"HTTP/1.1 403")
        assert b"not admitted" in answer


@pytest.mark.parametrize("path", ["/v1/users", "/v1/reports/run/0"])
def test_an_admitted_device_whose_body_does_not_come_is_told(path: str) -> None:
    with (
        listening(DeviceIntake(NOBODY), body_s=0.2) as address,
        line(
            int(address.rpartition(":")[2]),
            head(path, "content-length: 9", f"authorization: Bearer {SECRET}") + b"x",
        ) as slow,
    ):
        assert slow.recv(12) == b"HTTP/1.1 408"
