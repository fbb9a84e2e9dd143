"""Strangers hold no place and no memory of the endpoint of light devices, and devices are answered
meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from fedrec.federation.report_batches import MAX_DEVICE_BYTES
from fedrec.operations import connections
from fedrec_aggregator import device_server
from fedrec_aggregator.device_server import DeviceIntake, PublishedContent, application
from fedrec_aggregator.settings_tables import DevicesTable
from tests.device.worlds import Intake, listening
from tests.ports import until_closed
from tests.waiting import HANG_S, until, with_more_time

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


def taken(open_line: socket.socket, num_bytes: int) -> bytes:
    content = b""
    while len(content) < num_bytes:
        part = open_line.recv(num_bytes - len(content))
        assert part, "it was cut before all was taken"
        content += part
    return content


def head(path: str, *more: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: a", *more, "", ""]).encode()


def answered(port: int) -> bool:
    try:
        return asked(port).startswith(b"HTTP/1.1 200")
    except ConnectionResetError:  # it hung up before it read the question
        return False


CONTENT = bytes(2**24)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def holding(folder: Path) -> DevicesTable:
    """An endpoint's settings, with content that no buffer of a connection holds."""
    made = table(folder)
    (folder / "v1" / "content").mkdir()
    (folder / "v1" / "content" / DIGEST).write_bytes(CONTENT)
    return made


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


@pytest.mark.parametrize("more", ["connection: close", "connection: keep-alive"])
def test_strangers_who_do_not_take_what_they_ask_for_lose_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    monkeypatch.setattr(device_server, "_CALLS_AT_ONCE", 4)
    wanted = head(f"/v1/content/{DIGEST}", more, method="GET")
    with device_server.device_endpoint(NOBODY, holding(tmp_path), taken_s=0.3) as where:
        strangers = [line(where.port, wanted) for _ in range(4)]
        until(lambda: not answered(where.port), "they hold all places")
        until(lambda: answered(where.port), "they are cut")
        for stranger in strangers:
            stranger.close()


def test_who_takes_what_it_asks_for_slowly_gets_all_of_it(tmp_path: Path) -> None:
    table = holding(tmp_path)
    wanted = head(f"/v1/content/{DIGEST}", "connection: close", method="GET")

    def attempt(taken_s: float) -> None:
        content = b""
        with (
            device_server.device_endpoint(NOBODY, table, taken_s=taken_s) as where,
            line(where.port, wanted) as one,
        ):
            for _ in range(8):
                time.sleep(taken_s / 4)
                content += taken(one, 2**20)
            assert (content + until_closed(one)).endswith(CONTENT)

    with_more_time(attempt, 0.4, 4.0, 40.0)


def test_a_connection_holds_no_more_than_a_piece_of_what_it_does_not_take() -> None:
    intake = DeviceIntake(NOBODY, PublishedContent(lambda _: CONTENT))
    sent = list[int]()

    async def send(message: Any) -> None:
        sent.append(len(message.get("body", b"")))

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "GET", "path": f"/v1/content/{DIGEST}", "headers": []}
    asyncio.run(application(intake)(scope, receive, send))
    assert sum(sent) == len(CONTENT)
    assert max(sent) == 2**16


def test_an_address_has_so_many_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "here", lambda _: False)
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
        listening(Intake(NOBODY), body_s=0.2) as address,
        line(
            int(address.rpartition(":")[2]),
            head(path, "content-length: 9", f"authorization: Bearer {SECRET}") + b"x",
        ) as slow,
    ):
        assert slow.recv(12) == b"HTTP/1.1 408"
