"""A serving process on another machine takes over what the server trains: fetched with a token,
checked, never half."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import socket
import threading
import tomllib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fedrec.errors import RunError, SettingsError, UnreachableError
from fedrec.operations import connections
from fedrec.operations.addresses import Address
from fedrec.operations.certificates import write_development_certificates
from fedrec.serving import bundle
from fedrec.transport.http_listener import TlsFiles
from fedrec_server import bundle_endpoint
from fedrec_server.bundle_endpoint import bundle_endpoint as published
from fedrec_server.serving import main
from fedrec_server.serving.fetching import Source
from fedrec_server.serving.settings import FetchTable, validated
from fedrec_server.settings_tables import PublishTable
from tests.threads import web
from tests.waiting import HANG_S, until

from .conftest import planted

TOKEN = "a token of this test"
KNOWN = (hashlib.sha256(TOKEN.encode()).hexdigest(),)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A server's state folder."""
    (tmp_path / "server").mkdir()
    return tmp_path / "server"


def endpoint(folder: Path, **options: Any) -> AbstractContextManager[Address]:
    return published(folder, Address("127.0.0.1", 0), KNOWN, **options)


def source(url: str, folder: Path, **table: Any) -> Source:
    (folder / "token").write_text(f"{TOKEN}\n")
    return Source.of(
        url, folder, FetchTable(**{"token": str(folder / "token"), **table}), demo=False
    )


def test_a_bundle_is_fetched_once_and_a_new_one_again(trained: Path, tmp_path: Path) -> None:
    with endpoint(trained) as served:
        fetched = source(f"http://{served}", tmp_path)
        assert fetched.fetch() == ""  # nothing was trained yet
        assert not fetched.path.exists()
        for seed in (1, 2):
            version = planted(trained / bundle.FILE, seed=seed)
            assert fetched.fetch()[:16] == version
            assert fetched.path.read_bytes() == (trained / bundle.FILE).read_bytes()
            inode = fetched.path.stat().st_ino
            assert fetched.fetch() == ""
            assert fetched.path.stat().st_ino == inode
            headers = {
                "Authorization": f"Bearer {TOKEN}",
                "If-None-Match": f'"{bundle.sha256_of(fetched.path)}"',
            }
            assert httpx2.get(f"http://{served}/v1/bundle", headers=headers).status_code == 304
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"bearer {TOKEN}"]
)
def test_without_the_token_nothing_is_sent(trained: Path, authorization: str) -> None:
    planted(trained / bundle.FILE)
    with endpoint(trained) as served:
        answer = httpx2.get(f"http://{served}/v1/bundle", headers={"Authorization": authorization})
        assert (answer.status_code, answer.content) == (401, b"")


@pytest.mark.parametrize(
    "path", ["/", "/v1/bundle/", "/v1/bundle/../../runs.json", "/runs.json", "/v1/bundle?x"]
)
def test_nothing_but_the_bundle_is_there(trained: Path, path: str) -> None:
    planted(trained / bundle.FILE)
    (trained / "runs.json").write_text("{}")
    with endpoint(trained) as served, httpx2.Client(base_url=f"http://{served}") as client:
        request = client.build_request("GET", "/x", headers={"Authorization": f"Bearer {TOKEN}"})
        request.url = request.url.copy_with(raw_path=path.encode())
        assert client.send(request).status_code == 404


def line(served: Address, source: str = "127.0.0.1") -> socket.socket:
    where = (served.host, served.port)
    return socket.create_connection(where, timeout=HANG_S, source_address=(source, 0))


def status(one: socket.socket) -> bytes:
    """Waits for an answer that was not asked for."""
    return one.makefile("rb").readline().split()[1]


def test_a_head_that_comes_byte_by_byte_has_one_deadline(trained: Path) -> None:
    with endpoint(trained, head_s=0.2) as served, line(served) as slow:
        slow.sendall(b"GET /v1/bundle HTTP/1.1\r\nx: ")

        def cut() -> bool:
            try:
                slow.sendall(b"y")
            except OSError:
                return True
            return False

        until(cut, "the connection is cut")


def test_strangers_hold_so_many_connections_and_keep_nobody_out(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two silent connections take both places; a whole request takes the place of the older."""
    monkeypatch.setattr(bundle_endpoint, "_CONNECTIONS", 2)
    with endpoint(trained, head_s=HANG_S) as served, ExitStack() as stack:
        held = [stack.enter_context(line(served)) for _ in range(2)]
        assert httpx2.get(f"http://{served}/v1/bundle").status_code == 401
        with suppress(ConnectionResetError):
            assert held[0].recv(1) == b""


def test_strangers_at_one_address_leave_room_for_others(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "here", lambda _: False)
    monkeypatch.setattr(bundle_endpoint, "_PER_PEER", 1)
    with endpoint(trained, head_s=HANG_S) as served, ExitStack() as stack:
        stack.enter_context(line(served))
        assert status(stack.enter_context(line(served))) == b"429"
        other = stack.enter_context(line(served, "127.0.0.2"))
        other.sendall(b"GET /v1/bundle HTTP/1.0\r\n\r\n")
        assert status(other) == b"401"


def opened() -> Iterator[str]:
    """What this process has open; other threads may close theirs meanwhile."""
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            yield os.readlink(f"/proc/self/fd/{number}")


def test_a_download_that_is_cut_leaves_its_place_and_its_file(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_endpoint, "_AT_ONCE", 1)
    with open(trained / bundle.FILE, "wb") as large:
        large.truncate(2**26)  # more than the buffers of a connection hold
    asks = {"Authorization": f"Bearer {TOKEN}"}
    head = f"GET /v1/bundle HTTP/1.1\r\nAuthorization: {asks['Authorization']}\r\n\r\n"
    with endpoint(trained) as served:
        url = f"http://{served}/v1/bundle"
        with line(served) as cut:
            cut.sendall(head.encode())
            assert status(cut) == b"200"
            assert httpx2.get(url, headers=asks).status_code == 503
        tag = f'"{bundle.sha256_of(trained / bundle.FILE)}"'
        again = asks | {"If-None-Match": tag}
        until(lambda: httpx2.get(url, headers=again).status_code == 304, "its place is free")
        # also of the last answer, which its client has before the server has closed it
        until(lambda: str(trained / bundle.FILE) not in set(opened()), "its file is closed")


def test_over_tls_the_authority_must_vouch_for_the_server(trained: Path, tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        write_development_certificates(tmp_path / name, clients=["c"], server_hosts=["127.0.0.1"])
    planted(trained / bundle.FILE)
    certificate, key = (tmp_path / "ours" / name for name in ("server.pem", "server-key.pem"))
    with endpoint(trained, tls=TlsFiles(certificate, key)) as served:
        url = f"https://{served}"
        with pytest.raises(UnreachableError):
            source(url, tmp_path, ca=str(tmp_path / "theirs" / "ca.pem")).fetch()
        assert source(url, tmp_path, ca=str(tmp_path / "ours" / "ca.pem")).fetch()


def test_a_token_is_never_sent_in_the_clear_to_another_machine(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="not https"):
        source("http://server.example.org:7003", tmp_path)
    with pytest.raises(ValueError, match="a token needs TLS"):
        PublishTable(listen="0.0.0.0:7003", tokens=KNOWN)
    with pytest.raises(ValueError, match="nobody could fetch"):
        PublishTable(listen="127.0.0.1:7003")


def lies(whole: bytes, seeded: bytes) -> dict[str, tuple[dict[str, str], bytes]]:
    """Headers and body of answers that must not replace what is served."""

    def tagged(content: bytes) -> dict[str, str]:
        return {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "Content-Length": str(len(content)),
        }

    return {
        "other bytes": ({**tagged(whole), "Content-Length": str(len(whole))}, whole[:-1] + b"\x01"),
        "no tag": ({"Content-Length": str(len(whole))}, whole),
        "half": (tagged(whole), whole[: len(whole) // 2]),
        "garbage, well tagged": (tagged(b"x" * 5_000), b"x" * 5_000),
        "nothing": (tagged(b""), b""),
        "too large": ({"ETag": '"x"'}, b"x" * 3_000_000),
        "an experiment": (tagged(seeded), seeded),
    }


@pytest.mark.parametrize(
    "name",
    [
        "other bytes",
        "no tag",
        "half",
        "garbage, well tagged",
        "nothing",
        "too large",
        "an experiment",
    ],
)
def test_a_broken_or_lying_answer_never_replaces_what_serves(name: str, tmp_path: Path) -> None:
    planted(tmp_path / "new", seed=2)
    planted(tmp_path / "seeded", seed=3, noise="seeded")
    headers, body = lies((tmp_path / "new").read_bytes(), (tmp_path / "seeded").read_bytes())[name]

    def answer(to: BaseHTTPRequestHandler) -> None:
        to.send_response(200)
        for key, value in headers.items():
            to.send_header(key, value)
        to.end_headers()
        with suppress(OSError):  # it hung up
            to.wfile.write(body)

    with web(answer) as address:
        fetched = source(f"http://{address}", tmp_path, max_bytes=2_000_000)
        before = planted(fetched.path, seed=1)
        with pytest.raises((RunError, UnreachableError)):
            fetched.fetch()
        assert bundle.read(fetched.path).version == before
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize("status", [301, 401, 500])
def test_a_refusal_is_said_and_redirects_are_not_followed(status: int, tmp_path: Path) -> None:
    def answer(to: BaseHTTPRequestHandler) -> None:
        to.send_response(status)
        to.send_header("Location", "/elsewhere")
        to.end_headers()

    with web(answer) as address, pytest.raises(RunError, match=f"answers {status}"):
        source(f"http://{address}", tmp_path).fetch()


def test_a_serving_process_waits_for_the_first_model_and_takes_the_next_one_over(
    trained: Path, tmp_path: Path
) -> None:
    with endpoint(trained) as served:
        (tmp_path / "token").write_text(TOKEN)
        settings = validated(
            {
                "grpc": "",
                "http": "127.0.0.1:0",
                "state": str(tmp_path / "state"),
                "log": str(tmp_path / "log"),
                "fetch": {"token": str(tmp_path / "token"), "every_s": 0.1},
                "models": {"watch_s": 0.05},
            }
        )
        told = list[main.Serving]()
        stop = threading.Event()
        options: dict[str, Any] = {"wait": True, "ready": told.append, "stop": stop}
        thread = threading.Thread(
            target=main.run, args=([f"http://{served}"], settings), kwargs=options
        )
        thread.start()
        try:
            until(
                lambda: (
                    (tmp_path / "log").exists()
                    and "waiting: no model" in (tmp_path / "log").read_text()
                ),
                "a wait that is said",
            )
            first = planted(trained / bundle.FILE, seed=1)
            until(lambda: told, "the first model")
            assert told[0].newest == first
            second = planted(trained / bundle.FILE, seed=2)
            until(
                lambda: httpx2.get(f"{told[0].http}/v1/models").json()["newest"] == second,
                "the next model",
            )
            (trained / bundle.FILE).write_bytes(b"half a bundle")
            until(
                lambda: "not-fetched" in (tmp_path / "log").read_text(),
                "a refusal of what is no bundle",
            )
            assert httpx2.get(f"{told[0].http}/v1/models").json()["newest"] == second
        finally:
            stop.set()
            thread.join(HANG_S)
    events = [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()]
    assert events.count("fetched") == 1  # the first one came before anything listened


def test_a_bundle_that_cannot_be_kept_is_said_with_the_folder_and_waited_for(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(trained / bundle.FILE)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with endpoint(trained) as served:
        own = source(f"http://{served}", tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", full)
            with pytest.raises(RunError) as failure:
                own.fetch()
        assert failure.value.cause == f"{tmp_path} cannot be written: No space left on device"
        assert "Free disk space" in failure.value.remedy
        assert not list(tmp_path.glob(".fetched-*"))
        assert own.fetch()


def test_serving_starts_where_its_own_note_cannot_be_written(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fedrec status` reads it; readers do not need it."""

    def fails(path: Path, _: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(main, "write_json", fails)
    running = start(state=str(tmp_path / "state"))
    assert running.http.get("/v1/models").status_code == 200
    lines = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    (line,) = [line for line in lines if line["event"] == "state-not-written"]
    file = tmp_path / "state" / "serving.json"
    assert line["cause"] == f"{file} cannot be written: Read-only file system"
    assert line["remedy"]


def test_the_settings_on_the_page_are_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    tables = [
        tomllib.loads(block)
        for block in re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ]
    publish = next(table["publish"] for table in tables if "publish" in table)
    fetch = next(table["fetch"] for table in tables if "fetch" in table)
    assert PublishTable(**publish).listen == "0.0.0.0:7003"
    assert FetchTable(**fetch).every_s == 60
